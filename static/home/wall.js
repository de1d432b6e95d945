// A screen on the wall: it asks every few seconds, for months. Whatever fails, it keeps the last picture, shows since when it
// has no contact, and goes on asking; nothing piles up, because one request follows the other.

const ASK_MS = 10_000;
const TIMEOUT_MS = 8_000;
const QUIET_MS = 25_000; // a picture older than this is marked
const { address, zone, version } = document.body.dataset;
const wall = document.getElementById("wall");
const contact = document.getElementById("contact");

const inLab = (options) => new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone });
const time = inLab({ hour: "2-digit", minute: "2-digit" });
const day = inLab({ weekday: "long", day: "numeric", month: "long" });
let contactAt = Date.now();

function tick() {
  const now = new Date();
  document.getElementById("clock").textContent = time.format(now);
  document.getElementById("day").textContent = day.format(now);
  const stale = Date.now() - contactAt > QUIET_MS;
  document.body.classList.toggle("stale", stale);
  contact.hidden = !stale;
  if (stale) contact.textContent = `No contact since ${time.format(contactAt)}`;
}

async function ask() {
  try {
    const answer = await fetch(address, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.status === 404) {
      wall.textContent = "This link was revoked. An admin can create a new one.";
      contactAt = Date.now();
    } else if (answer.ok) {
      const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      const now = parsed.querySelector(".wall-now");
      if (now) {
        if (now.dataset.version !== version) location.reload(); // the portal was upgraded
        wall.replaceChildren(now);
        contactAt = Date.now();
      }
    }
  } catch {
    // the portal is away or restarts: the next request may succeed
  }
  tick();
  setTimeout(ask, ASK_MS);
}

document.documentElement.classList.remove("no-js");
setInterval(tick, 1_000);
tick();
setTimeout(ask, ASK_MS);
