"""The program: find the commit of a branch, fetch it, write its files as an archive.

Its argument is a plan, a JSON file (``fetch.py`` has its keys). What it prints is the log; what it found is in ``result.json``
of its folder. No work tree is checked out.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from runners.sources.inside.archive import MAX_NAMES, Archive, readable
from runners.sources.inside.git import Failed, Repository, end_of, masked, say, ssh_command, step, variables

OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
MAX_MEMORY_BYTES = 4 * 2**30
HISTORY = 500
"""How many commits are looked at to see whether the branch was rewritten."""


# --- the branch -------------------------------------------------------------------------------------------------------


def scan_host_key(plan: dict[str, Any]) -> str:
    """Return the key of the host, as ``ssh-ed25519 AAAA...``, without signing in; empty if it did not answer."""
    found = Path(plan["work"]) / "scanned_hosts"
    first = (  # of the same option twice, ssh takes the first
        *("-o", f"UserKnownHostsFile={found}", "-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=no"),
        *("-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=none"),
        *("-o", "HostKeyAlgorithms=ssh-ed25519,ecdsa-sha2-nistp256,rsa-sha2-512,rsa-sha2-256"),
    )
    place = ("-p", str(plan["port"]), "-l", plan["user"], "-T", "--", plan["host"], "true")
    command = [*ssh_command(plan, *first), *place]
    with tempfile.TemporaryFile() as errors:  # a server may send a banner without an end
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=variables(plan),
            timeout=120,
            check=False,
        )
        output = masked(end_of(errors), plan)
    try:
        line = found.read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        raise Failed(failure="git", output=output) from None
    return " ".join(line.split()[1:3])


def head_of(repository: Repository, branch: str) -> str:
    """Return the commit of a branch on the server."""
    ref = f"refs/heads/{branch}"
    listed, _ = repository.transfer("ls-remote", "--heads", "--", repository.address, ref)
    for line in listed.decode(errors="replace").splitlines():
        commit, _, name = line.partition("\t")
        if name == ref and OBJECT.fullmatch(commit):
            return commit
    listed, _ = repository.transfer("ls-remote", "--heads", "--", repository.address)
    names = [line.partition("\trefs/heads/")[2] for line in listed.decode(errors="replace").splitlines()]
    raise Failed(failure="no_branch", branches=sorted(filter(None, names))[:MAX_NAMES], count=len(names))


def was_rewritten(plan: dict[str, Any], known: str, commit: str) -> bool:
    """Return whether the commit fetched before is no longer in the history of the branch. False also where that is unknown.

    Only commits are fetched, no files, from servers that can do that.
    """
    history = Repository(plan, Path(plan["work"]) / "history.git", plan["address"])
    try:
        history.make(commit)
        history.fetch(f"refs/heads/{plan['branch']}", "--filter=tree:0", f"--depth={HISTORY}")
        listed = history.read("rev-list", f"--max-count={HISTORY + 1}", "refs/heads/fetched").decode().split()
    except Failed:
        return False
    is_whole = not (history.folder / "shallow").exists()
    return known not in listed and is_whole


def facts_of(repository: Repository, commit: str) -> dict[str, Any]:
    """Return author, subject and time of a commit."""
    head, _, message = repository.read("cat-file", "commit", commit).partition(b"\n\n")
    found = {"author": "", "subject": "", "committed_at": 0}
    for line in head.decode(errors="replace").split("\n"):
        if line.startswith("author "):
            found["author"] = line[7:].partition(" <")[0][:200]
        elif match := re.search(r"^committer .*> (\d{1,12}) [+-]\d{4}$", line):
            found["committed_at"] = int(match[1])
    paragraph = message.decode(errors="replace").strip().split("\n\n")[0]
    found["subject"] = " ".join(paragraph.split())[:200]
    return found


# --- the whole --------------------------------------------------------------------------------------------------------


def fetch(plan: dict[str, Any]) -> dict[str, Any]:
    """Fetch the commit of the branch, unless it is the one that is known, and write its files. Returns what it is."""
    work = Path(plan["work"])
    repository = Repository(plan, work / "repository.git", plan["address"])
    is_ssh = plan["address"].startswith("ssh://")
    step("asking")
    if is_ssh and not plan["host_key_kind"]:
        raise Failed(failure="host_key_unknown", host_key=scan_host_key(plan))
    try:
        head = head_of(repository, plan["branch"])
    except Failed as error:
        if is_ssh and "Host key verification failed" in error.found.get("output", ""):
            raise Failed(failure="host_key_changed", host_key=scan_host_key(plan)) from None
        raise
    say(f"The branch {plan['branch']} is at {head}.")
    if head == plan["known"]:
        return {"commit": head, "unchanged": True}
    repository.make(head)
    step("fetching")
    limit = f"--filter=blob:limit={plan['max_file_bytes'] + 1}"
    commit = repository.fetch(f"refs/heads/{plan['branch']}", "--depth=1", limit)
    facts = facts_of(repository, commit)
    rewritten = False
    if plan["known"] and repository.filters:
        step("history")
        rewritten = was_rewritten(plan, plan["known"], commit)
    step("packing")
    with (work / "archive.tar.gz").open("wb") as file:
        archive = Archive(plan, file, facts["committed_at"])
        archive.add_tree(repository, commit, "", 0)
        archive.tar.close()
    pointers = [readable(pointer.path) for pointer in archive.pointers] if not plan["extras"] else []
    return {
        "commit": commit,
        **facts,
        "rewritten": rewritten,
        "pointers": pointers[:MAX_NAMES],
        "pointer_count": len(pointers),
        "left_out": [readable(path) for path in archive.left_out[:MAX_NAMES]],
        "left_out_count": len(archive.left_out),
    }


def limit_memory() -> None:
    """Limit what each process may allocate, also on machines where nothing limits the sandbox. Packs are mapped, and do not count."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    os.umask(0o077)
    limit_memory()
    try:
        found = fetch(plan)
    except Failed as error:
        found = error.found
    except subprocess.TimeoutExpired:
        found = {"failure": "git", "output": "The host did not answer in time."}
    (Path(plan["work"]) / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
