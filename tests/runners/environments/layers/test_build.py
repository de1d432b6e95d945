"""Building layers of wheels: what gets in, what is refused, and that nothing is left behind."""

import json
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from runners.environments import horovod_wheel
from runners.environments.images import Entry
from runners.environments.layers import sandbox, store
from runners.environments.layers.base import Base, find_python, kind_of
from runners.environments.layers.disk_watch import DiskWatch
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.resolving import HOROVOD_NEEDS
from runners.environments.layers.sandbox import PlainSandbox
from runners.environments.preparing import PrepareError, Progress
from runners.environments.targets import Target
from runners.environments.wheels import Pins
from runners.messages import Message
from runners.messages.environment_failures import MissingTools, NoSpace
from runners.messages.environments import CheckingPackages, CompilingBytecode, InstallingPackages, ResolvingPackages
from runners.messages.layer_failures import (
    BadRecipe,
    CannotConfine,
    ContradictsBase,
    DiskNearlyFull,
    HashMismatch,
    HidesBase,
    HorovodNotHere,
    HostNotAllowed,
    Inconsistent,
    IndexAway,
    LayerTooLarge,
    NeedsOtherPython,
    NeedsPython,
    NoSuchPackage,
    OnlySource,
    PipOptionUnsupported,
    ProxyUnsupported,
    TimeLimit,
)
from tests.runners.environments.layers.conftest import Lab
from tests.runners.environments.layers.packages import make_sdist, make_wheel


def imports(lab: Lab, folder: Path, code: str) -> str:
    """Run Python with a layer over the base, as a job does."""
    env = {"PYTHONPATH": str(folder), "PATH": f"{folder / 'bin'}:{Path(lab.base.python).parent}:/usr/bin:/bin"}
    run = subprocess.run(["python3", "-c", code], env=env, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_a_layer_has_what_the_list_needs_and_nothing_of_the_base(lab: Lab) -> None:
    make_wheel(
        lab.files, "demo", needs=["helper>=1", "torchlike==2.13.0", "baselib"], scripts={"demo-run": "demo:main"}
    )
    make_wheel(lab.files, "helper", "1.5")
    make_wheel(lab.files, "baselib", "9.0")
    lab.publish()
    layer = lab.build("Demo")
    assert (layer.modules, layer.packages) == (("demo", "helper"), 2)
    assert [line.split(" ")[0] for line in layer.lock.splitlines() if "==" in line] == ["demo==1.0", "helper==1.5"]
    assert layer.lock.count("--hash=sha256:") == 2
    assert imports(lab, layer.folder, "import demo, helper, baselib, torchlike; print(baselib.VERSION)") == "2.0"
    assert layer.folder == store.path_of(layer.digest) and layer.digest == store.digest_of(
        kind_of(lab.base), layer.lock, layer.recipe
    )
    assert (layer.folder / "bin" / "demo-run").read_text().startswith("#!/usr/bin/env python3\n")
    assert list((layer.folder / "__pycache__").glob("demo.*.pyc"))
    kinds = {type(step) for step in lab.steps}
    assert {ResolvingPackages, InstallingPackages, CompilingBytecode, CheckingPackages} <= kinds
    log = lab.log.read_text()
    assert "== Resolving the packages" in log and "network: 127.0.0.1:" in log and "demo==1.0" in log
    assert not lab.left_over()


def test_the_same_recipe_is_built_once(lab: Lab) -> None:
    make_wheel(lab.files, "demo")
    lab.publish()
    first = lab.build("demo")
    asked = len(lab.asked)
    assert lab.build("demo") == first and len(lab.asked) == asked
    assert store.find(Recipe("curated", ("demo",)), kind_of(lab.base)) == first
    assert store.find(Recipe("curated", ("demo",)), "another kind") is None
    make_wheel(lab.files, "demo", "2.0")
    lab.publish()
    assert lab.build("demo") == first
    newer = lab.build("demo", fresh=True)
    assert newer.digest != first.digest and "demo==2.0" in newer.lock
    assert lab.build("demo") == newer, "the newest of the same recipe"


def test_another_list_with_the_same_lock_is_the_same_layer(lab: Lab) -> None:
    make_wheel(lab.files, "demo")
    lab.publish()
    first = lab.build("demo")
    assert lab.build("demo>=1").digest == first.digest


def test_two_threads_that_want_the_same_build_it_once(lab: Lab) -> None:
    make_wheel(lab.files, "demo")
    lab.publish()
    built: list[str] = []
    threads = [threading.Thread(target=lambda: built.append(lab.build("demo").digest)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 2 and len(set(built)) == 1
    assert lab.asked.count("/files/demo-1.0-py3-none-any.whl") <= 2, "once for its metadata, once for its content"


def test_a_list_that_the_base_has_already_is_an_empty_layer(lab: Lab) -> None:
    lab.publish()
    layer = lab.build("baselib>=1", "torchlike==2.13.0")
    assert (layer.modules, layer.packages, layer.lock) == ((), 0, "")
    assert layer.folder.is_dir()


def test_a_contradiction_with_the_base_names_the_line(lab: Lab) -> None:
    make_wheel(lab.files, "torchlike", "2.9.1")
    make_wheel(lab.files, "old", needs=["baselib<2"])
    lab.publish()
    assert lab.failure("torchlike==2.9.1") == ContradictsBase("torchlike==2.9.1", "torchlike", "2.13.0+cpu")
    assert lab.failure("old") == ContradictsBase("old", "baselib", "2.0", "baselib<2")
    assert not lab.left_over() and not list((lab.top / "cache" / "layers").iterdir())


def test_what_the_index_does_not_have_is_named(lab: Lab) -> None:
    make_wheel(lab.files, "demo", needs=["missing"])
    make_wheel(lab.files, "newer", head="Requires-Python: >=3.99\n")
    make_sdist(lab.files, "onlysource", "")
    lab.publish()
    assert lab.failure("nothing-like-this") == NoSuchPackage("nothing-like-this")
    assert lab.failure("demo") == NoSuchPackage("missing", "demo")
    assert lab.failure("newer") == NeedsOtherPython("newer", ">=3.99", lab.base.target.python)
    assert lab.failure("onlysource") == OnlySource("onlysource==1.0")


def test_a_file_that_differs_from_its_hash_is_refused(lab: Lab) -> None:
    path = make_wheel(lab.files, "demo")
    lab.publish({path.name: "0" * 64})
    assert lab.failure("demo") == HashMismatch("demo==1.0")


def test_an_index_that_is_away_may_come_back(lab: Lab) -> None:
    lab.configure(index_url="http://127.0.0.1:9/simple")
    failure = lab.failure("demo")
    assert isinstance(failure, IndexAway) and failure.transient and "127.0.0.1:9" in failure.text


def test_a_file_on_a_host_that_is_not_an_index_is_refused(lab: Lab) -> None:
    make_wheel(lab.files, "demo")
    lab.publish()
    page = lab.top / "index" / "simple" / "demo" / "index.html"
    page.write_text(page.read_text().replace("../../files", f"{lab.address.replace('127.0.0.1', 'localhost')}/files"))
    failure = lab.failure("demo")
    port = lab.address.rpartition(":")[2]
    assert isinstance(failure, HostNotAllowed) and failure.host == f"localhost:{port}"
    host = lab.address.removeprefix("http://").replace("127.0.0.1", "localhost")
    assert lab.build("demo", hosts=(host,)).modules == ("demo",)


def test_an_address_in_a_line_is_fetched_from_an_allowed_host(lab: Lab) -> None:
    wheel = make_wheel(lab.files, "demo")
    lab.publish()
    line = f"demo @ {lab.address}/files/{wheel.name}"
    assert lab.build(line, hosts=(lab.address.removeprefix("http://"),)).modules == ("demo",)


def test_further_indexes_and_constraints_apply(lab: Lab) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(lab.files, "demo", version)
    lab.publish()
    lab.configure(index_url=f"{lab.address}/none")
    index = f"{lab.address}/simple".replace("127.0.0.1", "localhost")
    host = index.removeprefix("http://").partition("/")[0]
    layer = lab.build("demo", indexes=(index,), constraints=("demo<2",), hosts=(host,))
    assert "demo==1.0" in layer.lock
    assert isinstance(lab.failure("demo", indexes=(index,)), HostNotAllowed), "an internal index is named by an admin"


def test_wheels_of_a_folder_of_the_machine_are_found(lab: Lab) -> None:
    make_wheel(lab.top / "house", "demo")
    (lab.top / "limits.txt").write_text("demo<5\n")
    lab.configure(no_index="true", find_links=str(lab.top / "house"), constraint=str(lab.top / "limits.txt"))
    assert lab.build("demo").modules == ("demo",)


@pytest.mark.parametrize(
    ("setting", "kind"),
    [({"require_hashes": "true"}, PipOptionUnsupported), ({"proxy": "socks5://p:1"}, ProxyUnsupported)],
)
def test_a_setting_of_pip_that_cannot_be_followed_is_named(lab: Lab, setting: dict[str, str], kind: type) -> None:
    lab.use_index(**setting)
    failure = lab.failure("demo")
    assert isinstance(failure, kind) and failure.transient


def test_modules_that_would_hide_the_base_are_refused(lab: Lab) -> None:
    make_wheel(lab.files, "imitation", files={"torchlike/__init__.py": "", "torchlike/evil.py": ""})
    make_wheel(lab.files, "ours", files={"runners/__init__.py": ""})
    make_wheel(lab.files, "polite", files={"torchlike/plugin.py": "", "polite.py": ""})
    lab.publish()
    assert lab.failure("imitation") == HidesBase(("torchlike",))
    assert lab.failure("ours") == HidesBase(("runners",))
    assert lab.build("polite").modules == ("polite", "torchlike")


def test_modules_of_python_itself_are_left_out(lab: Lab) -> None:
    make_wheel(lab.files, "argparse", "1.4.0")
    make_wheel(lab.files, "demo", needs=["argparse"])
    lab.publish()
    assert lab.build("demo").modules == ("demo",)
    assert "argparse: Python has this module itself" in lab.log.read_text()


def test_what_this_node_cannot_build_is_refused_at_once(lab: Lab) -> None:
    assert lab.failure("demo", source_builds=True) == CannotConfine()
    assert isinstance(lab.failure("demo", base=""), BadRecipe)
    full = replace(lab.base, packages=())
    needed = lab.failure("demo", base="", python="3.99", at=full)
    assert needed == NeedsPython("3.99", lab.base.target.python)
    assert not lab.asked


def test_horovod_is_compiled_against_torch_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled outside of the sandbox, where other packages of the list could run code."""
    for name, needs in (("torch", ["torchdep"]), ("torchdep", []), ("numpy", []), ("demo", ["torch"])):
        make_wheel(lab.files, name, needs=needs)
    for name in HOROVOD_NEEDS:
        make_wheel(lab.files, name)
    lab.publish()
    compiled: list[Pins] = []

    def ensure(entry: Entry, target: Target, pins: Pins, progress: Progress, build: object, percent: object) -> Path:
        compiled.append(pins)
        return make_wheel(lab.top / "wheels" / "key", "horovod", "0.28.1", files={"horovod/__init__.py": ""})

    monkeypatch.setattr(horovod_wheel, "ensure", ensure)
    monkeypatch.setattr(horovod_wheel, "host_can_build", lambda target: True)
    layer = lab.build("torch", "numpy", "demo", base="", horovod=True, at=full_environment(lab))
    assert {pin.partition("==")[0] for pin in compiled[0].packages} == {"torch", "torchdep", "numpy"}
    assert {"horovod", "torch", "demo"} <= set(layer.modules)
    assert layer.lock.endswith("# horovod key/horovod-0.28.1-py3-none-any.whl\n")


def test_horovod_that_cannot_be_compiled_here_is_refused_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel, "host_can_build", lambda target: False)
    monkeypatch.setattr(horovod_wheel, "missing_tools", lambda target: None)
    failure = lab.failure("torch", base="", horovod=True, at=full_environment(lab))
    assert failure == HorovodNotHere() and failure.transient
    monkeypatch.setattr(horovod_wheel, "missing_tools", lambda target: PrepareError(MissingTools(("c++",))))
    assert lab.failure("torch", base="", horovod=True, at=full_environment(lab)) == MissingTools(("c++",))


def full_environment(lab: Lab) -> Base:
    python = find_python("")
    return Base(python, lab.base.target, (), PlainSandbox(python))


class CancelledError(Exception):
    """What progress raises to end a build."""


@pytest.mark.parametrize("at", [ResolvingPackages, InstallingPackages, CompilingBytecode, CheckingPackages])
def test_a_cancelled_build_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch, at: type[Message]) -> None:
    make_wheel(lab.files, "demo")
    lab.publish()

    def progress(percent: int, step: Message) -> None:
        if isinstance(step, at):
            raise CancelledError

    monkeypatch.setattr(lab, "progress", progress)
    with pytest.raises(CancelledError):
        lab.build("demo")
    assert not lab.left_over() and not list((lab.top / "cache" / "layers").iterdir())


def test_a_full_disk_and_a_large_list_are_stopped(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(lab.files, "demo", files={"demo.py": "x = 1\n" * 1_000_000})
    lab.publish()
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "DiskWatch", lambda work, log, _: DiskWatch(work, log, max_bytes=1, min_free_bytes=0))
        assert isinstance(lab.failure("demo"), LayerTooLarge)
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "DiskWatch", lambda work, log, _: DiskWatch(work, log, min_free_bytes=2**60))
        assert isinstance(lab.failure("demo"), DiskNearlyFull)
    with monkeypatch.context() as patch:
        patch.setattr("runners.environments.layers.build.START_MIB", 2**40)
        assert isinstance(lab.failure("demo"), NoSpace)
    assert not lab.left_over()


def test_a_build_that_takes_too_long_is_stopped(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.environments.layers.resolving.RESOLVE_SECONDS", -1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lab.configure(index_url=f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        assert isinstance(lab.failure("demo"), TimeLimit)


def test_packages_that_do_not_fit_together_are_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv lets none of these through; its metadata may differ from what was installed, though."""
    make_wheel(lab.files, "demo", needs=["helper"])
    make_wheel(lab.files, "helper")
    lab.publish()

    def tampered(site: Path) -> list[tuple[str, str, tuple[str, ...]]]:
        return [
            (
                "demo",
                "1.0",
                ("helper>=2", "baselib>=3", "absent", "other; python_version < '3'", "helper[x]; extra == 'x'"),
            )
        ]

    monkeypatch.setattr("runners.environments.layers.checking.installed", tampered)
    failure = lab.failure("demo")
    assert isinstance(failure, Inconsistent)
    assert failure.problems == (
        "demo 1.0 needs helper, which is not installed",
        "demo 1.0 needs baselib>=3, and 2.0 is installed",
        "demo 1.0 needs absent, which is not installed",
    )


def test_the_facts_beside_a_layer_are_complete(lab: Lab) -> None:
    make_wheel(lab.files, "demo")
    lab.publish()
    layer = lab.build("demo")
    facts = json.loads((layer.folder.parent / "layer.json").read_text())
    assert facts["recipe"] == Recipe("curated", ("demo",)).to_json()
    assert (facts["kind"], facts["lock"], facts["modules"]) == (kind_of(lab.base), layer.lock, ["demo"])
    assert facts["bytes"] == layer.bytes > 0
