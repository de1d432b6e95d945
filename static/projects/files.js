// Arrow keys walk through the list of files; Enter opens, as links do.

const tree = document.querySelector("[data-files]");

tree?.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = [...tree.querySelectorAll(".list a")];
  const at = links.indexOf(document.activeElement);
  if (at < 0) return;
  const next = step ? links[at + step] : { Home: links[0], End: links.at(-1) }[event.key];
  if (next) {
    event.preventDefault();
    next.focus();
  }
});

// A long list opens where the shown file is.
tree?.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest" });
