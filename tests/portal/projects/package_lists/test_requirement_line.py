"""One line: what is accepted, and in which form; what is refused, and with which advice."""

import pytest

from portal.projects.package_lists.requirement_line import LineRefusedError, merge, parse_line

ALLOWED = ("https://good.example.org/whl/", "git+https://git.example.org/", "http://good.example.org:3141/")


def refusal(line: str, allowed: tuple[str, ...] = ()) -> str:
    with pytest.raises(LineRefusedError) as refused:
        parse_line(line, allowed)
    return str(refused.value)


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("numpy", "numpy"),
        ("  Torch_Vision.x  ", "torch-vision-x"),
        ("pandas>=2", "pandas>=2"),
        ("pandas >= 2.0 , < 3", "pandas<3,>=2.0"),
        ("numpy (>=1.2)", "numpy>=1.2"),
        ("requests[Security, socks] ~= 2.8", "requests[security,socks]~=2.8"),
        ("torch==2.1.0+cu118", "torch==2.1.0+cu118"),
        ("torch===2.1.0", "torch==2.1.0"),
        ("rich!=13.*", "rich!=13.*"),
        ("tomli; python_version<'3.11'", 'tomli; python_version < "3.11"'),
        ("a ; sys_platform == 'linux' and (os_name=='posix' or extra=='b')", 'a; sys_platform == "linux" and (os_name == "posix" or extra == "b")'),
        ("a; python_version in '3.8, 3.9'", 'a; python_version in "3.8, 3.9"'),
        ("2to3", "2to3"),
    ],
)  # fmt: skip
def test_a_package_is_written_in_canonical_form(line: str, written: str) -> None:
    assert parse_line(line).requirement == written
    assert parse_line(written).requirement == written


@pytest.mark.parametrize(
    ("line", "written", "words"),
    [
        ("sklearn", "scikit-learn", "sklearn is called scikit-learn on the package index"),
        ("sklearn==0.0.post12", "scikit-learn", "without a version"),
        ("PyTorch>=2.1", "torch>=2.1", "pytorch is called torch"),
        ("PIL; sys_platform == 'linux'", 'pillow; sys_platform == "linux"', "pil is called pillow"),
    ],
)
def test_a_package_under_another_name_is_taken_with_a_note(line: str, written: str, words: str) -> None:
    found = parse_line(line)
    assert found.requirement == written and words in found.note


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python==3.9", "choose a full environment"),
        ("Python>=3.10,<3.12", "choose a full environment"),
        ("cudatoolkit", "CUDA comes with the base"),
        ("cudnn==8.9", "CUDA comes with the base"),
        ("pytorch-cuda==12.1", "CUDA comes with the base"),
    ],
)
def test_what_only_conda_installs_is_refused_with_what_to_do(line: str, words: str) -> None:
    assert words in refusal(line)


def test_hashes_are_dropped_with_a_note() -> None:
    line = "six==1.16 --hash=sha256:" + "ab" * 32 + "   --hash sha256:" + "cd" * 32
    assert parse_line(line).requirement == "six==1.16"
    assert "hashes" in parse_line(line).note


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-e .", "imported already"),
        ("--editable=.", "imported already"),
        (".", "imported already"),
        (".[dev]", "imported already"),
        ("-e ./lib", "Paths are not installed"),
        ("-e git+https://x/y#egg=y", "editable"),
        ("./wheels/a-1-py3-none-any.whl", "Paths are not installed"),
        ("wheels/a.tar.gz", "Paths are not installed"),
        ("a-1-py3-none-any.whl", "Paths are not installed"),
        ("/etc/passwd", "Paths are not installed"),
        ("~/x", "Paths are not installed"),
        (r"C:\work\a.whl", "Paths are not installed"),
        (r"..\a", "Paths are not installed"),
        ("git+https://github.com/a/b.git", "Put a wheel of it on an allowed source, or its code into your upload"),
        ("git+ssh://git@github.com/a/b.git", "Repositories are not installed"),
        ("git@github.com:a/b.git", "Repositories are not installed"),
        ("a @ git@github.com:a/b.git", "Repositories are not installed"),
        ("hg+https://hg.example.com/a#egg=a", "Repositories are not installed"),
        ("a @ svn://svn.example.com/a", "Repositories are not installed"),
        ("https://evil.example.com/a.whl", "ask an admin to allow this source"),
        ("a @ https://evil.example.com/a.whl", "Write a with its version"),
        ("a@https://evil.example.com/a.whl", "Write a with its version"),
        ("a @ file:///home/me/a", "the machine where the list was made"),
        ("a @ file:///home/me/bld/a", "the machine where the list was made"),
        ("a @ file:///tmp/build/a", "the machine where the list was made"),
        ("--index-url https://evil.example.com/", "ask an admin to allow this index"),
        ("-i https://evil.example.com/", "ask an admin to allow this index"),
        ("-ihttps://evil.example.com/", "ask an admin to allow this index"),
        ("--extra-index-url=https://evil.example.com/", "ask an admin to allow this index"),
        ("--find-links http://evil.example.com/", "by name"),
        ("-f .", "by name"),
        ("--no-binary six", "decided by an admin"),
        ("--no-binary :all:", "decided by an admin"),
        ("--trusted-host evil.example.com", "certificates"),
        ("--pre", "name==2.0rc1"),
        ("--anything-else", "Remove this line"),
        ("six --no-binary six", "Keep only its name and versions"),
        ("six --global-option=build", "Keep only its name and versions"),
        ("six -e .", "Keep only its name and versions"),
        ("numpy=1.26", "Write numpy==1.26"),
        ("numpy=1.26.0=py311_0", "Write numpy==1.26.0"),
        ("numpy 1.26", "Write numpy==1.26"),
        ("1.26", "Write name==1.26"),
        ("0_0", "Write name==0_0"),
        ("numpy ≥ 1", "in ASCII"),
        ("a\u2028b", "in ASCII"),
        ("${PACKAGE}", "in ASCII"),
        ("a===https://evil.example.com/", "Write == and a version"),
        ("a; sys_platform == 'x --index-url y'", "condition after the semicolon"),
        ("a; sys_platform == 'https://evil.example.com/'", "condition after the semicolon"),
        ("a; sys_platform == 'a\"b'", "condition after the semicolon"),
        ("a; what == '1'", "as pip writes them"),
        ("a;" + "(" * 900, "as pip writes them"),
        ("a" * 120, "at most 100 characters"),
        ("a" * 1200, "1,000 characters"),
        ("==1.0", "for example, name"),
        ("torch, torchvision", "for example, torch"),
    ],
)  # fmt: skip
def test_what_is_refused_has_a_reason_and_advice(line: str, words: str) -> None:
    why = refusal(line)
    assert words in why and why.endswith(".")


@pytest.mark.parametrize(
    "folder",
    [
        "file:///croot/numpy_123/work",
        "file:///home/conda/feedstock_root/build_artifacts/numpy_1/work/dist/numpy-1.26-cp311.whl#sha256=12",
        "file:///opt/conda/conda-bld/numpy_1/work",
        "file:///D:/bld/numpy_1/work/dist",
        "file:///tmp/build/80754af9/numpy_1/work",
        "file:///C:%5Cb%5Cabs_1%5Ccroot%5Cnumpy_1%5Cwork",
    ],
)
def test_what_conda_built_is_taken_by_name_with_a_note(folder: str) -> None:
    found = parse_line(f"NumPy @ {folder}")
    assert found.requirement == "numpy" and "without a version" in found.note


def test_an_allowed_source_is_taken_as_a_package_or_an_index() -> None:
    wheel = "https://good.example.org/whl/tool-1.0%2Bcpu-py3-none-any.whl"
    assert parse_line(f"Tool[x] @ {wheel}", ALLOWED).requirement == f"tool[x] @ {wheel}"
    assert parse_line(wheel, ALLOWED).requirement == f"tool @ {wheel}"
    assert (
        parse_line(f"{wheel} ; python_version > '3'", ALLOWED).requirement == f'tool @ {wheel} ; python_version > "3"'
    )
    archive = "http://good.example.org:3141/lab/v1.tar.gz"
    assert parse_line(f"{archive}#egg=Tool", ALLOWED).requirement == f"tool @ {archive}"
    assert (
        parse_line("--extra-index-url https://good.example.org/whl/cpu", ALLOWED).index
        == "https://good.example.org/whl/cpu"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("other @ https://good.example.org/whl/x.zip#egg=tool", "names another package, tool"),
        ("git+https://git.example.org/x", "Repositories are not installed"),
        ("x @ git+https://git.example.org/x@v1", "Repositories are not installed"),
        ("https://good.example.org/whl/x.zip", "name of the package is missing"),
        ("https://good.example.org/whl/", "--index-url and its address"),
        ("x @ https://good.example.org/whl/", "ends with .whl"),
        ("x @ https://good.example.org/whl/x.zip#subdirectory=py", "A folder inside an archive"),
        ("https://good.example.org/whl/a-1-py3-none-any.whl --no-binary a", "Remove it"),
        ("https://good.example.org/whl/a-1-py3-none-any.whl ==1", "Remove it"),
        ("-e git+https://git.example.org/x#egg=x", "editable"),
        ("--find-links https://good.example.org/whl/", "by name"),
        ("--index-url git+https://git.example.org/x", "Repositories are not installed"),
        ("--index-url https://good.example.org/whl/#egg=x", "not the address of a package index"),
        ("--index-url https://good.example.org/whl/a,b", "no comma"),
        ("a @ https://good.example.org/whl/../x", "“..”"),
        ("a @ https://good.example.org@evil.example.com/whl/x", "user name"),
    ],
)
def test_an_allowed_source_allows_nothing_else(line: str, words: str) -> None:
    assert words in refusal(line, ALLOWED)


def test_lines_about_one_package_are_merged() -> None:
    lines = ["numpy>=1", "rich[a]", "numpy<2", "numpy<2", "rich[b]", 'tomli; python_version < "3.11"', "tomli"]
    assert merge(lines) == ("numpy<2,>=1", "rich[a,b]", 'tomli; python_version < "3.11"', "tomli")
