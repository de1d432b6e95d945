"""The caches of projects: what is kept, shared, shortened and deleted."""

import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runners.agent import caches
from runners.agent.caches import ENDED_AT, GIB, UNUSED_SECONDS, Caches
from runners.agent.settings import Settings
from runners.host.node_files import NodeFiles
from runners.launch.files import ContainerPaths
from runners.launch.ranks import CACHE_FOLDERS, rank_env
from runners.runtime import Folders, SetupError
from runners.runtimes.host_config import CACHE_GID_BASE, CACHE_GID_SPAN, cache_group, environment, groups_for, mounts
from runners.spec import CACHE_VARIABLE, RunSpec
from tests.runners.conftest import make_spec

PROJECT, OTHER = "a" * 32, "b" * 32
KEY = f"{PROJECT}-1"
SPEC = replace(make_spec(), cache=KEY)
KIB = 1024


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    made = NodeFiles(tmp_path / "agent")
    made.make()
    return made


def write(folder: Path, name: str, kib: int = 64, age: float = 0.0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * kib * KIB)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def never() -> bool:
    return False


# --- what jobs get -----------------------------------------------------------------------------------------------


def test_the_cache_is_a_mount_and_variables_that_users_and_images_may_set(files: NodeFiles) -> None:
    assert files.folders(SPEC).cache == files.home / "caches" / KEY / "files"
    assert files.folders(replace(SPEC, role="driver")).cache is None and files.folders(make_spec()).cache is None
    (mount,) = (each for each in mounts(files.folders(SPEC)) if each["Target"] == "/cache")
    assert not mount["ReadOnly"] and f"{CACHE_VARIABLE}=/cache" in environment(SPEC)
    paths = ContainerPaths.from_env({})
    env = rank_env(
        replace(SPEC, env=(("HF_HOME", "/workspace/mine"),)),
        paths,
        {CACHE_VARIABLE: "/cache", "TORCH_HOME": "/opt/torch"},
    )
    assert (env["HF_HOME"], env["TORCH_HOME"]) == ("/workspace/mine", "/opt/torch")
    assert (env["XDG_CACHE_HOME"], env["MPLCONFIGDIR"], env["PIP_CACHE_DIR"]) == (
        "/cache",
        "/cache/matplotlib",
        "/cache/pip",
    )
    assert not CACHE_FOLDERS.keys() & rank_env(make_spec(), paths, {}).keys()


def test_a_project_has_a_group_whatever_the_generation() -> None:
    assert cache_group(KEY) == cache_group(f"{PROJECT}-77") != cache_group(f"{OTHER}-1")
    assert CACHE_GID_BASE <= cache_group(KEY) < CACHE_GID_BASE + CACHE_GID_SPAN < 2**31
    assert groups_for(SPEC, 0) == (cache_group(KEY),)
    assert groups_for(SPEC, 1000) == groups_for(make_spec(), 0) == ()


def test_agents_of_an_earlier_release_see_no_key_of_it() -> None:
    assert "cache" not in make_spec().to_json() and RunSpec.from_json(SPEC.to_json()).cache == KEY


@pytest.mark.parametrize("key", ["x", f"{PROJECT}", f"{PROJECT}-", f"{PROJECT}-1/..", f"{'A' * 32}-1"])
def test_another_name_makes_no_folder(files: NodeFiles, key: str) -> None:
    with pytest.raises((OSError, ValueError)):
        caches.prepare(files, replace(SPEC, cache=key))
    assert not list(files.caches.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to groups")
def test_what_a_job_left_for_itself_is_shared_and_nothing_else(files: NodeFiles, tmp_path: Path) -> None:
    caches.prepare(files, SPEC)
    folder, group = files.cache(KEY), cache_group(KEY)
    assert (folder.stat().st_gid, stat.S_IMODE(folder.stat().st_mode)) == (group, 0o2770)
    secret = write(tmp_path, "secret")
    secret.chmod(0o600)
    closed = write(folder, "torch/hub/weights.pt")
    for path in (closed, closed.parent, closed.parent.parent):
        os.chown(path, 2_000_000_001, 2_000_000_001)
        path.chmod(0o700 if path.is_dir() else 0o4600)
    of_root = write(folder, "of root")
    of_root.chmod(0o600)
    (folder / "link").symlink_to(secret)
    os.chown(folder / "link", 2_000_000_001, 2_000_000_001, follow_symlinks=False)
    caches.prepare(files, SPEC)
    assert (closed.stat().st_gid, stat.S_IMODE(closed.stat().st_mode)) == (group, 0o660)
    assert stat.S_IMODE(closed.parent.stat().st_mode) == 0o2770
    assert stat.S_IMODE(secret.stat().st_mode) == stat.S_IMODE(of_root.stat().st_mode) == 0o600


# --- size --------------------------------------------------------------------------------------------------------


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    for age in range(10):
        write(tmp_path, f"models/{age}/file", age=age * 1000)
    link = tmp_path / "models" / "snapshot"
    link.symlink_to("9/file")
    assert caches.shorten(tmp_path, 10_000 * KIB, never) and link.exists()
    assert caches.shorten(tmp_path, 400 * KIB, never)
    left = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert left == ["0", "1", "2", "3", "4"]
    assert not link.is_symlink()


def test_a_cache_is_left_alone_once_a_job_begins(tmp_path: Path) -> None:
    write(tmp_path, "file", age=5000)
    assert not caches.shorten(tmp_path, 1, lambda: True)
    assert (tmp_path / "file").exists()


def test_only_idle_caches_are_checked_and_each_once_after_its_use(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[str] = {KEY}
    checked: list[Path] = []

    def shorten(folder: Path, limit: int, is_needed: object) -> bool:
        checked.append(folder)
        return True

    monkeypatch.setattr(caches, "shorten", shorten)
    made = Caches(files, 1, lambda: used)
    caches.prepare(files, SPEC)
    (files.caches / "something else").mkdir()
    made.check()
    assert not checked
    used.clear()
    made.check()
    made.check()
    assert checked == [files.cache(KEY)]
    os.utime(files.cache(KEY).parent, (1, 1))  # used again
    made.check()
    assert len(checked) == 2


def test_a_cache_that_cannot_be_read_does_not_keep_others_from_being_checked(files: NodeFiles) -> None:
    other = f"{OTHER}-1"
    for key in (KEY, other):
        caches.prepare(files, replace(SPEC, cache=key))
    files.cache(KEY).rmdir()
    file = write(files.cache(other), "file", age=5000)
    Caches(files, 0, set).check()
    assert not file.exists()


def test_a_running_job_is_reported_at_twice_the_limit(files: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Caches(files, 3, lambda: {KEY})
    caches.prepare(files, SPEC)
    assert made.excess({KEY, ""}) == {}
    monkeypatch.setattr(caches, "disk_usage", lambda folder: type("Usage", (), {"disk_bytes": ENDED_AT * 3 * GIB + 1}))
    assert "6 GiB, twice its limit of 3 GiB" in made.excess({KEY})[KEY].text


def test_an_agent_that_keeps_no_caches_any_more_ends_no_job(files: NodeFiles) -> None:
    caches.prepare(files, SPEC)
    write(files.cache(KEY), "left by a job")
    assert Caches(files, 0, lambda: {KEY}).excess({KEY}) == {}


def test_emptied_and_unused_caches_are_deleted(files: NodeFiles) -> None:
    used: set[str] = set()
    made = Caches(files, 1, lambda: used)
    keys = [KEY, f"{PROJECT}-2", f"{OTHER}-3"]
    for key in keys:
        caches.prepare(files, replace(SPEC, cache=key))
        write(files.cache(key), "file")
    used.add(KEY)
    made.tidy()
    assert made.keys() == keys
    used.clear()
    old = time.time() - UNUSED_SECONDS - 60
    os.utime(files.cache(f"{OTHER}-3").parent, (old, old))
    made.tidy()
    assert made.keys() == [f"{PROJECT}-2"]


@pytest.mark.parametrize(("value", "gib"), [("", 50), ("0", 0), ("200", 200)])
def test_the_limit_is_a_setting(value: str, gib: int) -> None:
    assert Settings.read([], {"SCHEDULEARN_PROJECT_CACHE_GIB": value}).cache_gib == gib


@pytest.mark.parametrize("value", ["-1", "many", "1.5", "٣", "10000000"])
def test_another_limit_is_refused(value: str) -> None:
    with pytest.raises(SetupError, match="SCHEDULEARN_PROJECT_CACHE_GIB"):
        Settings.read([], {"SCHEDULEARN_PROJECT_CACHE_GIB": value})


def test_folders_without_a_cache_have_no_mount(tmp_path: Path) -> None:
    names = ("workspace", "control", "scribe", "outputs", "checkpoints")
    assert "/cache" not in {each["Target"] for each in mounts(Folders(*(tmp_path for _ in names)))}
