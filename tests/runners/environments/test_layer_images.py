"""Layers as images of the engine, where an admin prefers them to mounts."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.agent.settings import Settings
from runners.environments import layer_images
from runners.environments.docker_images import DockerImages
from runners.environments.layer_images import LABEL, LayerImages
from runners.environments.layers import store
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.store import BuiltLayer
from runners.runtime import Folders
from runners.runtimes.docker import DockerRuntime
from tests.runners.conftest import make_spec

LOCK = "demo==1.0 --hash=sha256:0\n"
LOOK = """
import os, sys
sys.path.append(os.environ["SCHEDULEARN_LAYER"])
import demo
print(demo.VERSION, os.readlink("/opt/layer/demo/current"), os.access("/opt/layer/bin/run", os.X_OK))
print("mounted" if "/opt/layer" in open("/proc/self/mounts").read() else "not mounted")
"""


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltLayer:
    """A layer in a store of its own."""
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "made"
    (made / "demo").mkdir(parents=True)
    (made / "demo" / "__init__.py").write_text("VERSION = '1.0'\n")
    (made / "demo" / "current").symlink_to("__init__.py")
    (made / "bin").mkdir()
    (made / "bin" / "run").write_text("#!/bin/sh\n")
    (made / "bin" / "run").chmod(0o755)
    kind = f"kind of {tmp_path}"
    recipe = Recipe("python", ("demo",))
    facts = BuiltLayer(store.digest_of(kind, LOCK, recipe), LOCK, made, 100, ("demo",), 1, kind, recipe)
    store.home().mkdir(parents=True)
    return store.place(made, facts)


@pytest.fixture
def images(engine: None) -> Iterator[LayerImages]:
    made = LayerImages(DockerImages())
    yield made
    for image in made.engine.client.api.images(filters={"reference": f"{layer_images.REPOSITORY}:*"}):
        for tag in image["RepoTags"] or []:
            made.engine.remove(tag)


@pytest.mark.docker
def test_a_container_gets_the_packages_without_a_mount(
    pretender: str, images: LayerImages, layer: BuiltLayer, folders: Folders, tmp_path: Path
) -> None:
    runtime = DockerRuntime(
        f"test {tmp_path}", "node", lambda key: pretender, layer_of=store.path_of, layer_images=images
    )
    spec = make_spec(layer=layer.digest)
    (folders.workspace / "main.py").write_text(LOOK)
    try:
        runtime.create(spec, folders)
        runtime.start(spec.name)
        end = time.monotonic() + 30
        while runtime.list()[0].state != "exited" and time.monotonic() < end:
            time.sleep(0.1)
        printed = runtime.logs(spec.name, 10_000).decode()
    finally:
        runtime.remove(spec.name)
    assert "1.0 __init__.py True" in printed and "not mounted" in printed, printed
    before = images.image_of(pretender, layer.digest, layer.folder)
    created = images.engine.client.api.inspect_image(before)["Created"]
    assert images.image_of(pretender, layer.digest, layer.folder) == before
    assert images.engine.client.api.inspect_image(before)["Created"] == created


@pytest.mark.docker
def test_an_image_is_removed_once_its_layer_is_gone(
    pretender: str, images: LayerImages, layer: BuiltLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = images.image_of(pretender, layer.digest, layer.folder)
    assert images.engine.client.api.inspect_image(tag)["Config"]["Labels"][LABEL] == layer.digest
    monkeypatch.setattr(layer_images, "UNUSED_SECONDS", -60)
    images.remove_unused()
    assert images.engine.id_of(tag) is not None
    store.tidy((), -60)
    images.remove_unused()
    assert images.engine.id_of(tag) is None


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("no", False), ("true", True)])
def test_an_admin_chooses_it_on_the_node(value: str, wanted: bool) -> None:
    assert Settings.read([], {"SCHEDULEARN_LAYER_IMAGES": value}).layer_images is wanted
