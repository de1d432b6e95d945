"""Libraries in place of those of CUDA: written without a compiler, and loaded by the real loader."""

import ctypes
import platform
import sys
from pathlib import Path

import pytest

from runners.environments.layers.torch_stubs import MODULE, RETURN_0, Library, import_first, is_variable, stub

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in RETURN_0, reason="there are no CUDA builds for this machine"
)
FUNCTIONS = ["cudaGetDeviceCount", "_ZN3c104cuda12device_countEv"]
VARIABLE = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"


def test_a_library_defines_the_names_and_each_function_returns_0(tmp_path: Path) -> None:
    path = tmp_path / "libtorch_cuda.so"
    path.write_bytes(stub("libtorch_cuda.so", [*FUNCTIONS, VARIABLE], platform.machine()))
    library = ctypes.CDLL(str(path))
    assert [getattr(library, name)() for name in FUNCTIONS] == [0, 0]
    assert ctypes.c_void_p.in_dll(library, VARIABLE).value is None
    with pytest.raises(AttributeError):
        library.other  # noqa: B018


def test_names_have_the_version_that_callers_of_cuda_s_runtime_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "libcudart.so.13"
    path.write_bytes(stub("libcudart.so.13", FUNCTIONS, platform.machine()))
    library = ctypes.CDLL(str(path))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    assert find(library._handle, b"cudaGetDeviceCount", b"libcudart.so.13")
    assert not find(library._handle, b"cudaGetDeviceCount", b"libcudart.so.12")


def test_a_library_may_define_nothing_or_very_much(tmp_path: Path) -> None:
    names = [f"name_{number}" for number in range(5000)]
    for count in (0, 5000):
        path = tmp_path / f"libc10_cuda{count}.so"
        path.write_bytes(stub(path.name, names[:count], platform.machine()))
        library = ctypes.CDLL(str(path))
        assert all(hasattr(library, name) for name in names[:count])


def test_what_a_real_library_needs_is_read(tmp_path: Path) -> None:
    import _ctypes

    path = getattr(_ctypes, "__file__", None)
    if path is None:
        pytest.skip("this Python has no extension as a file")
    library = Library(Path(path))
    assert any(name.startswith("libffi") for name in library.needed) or "libc.so.6" in library.needed
    assert "PyModule_AddObject" in library.undefined() or any(name.startswith("Py") for name in library.undefined())


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\0" * 200, b"\x7fELF\x01\x01" + b"\0" * 99]
)
def test_what_is_no_library_is_an_error_that_is_expected(tmp_path: Path, content: bytes) -> None:
    import struct

    (tmp_path / "x.so").write_bytes(content)
    with pytest.raises((ValueError, KeyError, IndexError, struct.error)):
        Library(tmp_path / "x.so").undefined()


def test_variables_are_separated_from_functions() -> None:
    assert is_variable(VARIABLE) and not any(is_variable(name) for name in FUNCTIONS)


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("import os\n", 0),
        ("", 0),
        ('"""Words."""\nimport os\n', 1),
        ('# Words\n"""Words\nof two lines."""\nfrom __future__ import annotations\nimport os\n', 4),
        ('"""Words."""\n"""More."""\nx = 1', 2),
    ],
)
def test_a_package_imports_our_module_first(tmp_path: Path, before: str, line: int) -> None:
    path = tmp_path / "__init__.py"
    path.write_text(before)
    import_first(path)
    lines = path.read_text().splitlines()
    assert lines[line].startswith(f"import {MODULE}")
    assert "".join(f"{each}\n" for number, each in enumerate(lines) if number != line).rstrip() == before.rstrip()
    compile(path.read_text(), "x", "exec")
