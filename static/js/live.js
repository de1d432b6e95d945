// One live connection for the page. The portal hints at what has changed, and each part that shows it fetches itself:
// <div id="queue" {% live "lab" %} hx-get="...">. A hint has no content, so a lost or a double one does no harm. While there
// is no connection, all parts are fetched every POLL_MS. A part that has not changed is not sent again: its request names
// the edition that the page has.

const POLL_MS = 20_000;
const MAX_RETRY_MS = 30_000;
const OPEN_MS = 10_000; // a connection that takes longer to open is tried again
const SILENT_MS = 40_000; // the portal sends something every 15 s: a connection that is silent for so long is dead
const SIGNED_OUT = 4401;
const FORBIDDEN = 4403;
const TOO_MANY = 4429;
const NOTICES = "notices"; // the bell of every page, which also acts while the page is hidden

let topics = topicsOfPage();
const missed = new Set(); // what changed while the tab was hidden
const editions = new Map(); // of parts by their id
let socket = null;
let heardAt = 0;
let retryMs = 1_000;
let retry = 0;
let wasOpen = false;

function topicsOfPage() {
  const named = [...document.querySelectorAll("[data-live]")].flatMap((part) => part.dataset.live.split(" "));
  return [...new Set(named.filter(Boolean))].sort();
}

function refresh(changed) {
  for (const topic of changed) {
    if (document.hidden && topic !== NOTICES) missed.add(topic);
    else document.dispatchEvent(new CustomEvent(`live-${topic}`));
  }
}

function connect() {
  clearTimeout(retry);
  if (!topics.length) return;
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const mine = new WebSocket(`${scheme}//${location.host}/ws/page/?topics=${topics.join(",")}`);
  socket = mine;
  heardAt = performance.now();
  mine.onopen = () => {
    heardAt = performance.now();
    retryMs = 1_000;
    document.documentElement.dataset.connected = "yes";
    if (wasOpen) refresh(topics); // hints before this moment were lost
    wasOpen = true;
  };
  mine.onmessage = ({ data }) => {
    heardAt = performance.now();
    refresh(JSON.parse(data).changed);
  };
  mine.onclose = ({ code }) => {
    if (socket === mine) lost(code);
  };
}

function lost(code) {
  socket = null;
  delete document.documentElement.dataset.connected;
  if (code === SIGNED_OUT || code === FORBIDDEN) {
    if (topics.some((topic) => topic !== NOTICES)) location.reload();
    return; // a page with nothing else to hide keeps what was typed into it
  }
  if (code === TOO_MANY) retryMs = MAX_RETRY_MS;
  retry = setTimeout(connect, retryMs * (0.5 + Math.random()));
  retryMs = Math.min(2 * retryMs, MAX_RETRY_MS);
}

/** Closes a connection that is never answered, or that has died unnoticed; the browser alone would take minutes. */
function check() {
  const limit = socket?.readyState === WebSocket.OPEN ? SILENT_MS : OPEN_MS;
  if (socket === null || performance.now() - heardAt < limit) return;
  const dead = socket;
  lost(0);
  dead.close();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !missed.size) return;
  const changed = [...missed];
  missed.clear();
  refresh(changed);
});
setInterval(check, 2_000);
setInterval(() => {
  if (socket?.readyState !== WebSocket.OPEN) refresh(topics);
}, POLL_MS);
// A page that is left closes its connection at once, and one taken from the browser's history opens it again.
addEventListener("pagehide", () => socket?.close(1000));

document.addEventListener("htmx:configRequest", ({ detail }) => {
  if (detail.elt.dataset.live !== undefined) detail.headers.Edition = editions.get(detail.elt.id) ?? "";
});
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  const edition = detail.xhr.getResponseHeader("Edition");
  const part = detail.requestConfig.elt;
  if (!detail.shouldSwap) return; // page.js refuses while a mouse button is down
  for (const inner of detail.target.querySelectorAll("[data-live]")) editions.delete(inner.id);
  if (edition && part.dataset.live !== undefined) editions.set(part.id, edition);
});
// What was replaced may show something else: a job that has ended needs no connection any more.
document.addEventListener("htmx:afterSettle", () => {
  const now = topicsOfPage();
  if (now.join() === topics.join()) return;
  topics = now;
  const before = socket;
  socket = null;
  before?.close(1000);
  connect();
});

connect();
