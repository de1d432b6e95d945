"""Where a job may find a dataset in addition to its own folder: paths that hide neither code nor what we put there."""

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from portal.jobs.dataset_use import MAX_DATASET_PATH

DATA, DATA_ELSEWHERE = "../data", "../datasets"
"""The folder of all datasets, beside that of the code; where it is when a dataset takes its place."""
MAX_DEPTH = 8
EMPTY_FILES = frozenset({".gitignore", ".gitkeep", ".keep"})
"""Files that only keep a folder in Git."""
TAKEN = frozenset(
    {
        *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "nix", "opt", "proc"),
        *("root", "run", "sbin", "srv", "sys", "tmp", "usr", "var"),
        *("cache", "checkpoints", "copies", "datasets", "inputs", "outputs", "secrets", "workspace"),
        *("control", "network", "scribe"),
    }
)
"""Names beside the folder of the code that are those of the system, of a job's other folders, or of the agent."""


def path_problem(path: str, code_files: Collection[str]) -> str:
    """Return why a job cannot find a dataset at a path, as a sentence; empty if it can. ``path`` is not empty."""
    if path != path.strip() or not path.isprintable() or "\\" in path or len(path) > MAX_DATASET_PATH:
        return f"A path has at most {MAX_DATASET_PATH} printable characters, no backslash, and no space at its ends."
    if path.startswith("/"):
        return f"“{path}” begins with a slash. Give the path from the folder of the code, such as data or ../data."
    parts = path.split("/")
    inside = parts[1:] if parts[0] == ".." else parts
    if not inside or any(part in ("", ".", "..") for part in inside):
        return f"“{path}” is no folder beneath that of the code, or beside it, such as data or ../data."
    if len(parts) > MAX_DEPTH:
        return f"“{path}” has more than {MAX_DEPTH} folders."
    if parts[0] == "..":
        if inside[0] in TAKEN or inside[0].startswith(".") or inside[0].endswith(".json"):
            return f"“../{inside[0]}” is taken. Choose another name, such as ../data."
        return ""
    return _problem_with_code(path, code_files)


def _problem_with_code(path: str, code_files: Collection[str]) -> str:
    for file in code_files:
        if file == path or path.startswith(f"{file}/"):
            return f"“{file}” is a file of the code. Choose another path."
        if file.startswith(f"{path}/") and PurePosixPath(file).name not in EMPTY_FILES:
            return f"The code has “{file}”, which a dataset at “{path}” would hide. Choose another path, or remove it."
    return ""


def place_problem(names: Iterable[str], paths: Collection[str]) -> str:
    """Return that two datasets of a job would be in one place, or one inside the other; empty if not."""
    folder = DATA_ELSEWHERE if DATA in paths else DATA
    places = sorted([*(f"{folder}/{name}" for name in names), *paths])
    for one in places:
        for other in places:
            if other is not one and f"{other}/".startswith(f"{one}/"):
                return f"Two datasets would be at “{one}”. Choose other paths."
    return ""
