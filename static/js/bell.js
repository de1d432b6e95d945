// The bell: how many notices are unread, kept up to date by the page's connection, and notifications of the browser for those
// who switched them on in this browser (notifications/browser.js).

import "./live.js";

const bell = document.querySelector("[data-bell]");
const ON = "browser-notices";
const SEEN = "browser-notices-seen"; // the newest notice that some page of this browser has shown

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // storage may be refused; then nothing is shown
  }
}

function show({ unread, newest, quiet }) {
  const count = bell.querySelector("[data-unread]");
  count.textContent = unread > 99 ? "99+" : unread;
  count.hidden = unread === 0;
  if (quiet || stored(ON) !== "on" || !("Notification" in window) || Notification.permission !== "granted") return;
  const seen = Number(stored(SEEN) ?? 0);
  const fresh = newest.filter(({ id }) => id > seen);
  if (!fresh.length) return;
  localStorage.setItem(SEEN, fresh[0].id);
  for (const { id, title, text } of fresh) {
    // With the same tag, the notification of another page of this browser is replaced instead of repeated.
    const shown = new Notification(title, { body: text, tag: `schedulearn-notice-${id}` });
    shown.onclick = () => {
      window.focus();
      location.assign(`/notices/${id}/open`);
    };
  }
}

async function refresh() {
  const answer = await fetch(bell.dataset.unread, { headers: { Accept: "application/json" } }).catch(() => null);
  if (answer?.ok && !answer.redirected) show(await answer.json());
}

if (bell) document.addEventListener("live-notices", refresh);
