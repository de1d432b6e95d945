// The search that Ctrl-K opens: the results of the search page in a dialog, chosen by arrows and Enter.

const PAUSE_MS = 120;
let dialog = null;
let asked = 0;
let address = "";

function build() {
  dialog = document.createElement("dialog");
  dialog.className = "palette";
  dialog.setAttribute("aria-label", "Search");
  const input = document.createElement("input");
  Object.assign(input, { type: "search", placeholder: "Go to a page, job, project or node", autocomplete: "off", spellcheck: false });
  input.setAttribute("aria-label", "Search");
  input.setAttribute("aria-controls", "palette-results");
  const results = document.createElement("div");
  results.id = "palette-results";
  dialog.append(input, results);
  document.body.append(dialog);
  let typing = 0;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => load(input.value), PAUSE_MS);
  });
  dialog.addEventListener("keydown", (event) => key(event, input));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // the ground around it
}

function key(event, input) {
  const links = [...dialog.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "ArrowDown") links[at + 1 < links.length ? at + 1 : 0]?.focus();
  else if (event.key === "ArrowUp") (at > 0 ? links[at - 1] : at === 0 ? input : links.at(-1))?.focus();
  else if (event.key === "Enter" && document.activeElement === input) links[0]?.click();
  else if (event.key.length === 1 && at >= 0 && !event.ctrlKey && !event.metaKey && !event.altKey && event.key !== " ") {
    input.focus(); // one goes on typing
    return;
  } else return;
  event.preventDefault();
}

/** Shows what matches; of several answers, that of the last question. */
async function load(words) {
  const number = (asked += 1);
  const results = dialog.querySelector("#palette-results");
  try {
    const answer = await fetch(`${address}?${new URLSearchParams({ q: words, part: "1" })}`, { redirect: "error" });
    if (!answer.ok) throw new Error(String(answer.status));
    const html = await answer.text();
    if (number === asked) results.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
  } catch {
    if (number === asked) results.textContent = "The search cannot be reached. Reload the page.";
  }
}

export function open(url) {
  address = url;
  if (!dialog) build();
  if (dialog.open) return;
  dialog.showModal();
  const input = dialog.querySelector("input");
  input.select();
  load(input.value);
}
