"""The parts of the program inside that decide: addresses of submodules, credentials, pointers."""

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runners.sources.inside import archive
from runners.sources.inside import git as inside_git
from runners.sources.inside.archive import Archive, read_pointer, records
from runners.sources.inside.credential import answer
from runners.sources.inside.git import Failed, Repository
from runners.sources.inside.submodules import host_of, is_among, resolved

PARENT = "https://git.example.org/lab/train.git"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("../net.git", "https://git.example.org/lab/net.git"),
        ("../../other/net", "https://git.example.org/other/net"),
        ("./part", "https://git.example.org/lab/train.git/part"),
        ("https://github.com/lab/net.git", "https://github.com/lab/net.git"),
        ("git@github.com:lab/net.git", "ssh://git@github.com/lab/net.git"),
        ("ext::sh -c 'touch /tmp/x'", ""),
        ("file:///etc/passwd", ""),
        ("/etc/passwd", ""),
        ("git://github.com/lab/net", ""),
        ("http://github.com/lab/net", ""),
        ("--upload-pack=touch", ""),
        ("-u./payload", ""),
        ("ssh://-oProxyCommand=x/y", ""),
        ("ssh://-l@example.org/y", ""),
        ("ssh://-x/y", ""),
        ("https://github.com/-x", ""),
        ("https://robot:t@github.com/x", ""),
        ("../../../../../etc", "https://git.example.org/etc"),
        ("https://github.com/a\nb", ""),
        ("", ""),
    ],
)
def test_addresses_of_submodules(address: str, found: str) -> None:
    assert resolved(PARENT, address) == found


def test_hosts_of_submodules() -> None:
    assert host_of("https://git.example.org/x") == "git.example.org:443"
    assert host_of("ssh://git@git.example.org:2222/x") == "git.example.org:2222"
    rules = ["git.example.org:443", "*.lab.org:22"]
    assert is_among(rules, "git.example.org:443") and is_among(rules, "a.lab.org:22")
    assert not is_among(rules, "git.example.org:22") and not is_among(rules, "lab.org:22")
    assert not is_among(rules, "evil-git.example.org:443")


def test_credentials_go_to_their_host_alone() -> None:
    known = {"host": "git.example.org:8443", "user": "robot", "token": "t0ken"}
    asked = {"protocol": "https", "host": "git.example.org:8443", "path": "lab/train.git"}
    assert answer(asked, known) == "username=robot\npassword=t0ken\n"
    for other in ({"host": "git.example.org"}, {"host": "evil.org"}, {"protocol": "http"}, {"protocol": "ssh"}):
        assert answer(asked | other, known) == ""
    assert answer(asked, known | {"token": ""}) == ""


def test_pointers_of_lfs() -> None:
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
    pointer = read_pointer(text, "100644", "weights.bin")
    assert pointer is not None and (pointer.name, pointer.size) == ("a" * 64, 12345)
    assert read_pointer(b"version https://git-lfs.github.com/spec/v1\nmore", "100644", "x") is None


# --- output without an end --------------------------------------------------------------------------------------------


class LocalRepository(Repository):
    """A repository on this machine, as after its fetch."""

    def __init__(self, folder: Path) -> None:
        plan: dict[str, Any] = {
            "work": str(folder),
            "private": str(folder),
            "certificates": "",
            "host": "git.example.org",
            "host_key_kind": "",
            "max_file_bytes": 2**20,
            "max_tree_bytes": 2**20,
            "extras": False,
        }
        super().__init__(plan, folder / "repository.git", PARENT)
        self.read("init", "--quiet", "--bare", str(self.folder))

    def write(self, *words: str, text: str) -> str:
        return self.read(*words, stdin=text.encode()).decode().strip()

    def tree(self, *rows: str) -> str:
        return self.write("mktree", "--missing", text="".join(f"{row}\n" for row in rows))

    def bomb(self, levels: int, leaf: str) -> str:
        """Return a tree with 40 equal trees of 40 equal trees ... of ``leaf``, the row of a tree."""
        tree = self.tree(leaf)
        for _ in range(levels):
            tree = self.tree(*(f"040000 tree {tree}\td{number}" for number in range(40)))
        return self.write("commit-tree", tree, "-m", "Boom", text="")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRepository:
    variables = inside_git.variables
    own = {f"GIT_{role}_{name}": "ada@example.org" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}
    monkeypatch.setattr(inside_git, "variables", lambda plan: variables(plan) | own)
    return LocalRepository(tmp_path)


def test_a_commit_with_more_files_than_any_memory_holds(repository: LocalRepository) -> None:
    blob = repository.write("hash-object", "-w", "--stdin", text="x")
    commit = repository.bomb(8, f"100644 blob {blob}\tfile")
    packed = Archive(repository.plan, io.BytesIO(), 0)
    with pytest.raises(Failed) as error:
        packed.add_tree(repository, commit, "", 0)
    assert error.value.found == {"failure": "too_many_files", "limit": archive.MAX_ENTRIES}
    assert packed.entries == archive.MAX_ENTRIES + 1, "nothing beyond the limit was read"


def test_a_walk_without_an_end_is_stopped(repository: LocalRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal trees without files print nothing, and take for ever."""
    commit = repository.bomb(8, f"040000 tree {repository.tree()}\tempty")
    monkeypatch.setattr(inside_git, "LOCAL_SECONDS", 0.5)
    with pytest.raises(Failed, match="git") as error:
        Archive(repository.plan, io.BytesIO(), 0).add_tree(repository, commit, "", 0)
    assert error.value.found["output"] == "git ls-tree was stopped."


def test_output_beyond_the_limit_is_refused(repository: LocalRepository) -> None:
    blob = repository.write("hash-object", "-w", "--stdin", text="x" * 3_000_000)
    assert len(repository.read("cat-file", "blob", blob)) == 3_000_000
    with pytest.raises(Failed) as error:
        repository.read("cat-file", "blob", blob, limit=2**20)
    assert error.value.found["output"] == "git cat-file printed more than 1 MiB."
    with pytest.raises(Failed) as error:
        repository.read("cat-file", "blob", "0" * 40)
    assert "0000" in error.value.found["output"]


def test_no_process_is_left(repository: LocalRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start: Any = subprocess.Popen

    def recorded(*args: Any, **options: Any) -> Any:
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(inside_git.subprocess, "Popen", recorded)
    blob = repository.write("hash-object", "-w", "--stdin", text="x" * 3_000_000)
    with pytest.raises(Failed):
        repository.read("cat-file", "blob", blob, limit=9)
    assert started and all(process.returncode is not None for process in started)


def test_paths_are_read_as_they_come() -> None:
    assert list(records(io.BytesIO(b"a\0bc\0"))) == [b"a", b"bc"]
    assert list(records(io.BytesIO(b""))) == []
    long = b"x" * archive.READ_BYTES
    assert list(records(io.BytesIO(long + b"y\0z\0"))) == [long + b"y", b"z"]


def test_paths_beyond_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_PATHS_BYTES", 2 * archive.READ_BYTES)
    with pytest.raises(Failed, match="too_many_files"):
        list(records(io.BytesIO(b"x" * (3 * archive.READ_BYTES))))
