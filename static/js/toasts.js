// Short messages at the lower edge of the page, read aloud by screen readers, gone after some seconds.

const SHOWN_MS = 6_000;

/** Shows a text; the same one is not shown twice at a time. */
export function toast(text) {
  const area = document.getElementById("toasts");
  if ([...area.children].some((other) => other.textContent === text)) return;
  const element = document.createElement("div");
  element.className = "toast";
  element.textContent = text;
  area.append(element);
  let left = setTimeout(() => element.remove(), SHOWN_MS);
  element.addEventListener("pointerenter", () => clearTimeout(left));
  element.addEventListener("pointerleave", () => (left = setTimeout(() => element.remove(), SHOWN_MS / 2)));
}
