"""Opening what hostile code may have left: nothing outside, nothing that is no file, and never waiting."""

import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.host.node_files import (
    FolderWalk,
    NodeFiles,
    UnsafeFileError,
    disk_usage,
    open_beneath,
    read_beneath,
    read_json_beneath,
    read_own_json,
    safe_name,
    write_atomic,
    write_json,
)
from tests.runners.conftest import as_nobody


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_text("file")
    (folder / "deep/file").write_text("deep")
    return folder


def test_files_beneath_are_opened(folder: Path) -> None:
    assert read_beneath(folder, "file") == b"file"
    assert read_beneath(folder, "deep/file") == b"deep"
    assert read_beneath(folder, "file", 2) == b"fi"
    assert read_beneath(folder, "absent") is None


@pytest.mark.parametrize(
    "path", ["../secret", "deep/../../secret", "/etc/passwd", "", ".", "deep/", "deep//file", "file\0"]
)
def test_no_path_leads_out(folder: Path, path: str) -> None:
    with pytest.raises(UnsafeFileError):
        open_beneath(folder, path)


@given(st.lists(st.sampled_from(["..", ".", "", "deep", "file", "link", "back", "secret"]), min_size=1, max_size=5))
def test_nothing_but_our_own_files_is_ever_read(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    top = tmp_path_factory.mktemp("top")
    (top / "secret").write_text("secret")
    folder = top / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_text("ours")
    (folder / "deep/file").write_text("ours")
    (folder / "deep/link").symlink_to(top / "secret")
    (folder / "back").symlink_to(top)
    (folder / "link").symlink_to("file")
    assert read_beneath(folder, "/".join(parts)) in (None, b"ours")


def test_links_pipes_sockets_and_folders_are_refused_without_waiting(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "inner").symlink_to("file")
    (folder / "deeplink").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        results: dict[str, bytes | None] = {}

        def read() -> None:
            for name in ("link", "inner", "deeplink/secret", "pipe", "socket", "deep"):
                results[name] = read_beneath(folder, name)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive(), "it waits for a pipe"
    assert set(results.values()) == {None}


def test_a_folder_that_is_itself_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert read_beneath(tmp_path / "alias", "file") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_hard_link_to_anothers_file_is_refused_and_to_an_own_one_allowed(folder: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "secret", folder / "stolen")
    os.link(folder / "file", folder / "twin")
    for path in (folder, folder / "file"):
        os.chown(path, 12_345, 12_345)
    assert read_beneath(folder, "stolen") is None
    assert read_beneath(folder, "twin") == b"file"


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"[1]", b"7", b"[" * 60_000, b"\xff\xfe", b'{"a": 1' + b" " * 100_000 + b"}"]
)
def test_hostile_json_is_an_empty_object(folder: Path, content: bytes) -> None:
    (folder / "exit.json").write_bytes(content)
    assert read_json_beneath(folder, "exit.json") == {}


def test_a_walk_sees_regular_files_and_follows_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    assert sorted(found.path for found in FolderWalk(folder)) == ["deep/file", "file"]
    assert list(FolderWalk(tmp_path / "absent")) == []


def test_a_walk_is_bounded_in_breadth_and_depth(folder: Path) -> None:
    for number in range(50):
        (folder / f"f{number}").touch()
    walk = FolderWalk(folder, max_entries=20)
    assert len(list(walk)) <= 20 and not walk.complete
    deep = folder
    for _ in range(80):
        deep = deep / "d"
        deep.mkdir()
    walk = disk_usage(folder)
    assert not walk.complete


@pytest.mark.parametrize("rights", [0o000, 0o400])
def test_a_folder_closed_to_an_agent_that_is_not_root_is_not_overlooked(tmp_path: Path, rights: int) -> None:
    with as_nobody(tmp_path) as home:
        (home / "closed").mkdir()
        (home / "closed/hoard").write_bytes(b"1")
        assert disk_usage(home).complete
        (home / "closed").chmod(rights)
        assert not disk_usage(home).complete


def test_disk_usage_counts_blocks_and_names(folder: Path) -> None:
    before = disk_usage(folder).disk_bytes
    (folder / "data").write_bytes(b"\1" * 1_000_000)
    with open(folder / "hole", "wb") as file:
        file.truncate(1 << 40)
    for number in range(10):
        (folder / f"empty{number}").touch()
    used = disk_usage(folder).disk_bytes - before
    assert 1_000_000 + 11 * 4096 <= used < 1_200_000


def test_what_is_replaced_is_whole_and_private_when_asked(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_atomic(tmp_path / "open", b"1")
        write_json(tmp_path / "token", {"a": 1}, 0o600)
    finally:
        os.umask(old)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644, "a job's user must be able to read its control files"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert read_own_json(tmp_path / "token") == {"a": 1}
    (tmp_path / "token").write_text('{"a"')
    assert read_own_json(tmp_path / "token") is None
    assert read_own_json(tmp_path / "absent") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["open", "token"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0", "x" * 201])
def test_a_containers_name_is_one_name(name: str) -> None:
    with pytest.raises(ValueError):
        safe_name(name)


def test_a_nodes_token_is_not_readable_by_others(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "home")
    files.make()
    files.make()
    assert files.home.stat().st_mode & 0o077 == 0
