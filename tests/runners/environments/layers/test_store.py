"""Keeping layers, and sending them from node to node as one file."""

import hashlib
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runners.environments.layers import store
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.store import BuiltLayer
from runners.environments.preparing import PrepareError
from runners.messages.layer_failures import DamagedLayer

KIND = "cp311-linux_x86_64-glibc2.36-cpu-0123456789ab"
RECIPE = Recipe("pytorch", ("demo",))
Change = Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_layer(tmp_path: Path, lock: str = "demo==1.0\n", recipe: Recipe = RECIPE) -> BuiltLayer:
    made = tmp_path / "made"
    (made / "demo" / "deep").mkdir(parents=True)
    (made / "demo" / "__init__.py").write_text("x = 1\n")
    (made / "demo" / "deep" / "data").write_bytes(os.urandom(3000))
    (made / "demo" / "library.so.1").symlink_to("deep/data")
    (made / "bin").mkdir()
    (made / "bin" / "run").write_text("#!/usr/bin/env python3\n")
    (made / "bin" / "run").chmod(0o755)
    digest = store.digest_of(KIND, lock, recipe)
    return store.place(made, BuiltLayer(digest, lock, made, 3000, ("demo",), 1, KIND, recipe))


def listing(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else "",
        )
        for path in folder.rglob("*")
    }


def test_a_layer_is_found_by_its_digest_and_by_its_recipe(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    assert layer.folder == store.path_of(layer.digest) == tmp_path / "cache" / "layers" / layer.digest / "site-packages"
    assert store.find(RECIPE, KIND) == store.layer_of(layer.digest) == layer
    assert store.find(Recipe("pytorch", ("other",)), KIND) is None and store.find(RECIPE, "other") is None
    assert store.path_of("0" * 64) is None and store.layer_of("0" * 64) is None


@pytest.mark.parametrize("digest", ["", "..", "../" + "0" * 61, "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_only_a_digest_names_a_layer(digest: str) -> None:
    with pytest.raises(ValueError, match="not the digest"):
        store.path_of(digest)


def test_the_digest_depends_on_kind_and_lock_and_not_on_where_one_ends() -> None:
    digests = {store.digest_of(*each, RECIPE) for each in (("a", "bc"), ("ab", "c"), ("a", "b"), ("", ""))}
    assert len(digests) == 4


def test_the_digest_of_what_was_built_from_source_depends_on_the_recipe() -> None:
    """Code of a package may have changed the lock and the other packages: other lists must not lead to that."""
    built = [replace(RECIPE, source_builds=True), replace(RECIPE, source_builds=True, lines=("other",))]
    digests = {store.digest_of(KIND, "demo==1.0", recipe) for recipe in (RECIPE, *built)}
    assert len(digests) == 3
    assert store.digest_of(KIND, "demo==1.0", Recipe("pytorch", ("other",))) in digests


def test_a_damaged_layer_does_not_exist(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    facts = layer.folder.parent / "layer.json"
    for text in ("", "{}", '{"lock": 1}', "[]", "null"):
        facts.write_text(text)
        assert store.layer_of(layer.digest) is None and store.find(RECIPE, KIND) is None


def test_packing_is_repeatable_and_unpacking_restores_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_layer(tmp_path)
    before = listing(layer.folder)
    first = store.pack(layer.digest, tmp_path / "one.tar")
    for path in layer.folder.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    second = store.pack(layer.digest, tmp_path / "two.tar")
    assert first.sha256 == second.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "other node"))
    folder = store.unpack(first.path, layer.digest, first.sha256)
    assert listing(folder) == before and store.find(RECIPE, KIND) is not None
    assert store.unpack(first.path, layer.digest, first.sha256) == folder, "it may be repeated"
    assert [path.name for path in store.home().iterdir()] == [layer.digest]


def test_a_layer_that_is_not_here_cannot_be_packed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.pack("0" * 64, tmp_path / "x.tar")


def rewrite(path: Path, change: Change) -> str:
    """Change the members of a tar. Returns its new hash."""
    members = []
    with tarfile.open(path) as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isreg() else None
            members += change(member, source.read() if source else b"")
    with tarfile.open(path, "w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def extra(name: str, **facts: object) -> Change:
    """Add one member at the end."""

    def change(member: tarfile.TarInfo, content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if member.name != "site-packages/demo/deep/data":
            return [(member, content)]
        added = tarfile.TarInfo(name)
        for key, value in facts.items():
            setattr(added, key, value)
        return [(member, content), (added, b"evil" if added.isreg() else b"")]

    return change


def linked(member: tarfile.TarInfo, content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Replace a folder by a link, through which its files would be written."""
    if member.name == "site-packages/demo/deep":
        link = tarfile.TarInfo(member.name)
        link.type, link.linkname = tarfile.SYMTYPE, "../../.."
        return [(link, b"")]
    return [(member, content)]


@pytest.mark.parametrize(
    "change",
    [
        extra("../evil"),
        extra("/tmp/evil"),  # noqa: S108
        extra("site-packages/../../evil"),
        extra("nowhere/evil"),
        extra("site-packages/demo/__init__.py"),
        extra("site-packages/evil.pth"),
        extra("site-packages/sitecustomize.py"),
        extra("site-packages/device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        extra("site-packages/fifo", type=tarfile.FIFOTYPE),
        extra("site-packages/hard", type=tarfile.LNKTYPE, linkname="site-packages/demo/__init__.py"),
        extra("site-packages/hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        extra("site-packages/absolute", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        extra("site-packages/outside", type=tarfile.SYMTYPE, linkname="../../etc/passwd"),
        extra("site-packages/demo/outside", type=tarfile.SYMTYPE, linkname="../x/../../y"),
        linked,
        lambda member, content: [] if member.name == "layer.json" else [(member, content)],
        lambda member, content: [(member, b"{}" if member.name == "layer.json" else content)],
        lambda member, content: [(member, content.replace(b"demo==1.0", b"demo==2.0"))],
        lambda member, content: [(member, content)] if member.name == "layer.json" else [],
    ],
)
def test_a_hostile_file_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    layer = make_layer(tmp_path)
    packed = store.pack(layer.digest, tmp_path / "layer.tar")
    sha256 = rewrite(packed.path, change)
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "node" / "cache"))
    with pytest.raises(PrepareError) as error:
        store.unpack(packed.path, layer.digest, sha256)
    assert isinstance(error.value.failure, DamagedLayer)
    assert list((tmp_path / "node").rglob("*")) == [tmp_path / "node" / "cache", store.home()]
    assert not (tmp_path / "evil").exists()


def test_a_file_with_another_hash_or_cut_off_is_refused(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    packed = store.pack(layer.digest, tmp_path / "layer.tar")
    whole = packed.path.read_bytes()
    for content in (whole[:-1], whole + b"x", b"", whole[:700]):
        packed.path.write_bytes(content)
        with pytest.raises(PrepareError, match="does not have its hash"):
            store.unpack(packed.path, layer.digest, packed.sha256)
        with pytest.raises(PrepareError):
            store.unpack(packed.path, "1" * 64, hashlib.sha256(content).hexdigest())
    assert store.layer_of(layer.digest) == layer, "the one that is here stays"


def test_set_user_id_bits_are_not_unpacked(tmp_path: Path) -> None:
    layer = make_layer(tmp_path)
    packed = store.pack(layer.digest, tmp_path / "layer.tar")
    folder = store.unpack(packed.path, layer.digest, rewrite(packed.path, extra("site-packages/tool", mode=0o6777)))
    assert (folder / "tool").stat().st_mode & 0o7777 == 0o755


def test_unused_layers_are_removed_and_used_and_named_ones_stay(tmp_path: Path) -> None:
    layers = [make_layer(tmp_path, f"demo=={number}.0\n") for number in range(3)]
    for layer in layers:
        os.utime(layer.folder.parent / "layer.json", (1, 1))
    store.mark_used(layers[0].digest)
    store.mark_used("0" * 64)
    left = store.home() / ".work-killed"
    left.mkdir()
    os.utime(left, (1, 1))
    assert store.tidy(keep={layers[1].digest}, unused_for_seconds=3600) == layers[2].bytes
    assert {path.name for path in store.home().iterdir()} == {layers[0].digest, layers[1].digest}
    assert store.tidy(keep=(), unused_for_seconds=0) == sum(layer.bytes for layer in layers[:2])


def test_a_damaged_layer_is_removed_too(tmp_path: Path) -> None:
    facts = make_layer(tmp_path).folder.parent / "layer.json"
    facts.write_text("{")
    assert store.tidy(keep=(), unused_for_seconds=3600) == 0 and facts.exists()
    os.utime(facts, (1, 1))
    assert store.tidy(keep=(), unused_for_seconds=3600) == 0 and not facts.parent.exists()


def test_layers_that_another_agent_removes_meanwhile_do_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {layer.digest: layer for layer in (make_layer(tmp_path, f"demo=={number}.0\n") for number in range(2))}
    first, second = sorted(layers)
    find = store.layer_of

    def find_and_lose(digest: str) -> BuiltLayer | None:
        found = find(digest)
        if digest == first:
            shutil.rmtree(store.folder_of(digest))
        return found

    monkeypatch.setattr(store, "layer_of", find_and_lose)
    assert store.tidy(keep=(), unused_for_seconds=0) == layers[second].bytes


def test_a_layer_that_is_placed_again_is_replaced(tmp_path: Path) -> None:
    first = make_layer(tmp_path)
    (first.folder / "old").touch()
    time.sleep(0)
    second = make_layer(tmp_path)
    assert second.folder == first.folder and not (second.folder / "old").exists()
