"""Datasets on a node: where programs find them, in every runtime, what they may write, and what is left afterwards."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.agent import disk_watch, job_datasets
from runners.agent.job_datasets import JobDatasets, clone
from runners.agent.settings import Settings
from runners.host import processes
from runners.host.node_files import NodeFiles
from runners.messages import Message
from runners.messages.datasets import CopyingDataset, DatasetOverLimit, FetchingDataset
from runners.runtime import CreateError, SetupError
from runners.spec import DatasetMount, Resources, RunSpec
from tests.datasets import DatasetGiver, MadeDataset, content_of
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import NAME, AgentProcess, Bench, entry, give_code, spec_of

DIGITS = MadeDataset(
    {
        "MNIST/raw/train-images": b"images",
        "MNIST/raw/train-labels": b"labels",
        "MNIST/make.sh": b"#!/bin/sh\necho made\n",
    },
    frozenset({"MNIST/make.sh"}),
)
FACES = MadeDataset({"a.png": b"one", "b/c.png": b"two"})
READ = b"""
import json, os, pathlib, subprocess

class MNIST:
    # as torchvision's: it makes its folders, and downloads what is not there
    def __init__(self, root, train, download):
        self.raw = pathlib.Path(root) / "MNIST" / "raw"
        if download and not self.complete():
            os.makedirs(self.raw, exist_ok=True)
            raise RuntimeError("there is no network")
        self.data = (self.raw / "train-images").read_text()

    def complete(self):
        return all((self.raw / f"train-{part}").is_file() for part in ("images", "labels"))

def writes(path, mode="w"):
    try:
        with open(path, mode) as file:
            file.write("changed")
        return True
    except OSError:
        return False

data = os.environ["SCHEDULEARN_DATA"]
print(json.dumps({
    "mnist": MNIST("../data", train=True, download=True).data,
    "walk": sorted(name for _, _, names in os.walk("../data") for name in names),
    "by name": sorted(os.listdir(data)),
    "faces": sorted(name for _, _, names in os.walk(os.path.join(data, "faces")) for name in names),
    "program": subprocess.run(["../data/MNIST/make.sh"], capture_output=True, text=True).stdout,
    "inside": open("inputs/faces/b/c.png").read(),
    "writes to its copy": [writes("../data/MNIST/raw/train-labels"), writes("../data/processed"),
                           writes("../data/MNIST/raw/more"), open("../data/MNIST/raw/train-labels").read()],
    "writes elsewhere": [writes(f"{data}/faces/a.png"), writes(f"{data}/faces/new"), writes(f"{data}/new"),
                         writes("inputs/faces/a.png"), writes("inputs/faces/new"),
                         writes(f"{data}/digits/MNIST/raw/train-labels")],
    "the others'": open(f"{data}/digits/MNIST/raw/train-labels").read(),
}), flush=True)
"""
FOUND = {
    "mnist": "images",
    "walk": ["make.sh", "train-images", "train-labels"],
    "by name": ["digits", "faces"],
    "faces": ["a.png", "c.png"],
    "program": "made\n",
    "inside": "two",
    "writes to its copy": [True, True, True, "changed"],
    "writes elsewhere": [False] * 6,
    "the others'": "labels",
}
LISTS = b"""
import os
data = os.environ["SCHEDULEARN_DATA"]
print(sorted(os.listdir(data)), open(f"{data}/old/x").read(), open(f"{data}/faces/a.png").read(), flush=True)
"""


def mounts() -> tuple[DatasetMount, ...]:
    return DIGITS.mount("digits", "../data", writable=True), FACES.mount("faces", "inputs/faces")


def reading(sha256: str, **fields: Any) -> RunSpec:
    return spec_of(sha256, command=("python", "read.py"), datasets=mounts(), **fields)


def give_datasets(portal: FakePortal) -> None:
    portal.datasets = {made.sha256: made for made in (DIGITS, FACES)}


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path / "agent")
    files.make()
    return files


@pytest.fixture
def datasets(files: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> JobDatasets:
    return JobDatasets(files, DatasetGiver.of(DIGITS, FACES), 1, lambda: {})


def test_a_copy_has_the_files_and_modes_and_goes_at_the_end(
    files: NodeFiles, datasets: JobDatasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.cache._wanted = lambda: {DIGITS.sha256, FACES.sha256}
    seen: list[Message] = []
    spec = reading("0" * 64)
    files.make_container(spec)
    datasets.place(spec, seen.append)
    copy = files.dataset_copy(NAME, "digits")
    assert content_of(copy) == DIGITS.files
    assert (copy / "MNIST/make.sh").stat().st_mode & 0o777 == 0o755
    assert (copy / "MNIST/raw/train-images").stat().st_mode & 0o777 == 0o644
    assert not files.dataset_copy(NAME, "faces").exists()
    assert (
        FetchingDataset("digits", DIGITS.size, DIGITS.size) in seen and CopyingDataset("digits", 0, DIGITS.size) in seen
    )
    (copy / "MNIST/raw/train-images").write_bytes(b"kept")
    datasets.place(spec, seen.append)
    assert (copy / "MNIST/raw/train-images").read_bytes() == b"kept", "a start that is repeated changes nothing"
    assert content_of(datasets.cache.files(DIGITS.sha256)) == DIGITS.files
    datasets.remove(NAME)
    datasets.remove(NAME)
    assert not files.dataset_copies(NAME).exists()
    datasets.place(replace(spec, role="driver", hostname="driver", name="sl-9-a1-0"), seen.append)
    assert not files.dataset_copies("sl-9-a1-0").exists(), "a driver reads no data"


def test_a_copy_for_which_there_is_no_space_is_refused(
    files: NodeFiles, datasets: JobDatasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.cache._wanted = lambda: {DIGITS.sha256}
    monkeypatch.setattr(job_datasets, "SPARE_BYTES", 1 << 60)
    monkeypatch.setattr(job_datasets, "clone", lambda source, target: False)
    with pytest.raises(CreateError, match="The dataset digits needs"):
        datasets.place(replace(reading("0" * 64), datasets=mounts()[:1]), lambda _: None)
    assert not files.dataset_copy(NAME, "digits").exists()


def test_a_file_is_cloned_only_where_the_disk_can_do_that(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    if clone(tmp_path / "one", tmp_path / "two"):
        assert (tmp_path / "two").read_bytes() == b"content"


def test_what_a_job_writes_to_its_copy_counts(files: NodeFiles, datasets: JobDatasets) -> None:
    datasets.cache._wanted = lambda: {DIGITS.sha256, FACES.sha256}
    spec = reading("0" * 64, resources=Resources(disk_mib=1))
    files.make_container(spec)
    datasets.place(spec, lambda _: None)
    assert disk_watch.exceeded_limit(files, spec) is None
    (files.dataset_copy(NAME, "digits") / "large").write_bytes(b"1" * (3 << 20))
    assert isinstance(disk_watch.exceeded_limit(files, spec), DatasetOverLimit)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": ""},
        {"sha256": "../../etc"},
        {"path": "/etc"},
        {"path": "a//b"},
        {"path": ".."},
        {"path": "a/../b"},
        {"path": "../../x"},
        {"path": "", "writable": True},
        {"size": "x"},
    ],
)
def test_a_specification_with_another_place_is_not_followed(change: dict[str, Any]) -> None:
    made = reading("0" * 64).to_json()
    assert RunSpec.from_json(made).datasets == mounts()
    with pytest.raises(ValueError):
        RunSpec.from_json({**made, "datasets": [{**made["datasets"][0], **change}]})


def test_jobs_without_datasets_have_the_specification_of_before(files: NodeFiles) -> None:
    spec = spec_of("0" * 64)
    assert "datasets" not in spec.to_json() and RunSpec.from_json(spec.to_json()) == spec
    assert files.folders(spec).data is None and files.folders(spec).datasets == ()


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "99999999"])
def test_the_limit_is_a_number_of_gib(value: str) -> None:
    assert Settings.read([], {}).dataset_cache_gib == 200
    assert Settings.read([], {"SCHEDULEARN_DATASET_CACHE_GIB": "7"}).dataset_cache_gib == 7
    assert Settings.read(["--dataset-cache-gib", "8"], {"SCHEDULEARN_DATASET_CACHE_GIB": "7"}).dataset_cache_gib == 8
    with pytest.raises(SetupError, match="SCHEDULEARN_DATASET_CACHE_GIB"):
        Settings.read([], {"SCHEDULEARN_DATASET_CACHE_GIB": value})


def test_a_node_reports_its_datasets_and_fetches_each_once(bench: Bench, portal: FakePortal) -> None:
    give_datasets(portal)
    sha256 = give_code(portal)
    portal.want(entry(reading(sha256)), entry(reading(sha256, name="sl-2-a1-0", job=2)))
    bench.start()
    portal.until(lambda: not portal.desired)
    assert [portal.container(name)["exit_code"] for name in (NAME, "sl-2-a1-0")] == [0, 0]
    portal.until(lambda: len(portal.reports[-1]["facts"].get("cached_datasets", ())) == 2)
    facts = portal.reports[-1]["facts"]
    assert facts["job_datasets"] is True and facts["cached_datasets"] == sorted([DIGITS.sha256, FACES.sha256])
    assert sum(count for path, count in portal.requests.items() if path.endswith("/contents")) == 2
    assert not bench.files.dataset_copies(NAME).exists()


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "agent", portal)
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for pid in processes.pids_with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)


def test_a_program_finds_its_datasets_where_it_expects_them(agent: AgentProcess, portal: FakePortal) -> None:
    give_datasets(portal)
    portal.want(entry(reading(give_code(portal, {"read.py": READ, "inputs/faces/.gitkeep": b""}))))
    agent.start()
    portal.until(lambda: not portal.desired)
    assert portal.container(NAME)["exit_code"] == 0, portal.log(NAME)
    found, confined = json.loads(portal.log(NAME)), agent.env.get("SCHEDULEARN_CONFINE") != "no"
    if not confined and os.geteuid() == 0:
        found["writes elsewhere"] = FOUND["writes elsewhere"]  # a plain process of root may write everywhere
        found["the others'"] = FOUND["the others'"]
    assert found == FOUND
    assert {name for _, name in portal.outputs} == set(), "no part of a dataset is an output"
    if confined:
        for made in (DIGITS, FACES):
            assert content_of(agent.home / "datasets" / made.sha256 / "files") == made.files
    portal.until(lambda: not list((agent.home / "containers").iterdir()))
    assert agent.end() == 0


def test_the_folder_of_the_lab_is_there_as_well(agent: AgentProcess, portal: FakePortal, tmp_path: Path) -> None:
    lab = agent.home.parent / "lab-data"
    for name, content in (("old/x", "lab"), ("faces/a.png", "hidden")):
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text(content)
    if os.geteuid() == 0 and (owner := agent.home.parent.stat().st_uid):
        for path in (lab, *lab.rglob("*")):
            os.chown(path, owner, owner)
    agent.env["SCHEDULEARN_DATASETS"] = str(lab)
    give_datasets(portal)
    sha256 = give_code(portal, {"lists.py": LISTS})
    portal.want(entry(spec_of(sha256, command=("python", "lists.py"), datasets=(FACES.mount("faces"),))))
    agent.start()
    portal.until(lambda: not portal.desired)
    assert portal.log(NAME) == b"['faces', 'old'] lab one\n"
    assert agent.end() == 0


def test_a_job_whose_dataset_is_refused_fails_with_the_reason(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(entry(reading(give_code(portal))))
    agent.start()
    portal.until(lambda: not portal.desired)
    ended = portal.container(NAME)
    assert ended["exit_reason"] == "create_error"
    assert ended["message"]["code"] == "container.dataset_not_fetched"
    assert "was archived" in str(ended["message"])


def test_an_agent_that_is_killed_while_it_fetches_goes_on_where_it_was(agent: AgentProcess, portal: FakePortal) -> None:
    large = MadeDataset({f"part-{number}": bytes([number]) * (1 << 20) for number in range(40)})
    portal.datasets = {large.sha256: large}
    portal.faults = lambda path: "down" if "line=" in path and portal.requests.total() % 2 else ""
    spec = spec_of(give_code(portal), datasets=(large.mount("large"),))
    portal.want(entry(spec))
    agent.start()
    part = agent.home / "datasets" / f"{large.sha256}.part" / "files"
    complete = part.parent.with_name(large.sha256)
    portal.until(lambda: complete.exists() or (part.is_dir() and len(list(part.iterdir())) > 3), 60)
    agent.kill()
    agent.start()
    portal.until(lambda: not portal.desired, 60)
    assert portal.container(NAME)["exit_code"] == 0, portal.log(NAME)
    assert content_of(complete / "files") == large.files
    assert agent.end() == 0
