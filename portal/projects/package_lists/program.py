"""The program: the tar of a code version on stdin, allowed addresses as arguments, its package lists as JSON on stdout."""

import json
import sys
import tarfile
from typing import IO

from .gathering import ListFiles
from .model import as_json
from .reading import read_lists


def gather(tar: IO[bytes]) -> ListFiles:
    found = ListFiles()
    with tarfile.open(fileobj=tar, mode="r|") as archive:  # our own tar; as a stream, its offsets are not used
        for member in archive:
            if member.isreg() and found.wants(member.name):
                found.add(member.name, archive.extractfile(member))
    return found


if __name__ == "__main__":
    contents = gather(sys.stdin.buffer).contents
    json.dump([as_json(each) for each in read_lists(contents, contents, sys.argv[1:])], sys.stdout)
