// The squares of a machine are one stop of the Tab key; the arrow keys go from square to square and on to the next machine.

const LINKS = "a.square";

function prepare() {
  for (const squares of document.querySelectorAll(".squares")) {
    [...squares.querySelectorAll(LINKS)].forEach((link, place) => (link.tabIndex = place ? -1 : 0));
  }
}

document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.matches?.(LINKS)) return;
  const links = [...document.querySelectorAll(`.squares ${LINKS}`)];
  const next = links[links.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
});
document.addEventListener("htmx:afterSwap", prepare);
prepare();
