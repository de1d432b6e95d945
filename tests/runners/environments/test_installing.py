"""Packages are installed with uv; where that fails or is not there, with pip."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runners.environments import installing
from runners.environments.installing import (
    PIP,
    Uv,
    current_download,
    find_uv,
    lock_entry,
    main,
    make_environment,
    normalise_name,
    pins_in,
    resolve,
)
from runners.environments.pip_settings import UvSettings
from runners.environments.preparing import ProgramError
from runners.environments.targets import Target, this_machine

HERE = this_machine(cuda=False)
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def add_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        lines = f"Requires-Dist: {needs}\n" if needs else ""
        wheel.writestr(f"{about}/METADATA", METADATA.format(name=name, version=version, needs=lines))
        wheel.writestr(f"{about}/WHEEL", WHEEL)
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip and uv see a folder of wheels and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    add_wheel(folder, "slx_probe", "1.0")
    add_wheel(folder, "slx_probe", "1.0+cpu")
    add_wheel(folder, "slx_user", "2.0", "slx_probe==1.0")
    add_wheel(folder, "slx_plain", "1.0")
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(params=["uv", "pip"])
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pip":
        monkeypatch.setattr(installing, "find_uv", lambda extra_index="": None)
    else:
        monkeypatch.setattr(installing, "_resolve_with_pip", unexpected)
    return str(request.param)


def unexpected(*args: Any) -> Any:
    raise AssertionError("pip was used, though uv is there")


def test_both_find_the_same_packages_with_the_local_version(tool: str, tmp_path: Path) -> None:
    assert resolve(["slx-user"], HERE, tmp_path / "log") == ("slx-probe==1.0+cpu", "slx-user==2.0")


def test_both_resolve_for_the_interpreter_of_an_image(tool: str, tmp_path: Path) -> None:
    image = Target("3.12", (2, 28), HERE.machine)
    assert resolve(["slx-user"], image, tmp_path / "log") == ("slx-probe==1.0+cpu", "slx-user==2.0")


def test_both_say_why_nothing_fits(tool: str, tmp_path: Path) -> None:
    with pytest.raises((ProgramError, AssertionError)):
        resolve(["slx-user==9"], HERE, tmp_path / "log")
    assert "slx" in (tmp_path / "log").read_text()


def test_an_environment_holds_exactly_these_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "find_uv", lambda extra_index="": None)
    python = make_environment(tmp_path / "env", ["slx-user==2.0"], tmp_path / "log", installing.report_nothing)
    ask = "import slx_user, importlib.util as u; print(slx_user.version, u.find_spec('slx_probe'))"
    printed = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert printed.split() == ["2.0", "None"]


class Broken(Uv):
    def run(self, command: Sequence[str | Path], log: Path, tick: Any = None, seconds: float = 0) -> None:
        raise ProgramError("error: uv does not know this")


def test_pip_is_used_where_uv_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "find_uv", lambda extra_index="": Broken("uv", UvSettings((), {})))
    assert resolve(["slx-probe"], HERE, tmp_path / "log") == ("slx-probe==1.0+cpu",)
    python = make_environment(tmp_path / "env", ["slx-probe==1.0+cpu"], tmp_path / "log", installing.report_nothing)
    assert subprocess.run([python, "-c", "import slx_probe"], cwd=tmp_path, check=False).returncode == 0


def test_pip_is_used_where_its_configuration_has_no_counterpart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_uv() is not None
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "1")
    assert find_uv() is None


def test_pip_is_used_where_uv_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing.sys, "executable", "/nowhere/python")
    monkeypatch.setattr(installing.shutil, "which", lambda name: None)
    assert find_uv() is None


def test_it_names_the_largest_download_that_is_not_done() -> None:
    output = "Downloading numpy (16.1MiB)\nDownloading torch (183.4MiB)\n Downloaded numpy\n"
    assert current_download(output) == "torch (183 MiB)"
    assert current_download(f"{output} Downloaded torch\n") == "" and current_download("") == ""


def test_pins_are_read_without_markers_and_comments() -> None:
    text = "# by uv\nnumpy==2.4.6\ntorch==2.13.0+cpu ; sys_platform == 'linux'\n    # via x\n"
    assert pins_in(text) == ("numpy==2.4.6", "torch==2.13.0+cpu")
    assert normalise_name("Typing_Extensions") == "typing-extensions"


LOCK = """# Made by a test
slx-probe==1.0 \\
    --hash=sha256:{probe}
uv==0.13.9 ; sys_platform == 'linux' \\
    --hash=sha256:{one} \\
    --hash=sha256:{two}
uvloop==1 \\
    --hash=sha256:{two}
"""


def test_the_entry_of_one_package_is_read_from_a_lock_with_all_its_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(LOCK.format(probe="c" * 64, one="a" * 64, two="b" * 64))
    assert lock_entry(lock, "uv").splitlines() == LOCK.format(probe="", one="a" * 64, two="b" * 64).splitlines()[3:6]
    assert lock_entry(lock, "uvl") == "" and lock_entry(lock, "six") == ""
    assert lock_entry(Path(__file__).parents[3] / "requirements.lock", "uv").startswith("uv==")


def locked_plain(folder: Path, digest: str) -> Path:
    lock = folder / "requirements.lock"
    lock.write_text(f"slx-plain==1.0 \\\n    --hash=sha256:{digest}\n")
    return lock


def bare_environment(folder: Path) -> Path:
    uv = find_uv()
    assert uv is not None
    uv.run(
        ["venv", "--quiet", "--no-project", "--no-config", "--python", sys.executable, folder], folder.parent / "log"
    )
    return folder / "bin" / "python"


def test_a_locked_file_is_installed_whatever_range_pip_is_constrained_to(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("torch<=2.14.1\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    digest = hashlib.sha256((offline / "slx_plain-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    python, uv = bare_environment(tmp_path / "env"), find_uv()
    assert uv is not None
    uv.install_locked(locked_plain(tmp_path, digest), str(python), tmp_path / "log")
    ask = [str(python), "-c", "import slx_plain; print(slx_plain.version)"]
    assert subprocess.run(ask, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.strip() == "1.0"


@pytest.mark.parametrize("content", ["slx-plain==1.0 \\\n    --hash=sha256:" + "0" * 64, "slx-plain==1.0"])
def test_a_file_with_another_hash_or_without_one_is_not_installed(tmp_path: Path, content: str) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"{content}\n")
    python, uv = bare_environment(tmp_path / "env"), find_uv()
    assert uv is not None
    with pytest.raises(ProgramError):
        uv.install_locked(lock, str(python), tmp_path / "log")
    assert "hash" in (tmp_path / "log").read_text().lower()
    assert subprocess.run([python, "-c", "import slx_plain"], cwd=tmp_path, check=False, capture_output=True).returncode


def test_pip_requires_the_hashes_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(installing, "run", lambda argv, *_, **__: ran.append([str(word) for word in argv]))
    monkeypatch.setattr(installing, "find_uv", lambda: None)
    assert main(tmp_path / "install.log", locked_plain(tmp_path, "0" * 64)) == 0
    assert len(ran) == 2 and all("--require-hashes" in command for command in ran)
    assert ran[1][-1] == str(tmp_path / "requirements.lock")


def test_a_failed_installation_shows_the_end_of_pips_output_and_where_the_rest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: Sequence[Any], log: Path, *args: Any, **options: Any) -> None:
        with log.open("a") as output:
            output.write("WARNING: Retrying after connection broken\nERROR: No matching distribution found for six\n")
        raise ProgramError("it failed")

    monkeypatch.setattr(installing, "run", run)
    (tmp_path / "requirements.lock").write_text("six\n")
    assert main(tmp_path / "install.log", tmp_path / "requirements.lock") == 1
    printed = capsys.readouterr().err
    assert "No matching distribution found for six" in printed and str(tmp_path / "install.log") in printed
    assert "pip config list" in printed


def test_the_portals_packages_are_installed_with_the_python_that_asks() -> None:
    assert PIP[0] == sys.executable


def becomes(true: Callable[[], bool], seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    return true()


def test_an_environment_that_was_left_without_pip_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    monkeypatch.setattr(installing, "run", lambda argv, *_, **__: ran.append([str(word) for word in argv]))
    monkeypatch.setattr(installing, "find_uv", lambda: None)
    (tmp_path / "requirements.lock").write_text("six\n")
    assert main(tmp_path / "install.log", tmp_path / "requirements.lock") == 0
    assert ran[0][1:] == ["-m", "ensurepip", "--upgrade"]


def test_pip_ends_with_the_installation_that_started_it(tmp_path: Path) -> None:
    """A second start would write into the same environment."""
    pip = tmp_path / "pip"
    pip.mkdir()
    (pip / "__init__.py").touch()
    noted = tmp_path / "pid"
    (pip / "__main__.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(noted)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    (tmp_path / "requirements.lock").write_text("six\n")
    files = str(tmp_path / "install.log"), str(tmp_path / "requirements.lock")
    command = [sys.executable, "-m", "runners.environments.installing", *files]
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"}
    with subprocess.Popen(command, cwd=tmp_path, env=env) as process:
        assert becomes(lambda: noted.exists() and noted.read_text() != "")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert becomes(lambda: not Path(f"/proc/{noted.read_text()}").exists())
