"""Lets extensions that were built for PyTorch with CUDA load beside a PyTorch for CPUs, from inside a sandbox.

``python torch_stubs.py SITE FILE``. The index has torchvision and torchaudio for x86-64 only as CUDA builds. Their libraries
need ``libtorch_cuda.so`` and others, which a PyTorch for CPUs does not have, so that ``import torchvision`` fails, although
their code for CPUs is complete. The loader takes a library that is loaded already for any that is needed by the same name
(SONAME). So this writes libraries with these names that define what is missing, and no more: no such function is called
without a GPU. One module of ours loads them, which each package that needs them imports first.

No compiler is needed: each function is the two instructions "return 0". FILE gets the packages that were changed, as JSON.
Only the standard library is used, and nothing of ours: it runs on whatever Python a base has.
"""

import ast
import ctypes
import json
import os
import platform
import struct
import sys
from pathlib import Path

CUDA_LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_hip.so", "libc10_hip.so")
RUNTIME = "libcudart.so."
MODULE = "_schedulearn_cpu_torch"
FOLDER = MODULE + ".libs"
RETURN_0 = {"x86_64": b"\x31\xc0\xc3", "aarch64": b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"}
MACHINES = {"x86_64": 62, "aarch64": 183}
PAGE = 0x10000
DATA_BYTES = 4096
LOADER = '''"""Loads libraries in place of those of CUDA, which this environment does not have."""

import ctypes
import os

import torch  # its own libraries come first

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{folder}")
for _name in {names!r}:
    ctypes.CDLL(os.path.join(_FOLDER, _name))
'''
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 1, 4, 5, 6, 10, 11, 14
DT_GNU_HASH, DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD


class Library:
    """The names in a 64-bit little-endian ELF library."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError, struct.error or IndexError for a file that is not one."""
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit library")
        self.segments = self._segments()
        self.dynamic = self._dynamic()
        values = dict(self.dynamic)
        self.strings = self._offset(values[DT_STRTAB])
        self.needed = [self._string(value) for tag, value in self.dynamic if tag == DT_NEEDED]

    def _segments(self) -> "list[tuple[int, int, int, int]]":
        start = struct.unpack_from("<Q", self.data, 32)[0]
        size, count = struct.unpack_from("<HH", self.data, 54)
        found = []
        for number in range(count):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", self.data, start + number * size)
            found.append((kind, offset, address, length))
        return found

    def _dynamic(self) -> "list[tuple[int, int]]":
        entries = []
        for kind, offset, _, length in self.segments:
            if kind == 2:
                for at in range(offset, offset + length, 16):
                    tag, value = struct.unpack_from("<qQ", self.data, at)
                    if tag == DT_NULL:
                        break
                    entries.append((tag, value))
        return entries

    def _offset(self, address: int) -> int:
        for kind, offset, start, length in self.segments:
            if kind == 1 and start <= address < start + length:
                return offset + address - start
        raise ValueError("an address outside the file")

    def _string(self, at: int) -> str:
        start = self.strings + at
        return self.data[start : self.data.index(b"\0", start)].decode("ascii", "replace")

    def undefined(self) -> "list[str]":
        """Return the names that other libraries have to define, without those that may be missing."""
        values = dict(self.dynamic)
        if DT_GNU_HASH in values:  # the table begins with the undefined ones
            count = struct.unpack_from("<I", self.data, self._offset(values[DT_GNU_HASH]) + 4)[0]
        else:
            count = struct.unpack_from("<I", self.data, self._offset(values[DT_HASH]) + 4)[0]
        table = self._offset(values[DT_SYMTAB])
        names = []
        for number in range(1, count):
            name, info, _, section = struct.unpack_from("<IBBH", self.data, table + number * 24)
            if section == 0 and info >> 4 == 1:
                names.append(self._string(name))
        return names


def stub(soname: str, names: "list[str]", machine: str) -> bytes:
    """Return an ELF library that defines these names: functions that return 0, and zeros for variables.

    The names have the version SONAME, as those of CUDA's runtime do; the loader takes them for names without a version, too.
    """
    strings = b"\0"
    places = {}
    for name in [soname, *names]:
        places[name] = len(strings)
        strings += name.encode() + b"\0"
    count = len(names) + 1
    symbols_at = 64 + 4 * 56
    hash_at = symbols_at + 24 * count
    strings_at = hash_at + 4 * (2 + 1 + count)
    numbers_at = (strings_at + len(strings) + 15) // 16 * 16
    versions_at = (numbers_at + 2 * count + 15) // 16 * 16
    versions = version_definitions(soname, places[soname])
    code_at = (versions_at + len(versions) + 15) // 16 * 16
    code = RETURN_0[machine]
    text = code_at + len(code)
    dynamic_at = (text + PAGE - 1) // PAGE * PAGE
    dynamic_values = [
        *((DT_SONAME, places[soname]), (DT_HASH, hash_at), (DT_STRTAB, strings_at), (DT_SYMTAB, symbols_at)),
        *((DT_STRSZ, len(strings)), (DT_SYMENT, 24)),
        *((DT_VERSYM, numbers_at), (DT_VERDEF, versions_at), (DT_VERDEFNUM, 2), (DT_NULL, 0)),
    ]
    dynamic = b"".join(struct.pack("<qQ", *each) for each in dynamic_values)
    data_at = dynamic_at + len(dynamic)
    symbols = b"\0" * 24
    for name in names:
        variable = is_variable(name)
        kind, section, value, size = (1, 2, data_at, 256) if variable else (2, 1, code_at, len(code))
        symbols += struct.pack("<IBBHQQ", places[name], 1 << 4 | kind, 0, section, value, size)
    chain = [number + 1 if number + 1 < count else 0 for number in range(count)]
    chain[0] = 0
    table = struct.pack("<III", 1, count, 1 if count > 1 else 0) + struct.pack(f"<{count}I", *chain)
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 3, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    data_size = len(dynamic) + DATA_BYTES
    segments = [
        (1, 5, 0, 0, 0, text, text, PAGE),
        (1, 6, dynamic_at, dynamic_at, dynamic_at, data_size, data_size, PAGE),
        (2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),  # the stack is not executable
    ]
    for segment in segments:
        head += struct.pack("<IIQQQQQQ", *segment)
    numbers = struct.pack(f"<{count}H", 0, *[2] * len(names))
    content = (head + symbols + table + strings).ljust(numbers_at, b"\0") + numbers
    content = (content.ljust(versions_at, b"\0") + versions).ljust(code_at, b"\0") + code
    return content.ljust(dynamic_at, b"\0") + dynamic + b"\0" * DATA_BYTES


def version_definitions(soname: str, place: int) -> bytes:
    """Return the two versions of a stub: 1, of the library itself, and 2, of its names; both are called SONAME."""
    hashed = 0
    for byte in soname.encode():  # as the System V ABI has it
        hashed = (hashed << 4) + byte
        hashed = (hashed ^ (hashed & 0xF0000000) >> 24) & 0x0FFFFFFF
    first = struct.pack("<HHHHIII", 1, 1, 1, 1, hashed, 20, 28) + struct.pack("<II", place, 0)
    return first + struct.pack("<HHHHIII", 1, 0, 2, 1, hashed, 20, 0) + struct.pack("<II", place, 0)


def is_variable(name: str) -> bool:
    """Whether a mangled C++ name is that of a variable: it ends where a function would have its parameters."""
    return name.startswith("_ZN") and name.endswith("E")


def is_missing(soname: str) -> bool:
    return soname in CUDA_LIBRARIES or soname.startswith(RUNTIME)


def open_quietly(path: str) -> "ctypes.CDLL | None":
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def definers(site: Path) -> "list[ctypes.CDLL]":
    """Return the libraries that define what extensions need: this process, PyTorch's, and those in ``*.libs`` folders."""
    import torch

    paths = sorted((Path(torch.__file__).parent / "lib").glob("*.so*"))
    paths += sorted(site.glob("*.libs/*.so*")) * 2  # some need another one of them
    usual = ["libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"]
    opened = [open_quietly(str(path)) for path in [*usual, *paths]]
    return [ctypes.CDLL(None), *(each for each in opened if each is not None)]


def defined(name: str, libraries: "list[ctypes.CDLL]") -> bool:
    return any(hasattr(library, name) for library in libraries)


def extensions(site: Path) -> "dict[str, list[Library]]":
    """Return the libraries that need those of CUDA's PyTorch, by their top-level package."""
    found = {}  # type: dict[str, list[Library]]
    for folder, _, files in os.walk(site):
        for name in files:
            path = Path(folder, name)
            package = path.relative_to(site).parts[0]
            if ".so" not in name or not package.isidentifier() or path.is_symlink():
                continue
            try:
                library = Library(path)
            except (ValueError, KeyError, IndexError, struct.error):
                continue
            if any(each in CUDA_LIBRARIES for each in library.needed):
                found.setdefault(package, []).append(library)
    return found


def write_stubs(site: Path, libraries: "list[Library]", machine: str) -> "list[str]":
    """Write a library for each name that is needed and missing. Returns their file names."""
    folder = site / FOLDER
    folder.mkdir()
    wanted = sorted({name for library in libraries for name in library.undefined()})
    available = definers(site)
    missing = [name for name in wanted if not defined(name, available)]
    names = sorted({each for library in libraries for each in library.needed if is_missing(each)})
    for soname in names:
        real = sorted(site.glob("*.libs/libcudart.*" + soname.partition(".so")[2]))
        if soname.startswith(RUNTIME) and real:
            (folder / soname).symlink_to(Path("..", real[0].relative_to(site)))
        else:
            (folder / soname).write_bytes(stub(soname, missing, machine))
    return names


def import_first(path: Path) -> None:
    """Have a package import our module before all else, after its docstring and its imports from the future."""
    text = path.read_text(encoding="utf-8")
    line = 0
    for node in ast.parse(text).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line = node.end_lineno or 0
    lines = text.splitlines(True)
    lines.insert(line, "import " + MODULE + "  # loads libraries in place of those of CUDA\n")
    path.write_text("".join(lines), encoding="utf-8")


def main(folder: str, report: str) -> None:
    site = Path(folder)
    sys.path.insert(0, folder)
    found = extensions(site)
    machine = platform.machine()
    changed = []
    if found and machine in MACHINES:
        import torch

        if torch.version.cuda is None:
            names = write_stubs(site, [each for group in found.values() for each in group], machine)
            (site / (MODULE + ".py")).write_text(LOADER.format(folder=FOLDER, names=names))
            for package in sorted(found):
                start = site / package / "__init__.py"
                if start.is_file() and package != "torch":
                    import_first(start)
                    changed.append(package)
    Path(report).write_text(json.dumps(changed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
