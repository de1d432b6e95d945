// Switches notifications of this browser on and off: the browser asks once, and bell.js shows them while a page is open.

const ON = "browser-notices";
const SEEN = "browser-notices-seen";
const button = document.querySelector("[data-browser-notices]");
const state = document.querySelector("[data-browser-state]");

function isOn() {
  return localStorage.getItem(ON) === "on" && Notification.permission === "granted";
}

function draw() {
  button.hidden = Notification.permission === "denied"; // which only the settings of the browser change
  button.querySelector("[data-label]").textContent = isOn() ? "Switch off in this browser" : "Switch on in this browser";
  state.textContent = isOn()
    ? "On in this browser."
    : Notification.permission === "denied"
      ? "This browser refuses them. Permit notifications of this site in its settings, then reload this page."
      : "Off in this browser.";
}

async function toggle() {
  if (isOn()) {
    localStorage.setItem(ON, "off");
  } else if ((await Notification.requestPermission()) === "granted") {
    const { unread } = document.querySelector("[data-bell]").dataset;
    const { newest } = await (await fetch(unread)).json();
    localStorage.setItem(SEEN, newest[0]?.id ?? 0); // only what comes from now on
    localStorage.setItem(ON, "on");
  }
  draw();
}

if ("Notification" in window && button) {
  button.addEventListener("click", toggle);
  draw();
} else if (state) {
  state.textContent = "This browser, or a connection without https://, does not offer them.";
}
