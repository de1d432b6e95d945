// Lists by keyboard and mouse: j and k, x, Enter, "/", ranges by Shift, and a bar that counts what is selected.
// Without scripts the same boxes and buttons work, and the bar is always there. Rows that a live list fetches again stay
// selected.

const TYPING = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]";
const list = document.querySelector("[data-list]");
const help = document.getElementById("list-keys");

const rows = () => [...list.querySelectorAll("tbody tr")];
const boxOf = (row) => row.querySelector(".tick input[type=checkbox]");
const boxes = () => rows().map(boxOf);
const current = () => document.activeElement?.closest("[data-list] tbody tr");
let anchor = null; // the box that was changed last, where a range begins

function show() {
  const every = boxes();
  const count = every.filter((box) => box.checked).length;
  list.classList.toggle("has-selected", count > 0);
  list.querySelector("[data-count]").textContent = `${count} selected`;
  const all = list.querySelector("[data-check-all]");
  all.checked = count > 0 && count === every.length;
  all.indeterminate = count > 0 && count < every.length;
  offerWhatApplies();
}

// A row names in data-can what can be done with it; what applies to no selected row is not offered.
function offerWhatApplies() {
  const named = [...list.querySelectorAll("tbody tr[data-can]")];
  const possible = new Set(named.filter((row) => boxOf(row).checked).flatMap((row) => row.dataset.can.split(" ")));
  const known = new Set(["cancel", "hold", "release", "retry", "delete"]);
  for (const button of list.querySelectorAll("[data-selection] [name=do]")) {
    if (named.length && known.has(button.value)) button.hidden = possible.size > 0 && !possible.has(button.value);
  }
}

function focusRow(row) {
  row?.querySelector("th[scope=row] a")?.focus();
  row?.scrollIntoView({ block: "nearest" });
}

function step(by) {
  const every = rows();
  const at = every.indexOf(current());
  focusRow(at < 0 ? every[by > 0 ? 0 : every.length - 1] : every[at + by]);
}

function selectRange(to) {
  const every = boxes();
  const [first, last] = [every.indexOf(anchor), every.indexOf(to)].sort((a, b) => a - b);
  for (const box of every.slice(first, last + 1)) box.checked = to.checked;
}

function clear() {
  for (const box of boxes()) box.checked = false;
  show();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => current() && step(1),
  ArrowUp: () => current() && step(-1),
  x: () => {
    const row = current();
    if (row) boxOf(row).click();
    if (row) focusRow(row);
  },
  "/": () => document.querySelector("[data-list-search]")?.focus(),
  "?": () => help.showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open], details.menu[open]") || event.target.closest?.(TYPING)) return;
  if (event.key === "Escape") clear();
  const act = KEYS[event.key];
  if (!act || (event.key.startsWith("Arrow") && !current())) return;
  event.preventDefault();
  act();
}

if (list) {
  list.classList.add("scripted");
  list.addEventListener("click", (event) => {
    if (event.target.closest("[data-clear]")) clear();
    if (!event.target.matches(".tick input[name]")) return;
    if (event.shiftKey && anchor) selectRange(event.target);
    anchor = event.target;
    show();
  });
  list.addEventListener("change", () => setTimeout(show)); // after the box that selects all has done it
  document.addEventListener("keydown", onKey);
  document.querySelector("[data-keys-open]")?.addEventListener("click", () => help.showModal());
  let selected = new Set();
  document.addEventListener("htmx:beforeSwap", () => {
    selected = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const box of boxes()) box.checked = selected.has(box.value);
    anchor = boxes().find((box) => box.value === anchor?.value) ?? null;
    show();
  });
  addEventListener("pageshow", show); // a browser restores boxes when it goes back
  show();
}
