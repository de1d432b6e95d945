"""Messages about the datasets of jobs: how they arrive on a node, and why one does not."""

from dataclasses import dataclass

from runners.messages import Message

MIB = 2**20


def size_in_words(count: int) -> str:
    """Return bytes in MiB or GiB, as people compare them."""
    mib = count / MIB
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def part_in_words(done: int, total: int) -> str:
    """Return how much of a number of bytes is done: ``1.2 of 2.0 GiB``."""
    unit, name = (2**30, "GiB") if total >= 2**30 else (MIB, "MiB")
    digits = 1 if unit == 2**30 else 0
    return f"{done / unit:.{digits}f} of {total / unit:.{digits}f} {name}"


@dataclass(frozen=True)
class FetchingDataset(Message):
    code = "container.fetching_dataset"
    name: str
    done: int
    """Bytes."""
    total: int

    @property
    def text(self) -> str:
        return f"fetching the dataset {self.name}: {part_in_words(self.done, self.total)}"


@dataclass(frozen=True)
class CopyingDataset(Message):
    """A copy that the job may write to."""

    code = "container.copying_dataset"
    name: str
    done: int
    total: int

    @property
    def text(self) -> str:
        return f"copying the dataset {self.name}: {part_in_words(self.done, self.total)}"


@dataclass(frozen=True)
class DatasetNotFetched(Message):
    code = "container.dataset_not_fetched"
    name: str
    error: Message

    @property
    def text(self) -> str:
        return f"The dataset {self.name} could not be fetched: {self.error.text}"


@dataclass(frozen=True)
class DatasetTooLarge(Message):
    """It is larger than what the node keeps of all datasets."""

    code = "container.dataset_too_large"
    name: str
    size: int
    limit: int

    @property
    def text(self) -> str:
        return (
            f"The dataset {self.name} has {size_in_words(self.size)}, and its node keeps at most "
            f"{size_in_words(self.limit)} of datasets. Ask an admin to raise SCHEDULEARN_DATASET_CACHE_GIB there."
        )


@dataclass(frozen=True)
class NoSpaceForDataset(Message):
    """What is unused was deleted already."""

    code = "container.no_space_for_dataset"
    name: str
    needed: int
    """Bytes."""
    free: int

    @property
    def text(self) -> str:
        return (
            f"The dataset {self.name} needs {size_in_words(self.needed)}, and {size_in_words(self.free)} are free on its "
            "node. Ask an admin to make room, or run the job on another node."
        )


@dataclass(frozen=True)
class DatasetsInUse(Message):
    """What other jobs use now fills the space for datasets of the node."""

    code = "container.datasets_in_use"
    name: str
    limit: int

    @property
    def text(self) -> str:
        return (
            f"waiting for space for the dataset {self.name}: running jobs use the {size_in_words(self.limit)} that its node "
            "keeps of datasets"
        )


@dataclass(frozen=True)
class DatasetPathTaken(Message):
    """Something that is no folder is where the job is to find a dataset."""

    code = "container.dataset_path_taken"
    name: str
    path: str

    @property
    def text(self) -> str:
        return f"The dataset {self.name} cannot be at {self.path}: the code has a file there. Choose another path."


@dataclass(frozen=True)
class DatasetOverLimit(Message):
    """What the job wrote to its copies of datasets."""

    code = "container.dataset_over_limit"
    used_mib: int
    limit_mib: int

    @property
    def text(self) -> str:
        return (
            f"It wrote {self.used_mib:,} MiB to its copies of datasets; its limit is {self.limit_mib:,} MiB. Write results to "
            "/outputs."
        )


@dataclass(frozen=True)
class DatasetDamaged(Message):
    code = "portal.dataset_damaged"
    text = "A file of a dataset that arrived is not the one that was requested (its SHA-256 differs)."


@dataclass(frozen=True)
class DatasetLost(Message):
    """The portal no longer has the content of a file."""

    code = "portal.dataset_lost"
    name: str
    path: str

    @property
    def text(self) -> str:
        return (
            f"“{self.path}” of the dataset {self.name} is missing in the portal. An admin can look for it in the backup of "
            "the portal's files."
        )
