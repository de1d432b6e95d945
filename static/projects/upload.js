// Uploads by drag and drop or by a dialog, folders included, with progress. Without scripts the form sends files itself.

import { gather, judge, refuseType } from "./gather.js";

const form = document.querySelector("form[data-upload]");
if (form) start(form);

function start(form) {
  const limits = { bytes: Number(form.dataset.mostMib) * 1024 * 1024, files: Number(form.dataset.mostFiles) };
  const drop = form.querySelector("[data-drop]");
  const files = form.querySelector("input[name=files]");
  const folder = form.querySelector("input[data-folder]");
  let sending = null;
  files.required = false;

  form.querySelector("[data-choose=files]").addEventListener("click", () => files.click());
  form.querySelector("[data-choose=folder]").addEventListener("click", () => folder.click());
  files.addEventListener("change", () => offer([...files.files].map((file) => ({ path: file.name, file }))));
  folder.addEventListener("change", () => offer([...folder.files].map((file) => ({ path: file.webkitRelativePath || file.name, file }))));
  form.addEventListener("submit", (event) => event.preventDefault());  // Enter in the note

  // The whole page takes a drop, so that a near miss does not open the file in the browser.
  let depth = 0;
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth += 1;
    drop.classList.add("over");
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) drop.classList.remove("over");
  });
  addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    drop.classList.remove("over");
    if (sending) return;
    try {
      await offer(await gather(event.dataTransfer, limits.files));
    } catch (error) {
      refuse(`It could not be read: ${error.message}. Pack it as .zip and drop that.`);
    }
  });

  async function offer(found) {
    if (sending) return;
    const { kept, refusal } = judge(found, limits);
    files.value = folder.value = "";
    const becomesFile = form.querySelector("[name=keep_others]")?.checked;  // of the newest version
    const reason = refusal || (becomesFile ? "" : await refuseType(kept));
    if (reason) refuse(reason);
    else if (!sending) send(kept);
  }

  function send(kept) {
    const data = new FormData();
    data.append("csrfmiddlewaretoken", form.querySelector("[name=csrfmiddlewaretoken]").value);
    data.append("note", form.querySelector("[name=note]").value);
    for (const name of ["keep_others", "gitignore"]) {
      if (form.querySelector(`[name=${name}]`)?.checked) data.append(name, "1");
    }
    data.append("paths", JSON.stringify(kept.map(({ path }) => path)));
    for (const { path, file } of kept) data.append("files", file, path.split("/").pop());
    const request = new XMLHttpRequest();
    const name = kept.length === 1 ? kept[0].path : `${kept.length} files of ${kept[0].path.split("/")[0]}`;
    request.open("POST", form.action);
    request.setRequestHeader("Accept", "application/json");
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) show(`Sending ${name}`, (100 * event.loaded) / event.total);
    });
    let arrived = false;
    request.upload.addEventListener("load", () => {
      arrived = true;
      show("Looking at what is in it", null);
    });
    request.addEventListener("load", () => answered(request));
    request.addEventListener("error", () => refuse("The connection broke. Try again."));
    request.addEventListener("abort", () => refuse(arrived ? "Stopped, but it had arrived: reload the page to see whether it became a version." : "Stopped. Nothing was stored."));
    sending = request;
    form.classList.add("busy");
    hide("[data-error]");
    show(`Sending ${name}`, 0);
    say(`Sending ${name}`);
    request.send(data);
  }

  form.querySelector("[data-stop]").addEventListener("click", () => sending?.abort());

  function answered(request) {
    let answer = null;
    try {
      answer = JSON.parse(request.responseText);
    } catch {
      // a page: signed out meanwhile, or a proxy's own refusal
    }
    if ([200, 201].includes(request.status) && answer?.url) {
      say(answer.is_new ? "Uploaded" : "Nothing has changed since the newest version");
      location.assign(answer.url);
    } else if (answer?.error?.message) {
      refuse(answer.error.message);
    } else if (request.status === 413) {
      refuse("It is larger than the server accepts. Leave out data.");
    } else {
      refuse("The server did not accept it. Reload the page, sign in again if asked, and try once more.");
    }
  }

  function refuse(sentence) {
    sending = null;
    form.classList.remove("busy");
    hide("[data-progress]");
    const box = form.querySelector("[data-error]");
    box.querySelector("[data-sentence]").textContent = sentence;
    box.hidden = false;
  }

  function show(what, percent) {
    const box = form.querySelector("[data-progress]");
    const bar = box.querySelector("progress");
    box.hidden = false;
    box.querySelector("[data-what]").textContent = percent === null ? `${what}...` : `${what}: ${Math.floor(percent)} %`;
    if (percent === null) bar.removeAttribute("value");
    else bar.value = percent;
  }

  function hide(selector) {
    form.querySelector(selector).hidden = true;
  }

  function say(text) {
    form.querySelector("[data-announcement]").textContent = text;
  }
}

function hasFiles(event) {
  return [...(event.dataTransfer?.types ?? [])].includes("Files");
}
