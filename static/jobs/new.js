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

// a row for one more dataset, as soon as the last one is used
const MAX_DATASETS = 20;
form.querySelector(".datasets")?.addEventListener("input", (event) => {
  const rows = [...event.currentTarget.querySelectorAll(".dataset-row")];
  if (event.target.closest(".dataset-row") !== rows.at(-1) || !event.target.value || rows.length >= MAX_DATASETS) return;
  const row = rows.at(-1).cloneNode(true), number = rows.length;
  for (const part of row.querySelectorAll("input, select")) {
    part.name = part.name.replace(/^datasets-\d+/, `datasets-${number}`);
    part.ariaLabel = part.ariaLabel.replace(/\d+$/, number + 1);
    if (part.id) part.id = part.id.replace(/\d+$/, number);
    part.value = "";
  }
  event.currentTarget.append(row);
});
