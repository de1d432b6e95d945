"""Where containers find datasets: the mounts of each runtime, and the folders over which they are mounted."""

from dataclasses import replace
from pathlib import Path

import pytest

from runners.runtime import CreateError, DatasetFolder, Folders
from runners.runtimes import dataset_places, host_config
from runners.runtimes.dataset_places import DatasetPlace
from tests.datasets import MadeDataset
from tests.runners.conftest import make_folders, make_spec

TREE = Path("/agent/datasets/1/files")


def folders_of(top: Path, *datasets: DatasetFolder, data: str = "data", lab: Path | None = None) -> Folders:
    return replace(make_folders(top), datasets=datasets, data=top / data, lab_data=lab)


def test_places_come_in_an_order_in_which_none_hides_another(tmp_path: Path) -> None:
    folders = folders_of(
        tmp_path,
        DatasetFolder("digits", TREE, "../data/MNIST", Path("/copy")),
        DatasetFolder("faces", TREE, "inputs/faces"),
    )
    assert dataset_places.places(folders) == [
        DatasetPlace("faces", TREE, "inputs/faces", False),
        DatasetPlace("digits", Path("/copy"), "../data/MNIST", True),
        DatasetPlace("digits", TREE, "../data/digits", False),
        DatasetPlace("faces", TREE, "../data/faces", False),
    ]
    assert dataset_places.places(replace(folders, data=None)) == []


@pytest.mark.parametrize(
    ("path", "data", "targets"),
    [
        ("", "data", {"/data": True, "/data/digits": True}),
        ("data", "data", {"/data": True, "/data/digits": True, "/workspace/data": False}),
        ("../mnist", "data", {"/data": True, "/data/digits": True, "/mnist": False}),
        ("../data", "datasets", {"/datasets": True, "/datasets/digits": True, "/data": False}),
    ],
)
def test_an_engine_mounts_trees_read_only_and_copies_writable(
    tmp_path: Path, path: str, data: str, targets: dict[str, bool]
) -> None:
    copy = Path("/copy") if path else None
    folders = folders_of(tmp_path, DatasetFolder("digits", TREE, path, copy), data=data, lab=Path("/lab"))
    mounted = {each["Target"]: each["ReadOnly"] for each in host_config.mounts(folders)}
    own = {"/workspace", "/outputs", "/checkpoints", "/run/schedulearn/control", "/run/schedulearn/scribe"}
    assert {target: mode for target, mode in mounted.items() if target not in own} == {
        **targets,
        "/run/schedulearn/data": True,
    }


def test_the_variable_names_the_folder_of_all_datasets() -> None:
    made = MadeDataset({"a": b"1"})
    for path, name in (("", "/data"), ("data", "/data"), ("../data", "/datasets")):
        assert f"SCHEDULEARN_DATA={name}" in host_config.environment(make_spec(datasets=(made.mount("digits", path),)))
    assert "SCHEDULEARN_DATA=/data" in host_config.environment(make_spec())


def test_folders_to_mount_over_are_made_and_the_labs_entries_linked(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    (lab / "old").mkdir(parents=True)
    (lab / "digits").mkdir()
    folders = folders_of(
        tmp_path / "c", DatasetFolder("digits", TREE, "a/b"), DatasetFolder("faces", TREE, "../extra"), lab=lab
    )
    for _ in range(2):  # a start that is repeated
        dataset_places.prepare(folders, "/run/schedulearn/data")
    top = tmp_path / "c"
    assert (top / "workspace" / "a" / "b").is_dir()
    assert sorted(path.name for path in (top / "data").iterdir()) == ["digits", "faces", "old"]
    assert not (top / "data" / "digits").is_symlink()
    assert (top / "data" / "old").readlink() == Path("/run/schedulearn/data/old")
    assert not (top / "extra").exists(), "the engine makes it"
    dataset_places.prepare(folders, str(lab), beside=top)
    assert (top / "extra").is_dir()


def test_where_nothing_can_be_mounted_links_lead_to_the_trees(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "x").write_text("content")
    top = tmp_path / "c"
    folders = folders_of(top, DatasetFolder("digits", tree, "data"))
    (top / "workspace" / "data").mkdir()
    (top / "workspace" / "data" / ".gitkeep").touch()
    for _ in range(2):
        dataset_places.prepare(folders, "", beside=top, links=True)
    assert (top / "workspace" / "data" / "x").read_text() == (top / "data" / "digits" / "x").read_text() == "content"


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("path", ["train.py", "train.py/data"])
def test_a_file_of_the_code_in_the_way_is_named(tmp_path: Path, path: str, links: bool) -> None:
    folders = folders_of(tmp_path, DatasetFolder("digits", TREE, path))
    (tmp_path / "workspace" / "train.py").touch()
    with pytest.raises(CreateError, match=f"The dataset digits cannot be at {path}"):
        dataset_places.prepare(folders, "", links=links)


def test_jobs_without_datasets_have_the_labs_folder_as_before(tmp_path: Path) -> None:
    folders = replace(make_folders(tmp_path), data=Path("/lab"))
    dataset_places.prepare(folders, "/x")
    assert {each["Target"]: each["Source"] for each in host_config.mounts(folders)}["/data"] == "/lab"
