"""Reads the lists of an upload."""

from collections.abc import Iterable, Mapping, Sequence

from .collecting import Collector, Read
from .conda import read_conda
from .finding import find_lists, kind_of
from .model import PackageList
from .pyproject import read_pyproject
from .requirements_files import RequirementsReader


def read_list(path: str, read: Read, allowed: Sequence[str] = ()) -> PackageList:
    """Read one file of an upload, and the files that it includes.

    ``read`` returns the content of a file by its path; ``allowed`` are the addresses that an admin has allowed as sources.
    """
    kind = kind_of(path) or "requirements"
    collector = Collector(path, kind, tuple(allowed))
    reader = RequirementsReader(collector, read)
    if kind == "pyproject":
        read_pyproject(path, collector, read)
    elif kind == "conda":
        read_conda(path, collector, reader)
    else:
        reader.read_file(path)
    return collector.finish()


def read_lists(paths: Iterable[str], contents: Mapping[str, bytes], allowed: Sequence[str] = ()) -> list[PackageList]:
    """Read the lists of an upload that are offered, in their order, without those in which there is nothing."""
    lists = (read_list(path, contents.get, allowed) for path in find_lists(paths))
    return [found for found in lists if not found.is_empty]
