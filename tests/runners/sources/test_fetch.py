"""Fetches from real Git hosts in bubblewrap: what comes, what is refused, and what a hostile repository can do."""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.host.egress import MACHINE_NETWORKS
from runners.messages.git_failures import (
    BadSubmodule,
    CertificateUnknown,
    HostInternal,
    HostKeyChanged,
    HostKeyUnknown,
    HostNotAllowed,
    KeyRefused,
    LargeFiles,
    NoBranch,
    NoRepository,
    RepositoryTooLarge,
    SubmoduleFailed,
    TokenRefused,
    TreeTooLarge,
)
from runners.sources.explaining import fingerprint
from tests.git_hosts import (
    HttpsHost,
    https_host,
    make_host_key,
    make_key,
    make_repository,
    own_address,
    ssh_host,
)
from tests.runners.sources.conftest import Fetcher

pytestmark = [pytest.mark.bubblewrap, pytest.mark.timeout(300)]
Trust = Callable[[HttpsHost], None]
CODE = {"train.py": "print(1)\n", "lib/net.py": "x = 1\n"}


def names(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return sorted(tar.getnames())


def read(content: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        file = tar.extractfile(f"{name}")
        assert file is not None
        return file.read()


# --- https ------------------------------------------------------------------------------------------------------------


def test_a_commit_by_https(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path)
    repository.commit(CODE, "First")
    script = repository.clone / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (repository.clone / "link").symlink_to("train.py")
    second = repository.commit({}, "Second\nof two\n\nMore.")
    with https_host(tmp_path) as host:
        trust(host)
        commit = fetcher.fetch(host.address())
        assert commit is not None, fetcher.failure
        assert (commit.commit, commit.author, commit.subject) == (second, "Ada Lovelace", "Second of two")
        assert commit.committed_at > 1_700_000_000 and not commit.rewritten
        assert names(fetcher.content) == [f"{each}" for each in ("lib/net.py", "link", "run.sh", "train.py")]
        with tarfile.open(fileobj=io.BytesIO(fetcher.content)) as tar:
            assert tar.getmember("run.sh").mode & 0o100 and tar.getmember("link").issym()
        known = fetcher.fetch(host.address(), known=second)
        assert known is not None and known.archive is None and known.commit == second


def test_a_fetch_reports_the_host_that_it_waits_for(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    make_repository(tmp_path).commit(CODE)
    with https_host(tmp_path) as host:
        trust(host)
        host.answer_after = fetcher.awaited("git.asking")
        assert fetcher.fetch(host.address()) is not None, fetcher.failure
    assert fetcher.steps[:2] == ["git.starting", "git.asking"]


def test_what_a_host_refuses(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path)
    repository.commit(CODE)
    repository.commit({}, branch="next")
    with https_host(tmp_path) as host:
        fetcher.fetch(host.address())
        assert isinstance(fetcher.failure, CertificateUnknown), "its authority is not known yet"
        trust(host)
        place = own_address()
        fetcher.fetch(host.address(), token="wrong")
        assert fetcher.failure == TokenRefused(place, True)
        fetcher.fetch(host.address(), token="")
        assert fetcher.failure == TokenRefused(place, False)
        fetcher.fetch(host.address(), branch="other")
        assert fetcher.failure == NoBranch("other", ("main", "next"), 2)
        fetcher.fetch(host.address("lab/none.git"))
        assert isinstance(fetcher.failure, NoRepository)
        requests = len(host.requests)
        fetcher.fetch(host.address(), rules=("git.example.org:443",))
        assert fetcher.failure == HostNotAllowed(f"{place}:{host.port}")
        fetcher.fetch(
            host.address(host="localhost"), rules=(f"localhost:{host.port} internal",), never=MACHINE_NETWORKS
        )
        assert isinstance(fetcher.failure, HostInternal), "a name that leads to this machine"
        assert len(host.requests) == requests, "neither was contacted"


def test_an_empty_repository(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    make_repository(tmp_path)
    with https_host(tmp_path) as host:
        trust(host)
        fetcher.fetch(host.address())
    assert fetcher.failure == NoBranch("main", (), 0) and "nothing was pushed" in fetcher.failure.text


@pytest.mark.parametrize("filters", [True, False])
def test_a_force_push(tmp_path: Path, fetcher: Fetcher, trust: Trust, filters: bool) -> None:
    repository = make_repository(tmp_path, filters=filters)
    first = repository.commit(CODE)
    with https_host(tmp_path) as host:
        trust(host)
        second = repository.commit({"train.py": "print(2)\n"})
        forward = fetcher.fetch(host.address(), known=first)
        assert forward is not None and forward.commit == second and not forward.rewritten
        third = repository.rewrite({"train.py": "print(3)\n"})
        rewritten = fetcher.fetch(host.address(), known=second)
        assert rewritten is not None and rewritten.commit == third
        assert rewritten.rewritten == filters, "it is not known where the server sends whole histories only"
        assert read(fetcher.content, "train.py") == b"print(3)\n"


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_repository_beyond_the_limit(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path, filters=False)
    repository.commit({f"noise-{number}": os.urandom(4 * 2**20) for number in range(3)})
    with https_host(tmp_path) as host:
        trust(host)
        fetcher.fetch(host.address(), max_mib=1)
    assert fetcher.failure == RepositoryTooLarge(1)


@pytest.mark.parametrize("filters", [True, False])
def test_a_large_file_is_named(tmp_path: Path, fetcher: Fetcher, trust: Trust, filters: bool) -> None:
    repository = make_repository(tmp_path, filters=filters)
    with (repository.clone / "weights.bin").open("wb") as file:
        file.truncate(40 * 2**20)  # sparse, and small when packed
    repository.commit(CODE)
    with https_host(tmp_path) as host:
        trust(host)
        fetcher.fetch(host.address())
    assert fetcher.failure == LargeFiles(("weights.bin",), 1, 32)


def test_files_that_are_too_large_together(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path)
    for number in range(3):
        with (repository.clone / f"part-{number}").open("wb") as file:
            file.truncate(20 * 2**20)
    repository.commit(CODE)
    with https_host(tmp_path) as host:
        trust(host)
        fetcher.fetch(host.address())
    assert isinstance(fetcher.failure, TreeTooLarge) and fetcher.failure.max_mib == 32


# --- ssh --------------------------------------------------------------------------------------------------------------


def test_a_commit_by_ssh(tmp_path: Path, fetcher: Fetcher) -> None:
    tmp_path.chmod(0o755)
    repository = make_repository(tmp_path)
    commit = repository.commit(CODE)
    private, public = make_key()
    with ssh_host(tmp_path) as host:
        user = host.address().split("//")[1].split("@")[0]
        fetcher.fetch(host.address(), user=user, key=private)
        place = own_address()
        assert fetcher.failure == HostKeyUnknown(place, fingerprint(host.host_key))
        assert fetcher.host_key == host.host_key
        signed_in = {"user": user, "key": private, "host_key": host.host_key}
        fetcher.fetch(host.address(), **signed_in)
        assert fetcher.failure == KeyRefused(place)
        host.allow(public)
        found = fetcher.fetch(host.address(), **signed_in)
        assert found is not None and found.commit == commit, (fetcher.failure, fetcher.log.read_text())
        assert "train.py" in names(fetcher.content)
        fetcher.fetch(host.address("lab/none.git"), **signed_in)
        assert isinstance(fetcher.failure, NoRepository)
        other, _ = make_key()
        fetcher.fetch(host.address(), user=user, key=other, host_key=host.host_key)
        assert fetcher.failure == KeyRefused(place)
        port = host.port
    make_host_key(tmp_path / "sshd")
    with ssh_host(tmp_path, port) as host:
        host.allow(public)
        fetcher.fetch(host.address(), **signed_in)
        assert fetcher.failure == HostKeyChanged(place, fingerprint(host.host_key))
        assert fetcher.host_key == host.host_key
        assert not any("Accepted" in line for line in host.log)


# --- hostile repositories ---------------------------------------------------------------------------------------------


def test_settings_in_a_repository_have_no_effect(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path)
    witness = tmp_path / "witness"
    run = f"touch {witness}"
    repository.git("config", "core.autocrlf", "false")
    repository.commit(
        {
            **CODE,
            ".gitattributes": "*.py filter=evil diff=evil merge=evil text eol=crlf export-subst\nlib export-ignore\n",
            ".gitconfig": f'[filter "evil"]\n\tsmudge = {run}\n\tprocess = {run}\n[core]\n\tfsmonitor = {run}\n',
            ".lfsconfig": f'[lfs]\n\turl = http://127.0.0.1:1/\n[lfs "customtransfer.evil"]\n\tpath = {run}\n',
            "hooks/post-checkout": f"#!/bin/sh\n{run}\n",
            "config": f"[core]\n\thooksPath = hooks\n\tsshCommand = {run}\n",
            "HEAD": "ref: refs/heads/main\n",
            "objects/x": "x",
            "refs/x": "x",
            "id.txt": "$Format:%H$\n",
        }
    )
    for hook in ("post-upload", "post-checkout", "reference-transaction"):
        (repository.bare / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {witness}-at-the-host\n")
    with https_host(tmp_path) as host:
        trust(host)
        assert fetcher.fetch(host.address()) is not None, fetcher.failure
    assert not witness.exists()
    assert read(fetcher.content, "train.py") == b"print(1)\n" and read(fetcher.content, "id.txt") == b"$Format:%H$\n"
    assert "lib/net.py" in names(fetcher.content)


def test_submodules_are_left_out_and_named(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path)
    repository.commit(CODE)
    add_submodule(repository.clone, "vendor/net", "ext::sh -c 'touch /tmp/owned'", "1" * 40)
    repository.commit({}, "With a submodule")
    with https_host(tmp_path) as host:
        trust(host)
        commit = fetcher.fetch(host.address())
        assert commit is not None and (commit.left_out, commit.left_out_count) == (("vendor/net",), 1)
        fetcher.fetch(host.address(), extras=True)
        assert isinstance(fetcher.failure, BadSubmodule) and "ext::sh" in fetcher.failure.text


def add_submodule(clone: Path, path: str, address: str, commit: str) -> None:
    (clone / ".gitmodules").write_text(f'[submodule "it"]\n\tpath = {path}\n\turl = "{address}"\n')
    subprocess.run(["git", "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}"], cwd=clone, check=True)
    (clone / path).mkdir(parents=True)


def test_submodules_where_they_are_allowed(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    library = make_repository(tmp_path, "lab/net.git")
    inner = library.commit({"net.py": "x = 2\n"})
    library.commit({"net.py": "x = 3\n"})
    repository = make_repository(tmp_path)
    repository.commit(CODE)
    add_submodule(repository.clone, "vendor/net", "../net.git", inner)
    repository.commit({}, "With a submodule")
    with https_host(tmp_path) as host:
        trust(host)
        commit = fetcher.fetch(host.address(), extras=True)
        assert commit is not None and commit.left_out_count == 0, (fetcher.failure, fetcher.log.read_text())
        assert read(fetcher.content, "vendor/net/net.py") == b"x = 2\n"
        (repository.clone / ".gitmodules").write_text('[submodule "it"]\n\tpath = vendor/net\n\turl = ../gone.git\n')
        repository.commit({}, "Gone")
        fetcher.fetch(host.address(), extras=True)
        assert isinstance(fetcher.failure, SubmoduleFailed) and fetcher.failure.path == "vendor/net"


def test_pointers_of_lfs_are_named(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"
    repository = make_repository(tmp_path)
    repository.commit({**CODE, "weights.bin": pointer})
    with https_host(tmp_path) as host:
        trust(host)
        commit = fetcher.fetch(host.address())
        assert commit is not None and (commit.pointers, commit.pointer_count) == (("weights.bin",), 1)
        assert read(fetcher.content, "weights.bin") == pointer.encode()


def test_a_damaged_object_is_refused(tmp_path: Path, fetcher: Fetcher, trust: Trust) -> None:
    repository = make_repository(tmp_path)
    repository.commit(CODE)
    blob = repository.git("hash-object", "-w", "train.py")
    tree = f"100644 blob {blob}\t.GIT\n"
    made = subprocess.run(
        ["git", "mktree"], input=tree, cwd=repository.clone, capture_output=True, text=True, check=True
    ).stdout.strip()
    commit = repository.git("commit-tree", made, "-m", "Hostile")
    repository.git("push", "--quiet", "--force", "origin", f"{commit}:refs/heads/main")
    with https_host(tmp_path) as host:
        trust(host)
        assert fetcher.fetch(host.address()) is None
    assert fetcher.failure is not None and "damaged or malicious" in fetcher.failure.text
