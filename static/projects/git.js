// Shows the fields for signing in by https only while the address is none of ssh, which is fetched with the deploy key.

const form = document.querySelector("form[data-git-source]");
const HTTPS_FIELDS = ["user", "token", "forget_token"];

function isSsh(address) {
  return /^ssh:\/\//i.test(address) || (!address.includes("://") && /^[^/\s]+:/.test(address));
}

/** Whether hiding a field would hide what the user has to see: an error, or a token that ssh would refuse. */
function isNeeded(input) {
  return input.getAttribute("aria-invalid") === "true" || (input.type === "password" && input.value !== "");
}

function draw() {
  const ssh = isSsh(form.elements.address.value.trim());
  for (const name of HTTPS_FIELDS) {
    const input = form.elements[name];
    if (input) input.closest(".field").hidden = ssh && !isNeeded(input);
  }
}

if (form) {
  form.addEventListener("input", draw);
  draw();
}
