// What was dropped or chosen, as a flat list of {path, file}; what no run needs is left out before it is sent.

// As in portal/projects/unpacking/names.py, which also finds environments and W&B's runs, and lists what was left out.
const LEFT_OUT_FOLDERS = new Set([
  "__MACOSX", "__pycache__", ".git", ".hg", ".svn", ".ipynb_checkpoints", ".venv", ".idea", ".vscode",
  ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".eggs", "node_modules",
]);
const LEFT_OUT_FILES = new Set([".DS_Store", "Thumbs.db", "desktop.ini", "Icon\r"]);
const ENVIRONMENT_MARKS = new Set(["pyvenv.cfg"]);

// As in portal/projects/unpacking/program.py, which looks into the content as well.
const ENDINGS = [
  ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".py", ".sh", ".ipynb",
];
const ARCHIVE_BEGINNINGS = [[0x50, 0x4b, 3, 4], [0x50, 0x4b, 5, 6], [0x1f, 0x8b], [0x42, 0x5a, 0x68], [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0]];

/** A sentence on why a single file cannot be a code version; empty for others, and for an archive of any name. */
export async function refuseType(kept) {
  const [{ path, file }] = kept;
  if (kept.length > 1 || path.includes("/") || ENDINGS.some((ending) => path.toLowerCase().endsWith(ending))) return "";
  const head = new Uint8Array(await file.slice(0, 262).arrayBuffer());
  const isTar = String.fromCharCode(...head.slice(257)) === "ustar";
  if (isTar || ARCHIVE_BEGINNINGS.some((bytes) => bytes.every((byte, place) => head[place] === byte))) return "";
  return `${path} is none of .zip, .tar, .tar.gz, .tar.bz2, .tar.xz, .py, .ipynb and .sh. Pack the folder as .zip and send that.`;
}

function isLeftOut(path) {
  const parts = path.split("/");
  return parts.some((part) => LEFT_OUT_FOLDERS.has(part)) || LEFT_OUT_FILES.has(parts.at(-1));
}

/** All files of a drop; stops reading folders once there are more than a project may have. */
export async function gather(transfer, most) {
  // Entries must be taken before anything is awaited: the browser empties the list then.
  const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const found = [];
  for (const entry of entries) {
    if (entry instanceof File) found.push({ path: entry.name, file: entry });
    else if (entry) await walk(entry, "", found, most);
  }
  return found;
}

async function walk(entry, above, found, most) {
  const path = above + entry.name;
  if (found.length > most || isLeftOut(path)) return;
  if (entry.isFile) {
    found.push({ path, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return; // a reader gives a hundred at a time
    for (const child of some) await walk(child, `${path}/`, found, most);
  }
}

/** What to send, or a sentence on why nothing is. */
export function judge(found, limits) {
  const environments = found.filter(({ path }) => ENVIRONMENT_MARKS.has(path.split("/").at(-1))).map(({ path }) => path.slice(0, path.lastIndexOf("/") + 1)).filter(Boolean);
  const kept = found.filter(({ path }) => !isLeftOut(path) && !environments.some((folder) => path.startsWith(folder)));
  const bytes = kept.reduce((sum, { file }) => sum + file.size, 0);
  const mib = Math.round(limits.bytes / 1024 / 1024);
  if (!kept.length) return { kept, refusal: "There are no files in it." };
  if (kept.length > limits.files) {
    return { kept, refusal: `There are more than ${limits.files.toLocaleString("en")} files in it. Leave out data and installed packages, or pack it as .zip.` };
  }
  if (bytes > limits.bytes) {
    return { kept, refusal: `It is larger than ${mib} MiB. Leave data out, and put it into a dataset.` };
  }
  return { kept, refusal: "" };
}
