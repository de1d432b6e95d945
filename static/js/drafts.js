// Keeps what is typed in the longer forms (form[data-draft]) until it is stored, and restores it when the form is opened
// again: after a session that ended, an expired token or an error. The drafts are those of one tab and one user, and go
// with the tab, a successful submit or signing out. Hidden fields, files, passwords and what looks like one are not kept.
//
// The one hidden field that is kept has the stored values that the form showed when it was typed into (portal/stale_forms.py):
// when others have changed them since, the server says so once the restored form is submitted.

const user = document.body.dataset.user;
const prefix = `draft:${user}:`;
const SENT = "draft-sent";
const SKIPPED_TYPES = new Set(["hidden", "password", "file", "submit", "button", "reset", "image", "fieldset", "select-multiple"]);
const SECRET = new RegExp(
  [
    String.raw`^\s*(export\s+)?\w*(token|key|secret|password|passwd|passphrase|credentials?)(_\w+)?\s*=`, // WANDB_API_KEY=...
    String.raw`--?[\w-]*(token|key|secret|password)[=\s]+\S`, // --api-key ...
    String.raw`\bsl_\w{20}`, // a token of this portal
    String.raw`:\/\/[^\s/@]+:[^\s/@]+@`, // https://user:password@host
  ].join("|"),
  "i",
);

/** The text without the lines that look like passwords or tokens. */
function withoutSecrets(text) {
  const lines = text.split("\n");
  return lines.filter((line) => !SECRET.test(line)).join("\n");
}

function fields(form) {
  return [...form.elements].filter((field) => field.name && !SKIPPED_TYPES.has(field.type) && field.dataset.noDraft === undefined);
}

const isToggle = (field) => field.type === "checkbox" || field.type === "radio";
const nameOf = (field) => (isToggle(field) ? `${field.name}=${field.value}` : field.name);
const valueOf = (field) => (isToggle(field) ? field.checked : field.value);

function isChanged(field) {
  if (isToggle(field)) return field.checked !== field.defaultChecked;
  if (field.type === "select-one") return field.value !== initialOption(field);
  return field.value !== field.defaultValue;
}

function initialOption(select) {
  return ([...select.options].find((option) => option.defaultSelected) ?? select.options[0])?.value;
}

/** The name of a form's draft: the address that the form is sent to. */
const keyOf = (form) => {
  const { pathname, search } = new URL(form.getAttribute("action") || location.href, location.href);
  return prefix + pathname + search;
};

/** The hidden input with the stored values that a form shows, if it edits any. */
const shownOf = (form) => form.querySelector("input[type=hidden][name=shown_values]");

/** A draft: the values of the fields that were changed, the stored values then shown, and whether some text was omitted. */
const read = (key) => JSON.parse(sessionStorage.getItem(key) ?? '{"values": {}, "omitted": false}');

function save(form) {
  const key = keyOf(form);
  const { values } = read(key);
  let omitted = false;
  for (const field of fields(form)) {
    const name = nameOf(field);
    if (!isChanged(field) && !(name in values)) continue;
    const value = valueOf(field);
    const kept = isToggle(field) ? value : withoutSecrets(value);
    omitted ||= kept !== value;
    if (kept === "" && value !== "") delete values[name];
    else values[name] = kept;
  }
  const shown = shownOf(form)?.value;
  if (Object.keys(values).length || omitted) sessionStorage.setItem(key, JSON.stringify({ values, omitted, shown }));
}

/** The field in which the user typed before this script ran. */
function typedBefore() {
  const field = document.activeElement;
  return field?.form?.matches("form[data-draft]") && fields(field.form).includes(field) && isChanged(field) ? field : null;
}

/**
 * Restores the draft of a form, but for the field `typed`, which is newer. `sent` is the draft to whose submit this page is the
 * answer: its stored values are the newest.
 */
function restore(form, sent, typed) {
  const key = keyOf(form);
  const draft = read(key);
  const { values, omitted } = draft;
  const input = shownOf(form);
  const fresh = input?.value;
  if (key === sent && sessionStorage.getItem(key)) sessionStorage.setItem(key, JSON.stringify({ ...draft, shown: fresh }));
  const restored = [];
  for (const field of fields(form)) {
    const value = values[nameOf(field)];
    if (value === undefined || value === valueOf(field) || field === typed) continue;
    if (omitted && !isToggle(field) && value === withoutSecrets(valueOf(field))) continue; // this page still has all of it
    if (isToggle(field)) field.checked = value;
    else field.value = value;
    if (valueOf(field) !== value) continue; // an option that is no longer offered
    restored.push(field);
    const folded = field.closest("details:not([open])");
    if (folded) folded.open = true;
  }
  if (!restored.length) return;
  if (input && draft.shown && key !== sent) input.value = draft.shown;
  showNotice(form, key, omitted, fresh);
  addEventListener("load", () => announce(restored), { once: true });
}

/** Lets other scripts of the page see the values. */
function announce(changed) {
  for (const field of changed) field.dispatchEvent(new Event("change", { bubbles: true }));
}

function showNotice(form, key, omitted, fresh) {
  const notice = document.createElement("div");
  notice.className = "notice";
  notice.setAttribute("role", "status");
  const text = document.createElement("p");
  text.className = "grow";
  text.textContent =
    "Restored what you had typed. Nothing is saved yet." + (omitted ? " Lines that look like passwords or tokens were not kept." : "");
  const discard = document.createElement("button");
  discard.type = "button";
  discard.className = "button small";
  discard.textContent = "Discard";
  discard.addEventListener("click", () => {
    const changed = fields(form).filter(isChanged);
    sessionStorage.removeItem(key);
    form.reset();
    if (shownOf(form)) shownOf(form).value = fresh;
    announce(changed);
    notice.remove();
  });
  notice.append(text, discard);
  form.prepend(notice);
}

/** Forgets the draft that was sent, if this page shows that it was stored; returns it if this page refuses it. */
function settle() {
  const sent = sessionStorage.getItem(SENT);
  sessionStorage.removeItem(SENT);
  const [visit] = performance.getEntriesByType("navigation");
  const refused = visit?.responseStatus ? visit.responseStatus >= 400 : document.querySelector(".notice.error, [data-error-page]") !== null;
  if (!sent?.startsWith(prefix) || visit?.type !== "navigate") return null;
  if (refused) return sent;
  sessionStorage.removeItem(sent);
  return null;
}

function forgetAll() {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(prefix)) sessionStorage.removeItem(key);
}

function start() {
  const sent = settle();
  if (!user) return;
  const typed = typedBefore();
  for (const form of document.querySelectorAll("form[data-draft]")) restore(form, sent, typed);
  if (typed) save(typed.form);
  for (const type of ["input", "change"]) {
    document.addEventListener(type, (event) => {
      if (event.target.form?.matches("form[data-draft]")) save(event.target.form);
    });
  }
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    if (event.target.matches("form[data-draft]")) {
      save(event.target);
      sessionStorage.setItem(SENT, keyOf(event.target));
    } else if (event.target.matches("form[data-sign-out]")) forgetAll();
  });
}

try {
  start();
} catch (error) {
  if (!(error instanceof DOMException)) throw error; // storage is switched off or full: forms work without drafts
}
