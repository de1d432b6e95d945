// The form of a new environment: what only a full environment has is shown when that is chosen as the base.

const base = document.querySelector("select[name=base]");
const rest = document.querySelector("[data-full]");

function show() {
  rest.hidden = base.value !== "full";
  if (!rest.hidden) return;
  rest.querySelector("[name=horovod]").checked = false;
  rest.querySelector("[name=python]").value = "";
}

if (base && rest) {
  base.addEventListener("change", show);
  show();
}
