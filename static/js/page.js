// Small things every page has: theme toggle, local times, copy buttons, questions before dangerous forms, menus.
// Each is an addition: without scripts the same links and forms still work.

import { localise } from "./times.js";
import { toast } from "./toasts.js";

// Loaded by the pages that have such a menu only.
if (document.querySelector("select[multiple], select[data-searchable]")) import("./combobox.js");

const root = document.documentElement;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function toggleTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // the choice then lasts for this page
  }
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  const label = button.querySelector("[data-label]") ?? button;
  const before = label.textContent;
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent.trim());
    label.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    label.textContent = "Press Ctrl+C";
  }
  setTimeout(() => (label.textContent = before), 2000);
}

let asked = null; // what the question is about: a form, and the button that sends it

/** Asks in a dialog before a form with data-confirm is sent, or one by a button with it. */
function ask(form, submitter) {
  asked = { form, submitter };
  const dialog = document.getElementById("confirm");
  const { confirm, confirmYes } = submitter?.dataset.confirm ? submitter.dataset : form.dataset;
  dialog.querySelector("[data-question]").textContent = confirm;
  dialog.querySelector("[value=yes]").textContent = confirmYes ?? "Yes, do it";
  dialog.showModal();
}

// The answer is taken as it is given: the dialog's close event comes a frame later, when the form may be replaced or the
// same question be open again.
document.querySelector("#confirm form").addEventListener("submit", (event) => {
  if (event.submitter.value !== "yes") return;
  asked.form.dataset.confirmed = "yes";
  asked.form.requestSubmit(asked.submitter);
});

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-theme-toggle], [data-copy], [data-check-all], [data-toast], [data-opens]");
  if (target?.matches("[data-theme-toggle]")) toggleTheme();
  if (target?.matches("[data-copy]")) copy(target);
  if (target?.matches("[data-toast]")) toast(target.dataset.toast);
  if (target?.matches("[data-opens]")) document.getElementById(target.dataset.opens).showModal();
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

// Ctrl-K (or the link) opens the search over the page; with Ctrl or a middle click the link opens its page as links do.
const palette = document.querySelector("[data-palette]");
const openPalette = () => import("./palette.js").then(({ open }) => open(palette.href));
palette?.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openPalette();
});
document.addEventListener("keydown", (event) => {
  if (!palette || event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  openPalette();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.open = false;
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if ((form.dataset.confirm || event.submitter?.dataset.confirm) && form.dataset.confirmed !== "yes") {
    event.preventDefault();
    ask(form, event.submitter);
    return;
  }
  delete form.dataset.confirmed;
  if (form.dataset.once !== undefined) {
    // a second click must not send it twice; left for this turn so that the button's value is still sent
    setTimeout(() => form.querySelectorAll("button[type=submit], button:not([type])").forEach((button) => (button.disabled = true)));
  }
});

// A page taken from the browser's history must not keep its disabled buttons.
addEventListener("pageshow", (event) => {
  if (event.persisted) document.querySelectorAll("form[data-once] button").forEach((button) => (button.disabled = false));
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-check-all]")) {
    for (const box of event.target.closest("form, table").querySelectorAll("tbody input[type=checkbox]:not(:disabled)")) box.checked = event.target.checked;
  }
});

let pressed = false;
addEventListener("pointerdown", () => (pressed = true), true);
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => setTimeout(() => (pressed = false)), true);

// Polling stops while the tab is hidden; an answer from another page (signed out meanwhile) reloads this one. While a
// question is open or a mouse button is down nothing is replaced: the form or button could go, and the answer or click
// would be lost.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.requestConfig.triggeringEvent === undefined) event.preventDefault();
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (pressed || document.getElementById("confirm").open) event.detail.shouldSwap = false;
  const asked = new URL(event.detail.pathInfo.finalRequestPath, location.href).pathname;
  const { responseURL } = event.detail.xhr;
  if (responseURL && new URL(responseURL).pathname !== asked) {
    event.detail.shouldSwap = false;
    location.reload();
  }
});

// Only the element is replaced: the white space around the one that came would stay, each time a bit more.
let around = null;
document.addEventListener("htmx:beforeSwap", ({ detail }) => (around = detail.target.parentNode));
document.addEventListener("htmx:afterSwap", () => {
  const isSpace = (node) => node?.nodeType === Node.TEXT_NODE && !node.data.trim();
  for (const node of [...(around?.childNodes ?? [])]) if (isSpace(node) && isSpace(node.previousSibling)) node.remove();
  around = null;
});
document.addEventListener("htmx:afterSwap", () => localise());
document.addEventListener("htmx:sendError", () => toast("No contact with the portal. Trying again…"));

// What is replaced takes the keyboard's focus with it: give it to the same thing in what came.
const likeness = (element) =>
  [element.tagName, element.id, element.getAttribute("href"), element.form?.getAttribute("action"), element.name, element.value].join(" ");
let focused = null;
document.addEventListener("htmx:beforeSwap", (event) => {
  const { activeElement } = document;
  focused = event.detail.shouldSwap && event.detail.target.contains(activeElement) ? likeness(activeElement) : null;
});
document.addEventListener("htmx:afterSwap", () => {
  if (focused === null || document.activeElement !== document.body) return;
  const controls = document.querySelectorAll("main :is(a, button, input, select, summary, textarea)");
  [...controls].find((control) => likeness(control) === focused)?.focus({ preventScroll: true });
});

localise();
setInterval(() => localise(), 1_000);
