"""Code is fetched once, believed only by its hash, and unpacked without leaving its folder."""

import hashlib
import io
import os
import stat
import tarfile
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from runners.agent.code_store import CodeStore, unpack
from runners.agent.portal_client import PortalClient, PortalRefusedError, PortalUnavailableError
from runners.runtime import CreateError
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import give_code, tar_of


def tar_with(*members: tuple[str, bytes, dict[str, object]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, fields in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "box/workspace"
    workspace.mkdir(parents=True)
    return workspace


def unpacked(tmp_path: Path, workspace: Path, tar: bytes) -> None:
    (tmp_path / "code.tar").write_bytes(tar)
    unpack(tmp_path / "code.tar", workspace)


def test_files_and_folders_come_out_with_modes_of_ours(tmp_path: Path, workspace: Path) -> None:
    tar = tar_with(
        ("pkg", b"", {"type": tarfile.DIRTYPE, "mode": 0o000}),
        ("pkg/run.sh", b"#!", {"mode": 0o4755, "uid": 0}),
        ("./train.py", b"print()", {"mode": 0o600}),
        ("new/deep/x", b"x", {}),
    )
    unpacked(tmp_path, workspace, tar)
    assert (workspace / "train.py").read_bytes() == b"print()"
    assert (workspace / "new/deep/x").read_bytes() == b"x"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in workspace.rglob("*")}
    assert (modes["run.sh"], modes["train.py"], modes["pkg"]) == (0o755, 0o644, 0o755)


@pytest.mark.parametrize(
    "member",
    [
        ("../out", b"x", {}),
        ("/etc/out", b"x", {}),
        ("a/../../out", b"x", {}),
        ("a//b", b"x", {}),
        ("link", b"", {"type": tarfile.SYMTYPE, "linkname": "../.."}),
        ("hard", b"", {"type": tarfile.LNKTYPE, "linkname": "a"}),
        ("pipe", b"", {"type": tarfile.FIFOTYPE}),
        ("device", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}),
        ("/".join("d" * 90), b"x", {}),
        ("n" * 300, b"x", {}),
    ],
    ids=lambda member: member[0][:10],
)
def test_whatever_is_not_a_plain_file_under_a_plain_name_is_refused(
    tmp_path: Path, workspace: Path, member: tuple
) -> None:
    with pytest.raises(CreateError):
        unpacked(tmp_path, workspace, tar_with(("a", b"a", {}), member))
    assert [path.name for path in workspace.parent.iterdir()] == ["workspace"]
    assert not any(path.is_symlink() for path in workspace.rglob("*"))


def test_a_name_twice_is_refused(tmp_path: Path, workspace: Path) -> None:
    with pytest.raises(CreateError, match="cannot be unpacked"):
        unpacked(tmp_path, workspace, tar_with(("a", b"1", {}), ("a", b"2", {})))


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path, workspace: Path) -> None:
    with pytest.raises(CreateError):
        unpacked(tmp_path, workspace, tar_with(("a", b"1", {}), ("a/b", b"2", {})))


@pytest.mark.parametrize("content", [b"", b"nonsense" * 100, tar_of({"a": b"x" * 5000})[:2000]])
def test_a_broken_archive_is_refused_with_a_sentence(tmp_path: Path, workspace: Path, content: bytes) -> None:
    with pytest.raises(CreateError, match="cannot be unpacked"):
        unpacked(tmp_path, workspace, content)


def test_two_containers_fetch_one_code_once(tmp_path: Path) -> None:
    with FakePortal() as portal:
        sha256 = give_code(portal)
        portal.slow_seconds = 0.2
        client = PortalClient(portal.url, "sln_fake")
        store = CodeStore(tmp_path, client)
        threads = [threading.Thread(target=store.fetch, args=(sha256,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert portal.requests[f"GET /agent/v1/code/{sha256}"] == 1
        assert store.fetch(sha256).read_bytes() == portal.code[sha256]
        client.close()


def test_what_does_not_match_its_hash_is_not_kept(tmp_path: Path) -> None:
    with FakePortal() as portal:
        sha256 = give_code(portal)
        portal.code[sha256] += b"\0"
        client = PortalClient(portal.url, "sln_fake")
        with pytest.raises(PortalUnavailableError, match="not the code"):
            CodeStore(tmp_path, client).fetch(sha256)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(PortalRefusedError, match="No such code"):
            CodeStore(tmp_path, client).fetch("0" * 64)
        client.close()


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "A" * 64, "a" * 63])
def test_a_hash_that_is_none_is_refused(tmp_path: Path, sha256: str) -> None:
    with pytest.raises(CreateError):
        CodeStore(tmp_path, None).fetch(sha256)  # type: ignore[arg-type]


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    class Portal:
        def fetch_code(self, sha256: str, into: BinaryIO, max_bytes: int) -> None:
            into.write(b"x" * 1000)

    names = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    store = CodeStore(tmp_path, Portal(), cache_bytes=2500)
    for number, name in enumerate(names[:2]):
        os.utime(store.fetch(name), (number, number))
    os.utime(store.fetch(names[0]), (10, 10))
    store.fetch(names[2])
    assert {path.stem for path in tmp_path.glob("*.tar")} == {names[0], names[2]}
