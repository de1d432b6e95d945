"""What is removed from a folder of packages before it is shared, and what its scripts become."""

import os
import stat
from pathlib import Path

import pytest

from runners.environments.layers.cleaning import clean, hidden_modules, top_level
from runners.runtimes.host_config import Owner

US = Owner(os.geteuid(), os.getegid())


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "demo").mkdir(parents=True)
    (folder / "demo" / "__init__.py").touch()
    return folder


def test_a_clean_folder_stays_as_it_is(site: Path) -> None:
    (site / "demo" / "run.sh").write_text("x")
    (site / "demo" / "run.sh").chmod(0o700)
    (site / "demo" / "b.so.1").touch()
    (site / "demo" / "b.so").symlink_to("b.so.1")
    (site / "demo" / "again.so").symlink_to("../demo/b.so")
    assert clean(site, (), US) == []
    assert (site / "demo" / "b.so").is_symlink() and (site / "demo" / "again.so").is_symlink()
    assert stat.S_IMODE((site / "demo" / "run.sh").stat().st_mode) == 0o755


def test_what_is_unsafe_is_removed_and_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("stays")
    (site / "absolute").symlink_to(tmp_path / "outside")
    (site / "inside but absolute").symlink_to(site / "demo" / "__init__.py")
    (site / "out").symlink_to("../outside")
    (site / "folder").symlink_to("demo")
    (site / "dangling").symlink_to("nowhere")
    (site / "loop").symlink_to("loop")
    (site / "through").symlink_to("out")
    os.mkfifo(site / "demo" / "fifo")
    (site / "demo" / "odd\nname").touch()
    for name in ("evil.pth", "sitecustomize.py", "usercustomize.py"):
        (site / name).write_text("import os")
    (site / "demo" / "fine.pth").touch()
    (site / "demo" / "sitecustomize.py").touch()
    (site / "setuid").touch()
    (site / "setuid").chmod(0o6755)
    removed = clean(site, (), US)
    assert sorted(str(path.relative_to(site)) for path in site.rglob("*")) == [
        "demo",
        "demo/__init__.py",
        "demo/fine.pth",
        "demo/sitecustomize.py",
        "setuid",
    ]
    assert len(removed) == 12 and "evil.pth: Python would run it at its start" in removed
    assert stat.S_IMODE((site / "setuid").stat().st_mode) == 0o755
    assert (tmp_path / "outside").read_text() == "stays"


@pytest.mark.parametrize(
    "name",
    ["x.pth", "sitecustomize.pyc", "usercustomize.abi3.so", "sitecustomize.cpython-311-x86_64-linux-gnu.so"],
)
def test_what_python_runs_at_its_start_is_removed_in_any_form(site: Path, name: str) -> None:
    (site / name).symlink_to("demo/__init__.py")
    assert clean(site, (), US) == [f"{name}: Python would run it at its start"]
    (site / name).touch()
    clean(site, (), US)
    (site / "usercustomize").mkdir()
    (site / "usercustomize" / "__init__.py").touch()
    clean(site, (), US)
    assert [path.name for path in site.iterdir()] == ["demo"]


@pytest.mark.parametrize("name", ["enum.pyc", "enum.cpython-311-x86_64-linux-gnu.so", "enum.abi3.so"])
def test_compiled_modules_count_as_modules(site: Path, name: str) -> None:
    (site / name).touch()
    assert top_level(site)["enum"] and hidden_modules(site, ("enum",)) == ("enum",)
    assert clean(site, {"enum"}, US) == ["enum: Python has this module itself"]
    assert not (site / name).exists()


def test_a_package_may_have_any_form_of_init(site: Path) -> None:
    (site / "torch").mkdir()
    (site / "torch" / "__init__.cpython-311-x86_64-linux-gnu.so").touch()
    assert hidden_modules(site, ("torch",)) == ("torch",)


def test_modules_of_python_itself_are_removed(site: Path) -> None:
    (site / "typing.py").touch()
    (site / "enum").mkdir()
    (site / "enum" / "__init__.py").touch()
    (site / "demo" / "typing.py").touch()
    removed = clean(site, {"typing", "enum", "os"}, US)
    assert [each.partition(":")[0] for each in removed] == ["enum", "typing"]
    assert set(top_level(site)) == {"demo"} and (site / "demo" / "typing.py").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"#!/build/env/bin/python\nx = 1\n", b"#!/usr/bin/env python3\nx = 1\n"),
        (b"#!/build/env/bin/python3.11 -E\nx\n", b"#!/usr/bin/env python3\nx\n"),
        (
            b"#!/bin/sh\n'''exec' '/a long path/bin/python' \"$0\" \"$@\"\n' '''\nx = 1\n",
            b"#!/usr/bin/env python3\nx = 1\n",
        ),
        (b"#!/bin/bash\necho python\n", b"#!/bin/bash\necho python\n"),
        (b"#!/bin/sh\necho python\n", b"#!/bin/sh\necho python\n"),
        (b"\x7fELF...", b"\x7fELF..."),
        (b"", b""),
    ],
)
def test_scripts_run_the_python_that_is_first_on_the_path(site: Path, before: bytes, after: bytes) -> None:
    (site / "bin").mkdir()
    (site / "bin" / "run").write_bytes(before)
    clean(site, (), US)
    assert (site / "bin" / "run").read_bytes() == after
    assert clean(site, (), US) == [] and (site / "bin" / "run").read_bytes() == after, "it may be repeated"


def test_import_names_are_separated_from_what_is_beside_them(site: Path) -> None:
    names = ("bin", "demo-1.0.dist-info", "numpy.libs", "share", "__pycache__", "space", "not-a-name")
    for name in names:
        (site / name).mkdir()
    for name in ("single.py", "fast.cpython-311-x86_64-linux-gnu.so", "README.txt", "LICENSE"):
        (site / name).touch()
    assert top_level(site) == {"demo": True, "space": False, "single": True, "fast": True}


def test_only_real_modules_hide_others(site: Path) -> None:
    (site / "google").mkdir()
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    assert hidden_modules(site, ("torch", "google", "numpy")) == ("torch",)
    assert hidden_modules(site, ("numpy",)) == ()
