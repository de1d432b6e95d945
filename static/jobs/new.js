// The submit form shows only the fields that its launcher uses. Without scripts all are there, with words on which is for what.

const form = document.querySelector(".job-form");

function show() {
  const launcher = form.querySelector("[name=launcher]:checked")?.value;
  for (const part of form.querySelectorAll("[data-shown-for]")) part.hidden = !part.dataset.shownFor.split(" ").includes(launcher);
}

form.addEventListener("change", (event) => {
  if (event.target.name === "launcher") show();
});
// the most can never be less than the least
form.min_gpus.addEventListener("input", () => {
  if (Number(form.max_gpus.value) < Number(form.min_gpus.value)) form.max_gpus.value = form.min_gpus.value;
});
show();
