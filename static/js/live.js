// One live connection for the page. The portal hints at what has changed, and each part that shows it fetches itself:
// <div data-live="lab" hx-get="..." hx-trigger="live-lab from:document">. A hint has no content, so a lost or a double one
// does no harm. While there is no connection, all parts are fetched every POLL_MS.

const POLL_MS = 20_000;
const MAX_RETRY_MS = 30_000;
const SIGNED_OUT = 4401;
const TOO_MANY = 4429;

const topics = [...new Set([...document.querySelectorAll("[data-live]")].flatMap((part) => part.dataset.live.split(" ")))];
const missed = new Set(); // what changed while the tab was hidden
let socket = null;
let retryMs = 1_000;
let wasOpen = false;

function refresh(changed) {
  for (const topic of changed) {
    if (document.hidden) missed.add(topic);
    else document.dispatchEvent(new CustomEvent(`live-${topic}`));
  }
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/ws/page/?topics=${topics.join(",")}`);
  socket.onopen = () => {
    retryMs = 1_000;
    document.documentElement.dataset.connected = "yes";
    if (wasOpen) refresh(topics); // hints before this moment were lost
    wasOpen = true;
  };
  socket.onmessage = ({ data }) => refresh(JSON.parse(data).changed);
  socket.onclose = ({ code }) => {
    socket = null;
    delete document.documentElement.dataset.connected;
    if (code === SIGNED_OUT) {
      location.reload();
      return;
    }
    if (code === TOO_MANY) retryMs = MAX_RETRY_MS;
    setTimeout(connect, retryMs * (0.5 + Math.random()));
    retryMs = Math.min(2 * retryMs, MAX_RETRY_MS);
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !missed.size) return;
  const changed = [...missed];
  missed.clear();
  refresh(changed);
});
setInterval(() => {
  if (socket?.readyState !== WebSocket.OPEN) refresh(topics);
}, POLL_MS);
// A page that is left closes its connection at once, and one taken from the browser's history opens it again.
addEventListener("pagehide", () => socket?.close(1000));

if (topics.length) connect();
