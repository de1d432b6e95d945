"""What a person types or pastes."""

import pytest

from portal.projects.package_lists.typed import read_typed


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("pandas", ["pandas"]),
        ("pandas rich", ["pandas", "rich"]),
        ("pandas, rich,tqdm", ["pandas", "rich", "tqdm"]),
        ("pandas\n rich # colours\n\n", ["pandas", "rich"]),
        ("numpy >= 1.2, < 2, pandas", ["numpy<2,>=1.2", "pandas"]),
        ("a,b>=1,<2,c==3 d", ["a", "b<2,>=1", "c==3", "d"]),
        ("requests [socks, security] six", ["requests[security,socks]", "six"]),
        ("tomli; python_version < '3.11'\nsix", ['tomli; python_version < "3.11"', "six"]),
        ("'pandas>=2' \"rich\"", ["pandas>=2", "rich"]),
        ("pip install pandas rich", ["pandas", "rich"]),
        ("pip3 install 'pandas>=2,<3'", ["pandas<3,>=2"]),
        ("$ sudo python3.11 -m pip install pandas", ["pandas"]),
        ("!pip install pandas\n%pip install rich", ["pandas", "rich"]),
        ("uv pip install pandas", ["pandas"]),
        ("uv add pandas", ["pandas"]),
        ("pip install pip", ["pip"]),
    ],
)
def test_packages_are_read_as_people_write_them(text: str, lines: list[str]) -> None:
    found = read_typed(text)
    assert (list(found.lines), found.refused, found.kind, found.path) == (lines, (), "typed", "")


def test_python_and_cuda_are_refused_among_packages() -> None:
    found = read_typed("python == 3.9 rich\ncudatoolkit\nsklearn pandas")
    assert found.lines == ("rich", "scikit-learn", "pandas")
    assert [each.text for each in found.refused] == ["python==3.9", "cudatoolkit"]
    assert ["scikit-learn" in each.text for each in found.notes] == [True]


@pytest.mark.parametrize(
    ("text", "lines", "refused"),
    [
        ("pip install -U pandas --index-url https://x/y rich", ["pandas", "rich"], ["-U", "--index-url https://x/y"]),
        ("pip install -r requirements.txt", [], ["-r requirements.txt"]),
        ("pip install -e . ./lib git+https://x/y", [], ["-e .", "./lib", "git+https://x/y"]),
        ("pip install --index-url=https://x/y torch", ["torch"], ["--index-url=https://x/y"]),
        ("conda install numpy", [], ["conda install numpy"]),
        ("--pre", [], ["--pre"]),
        ("numpy 1.26", ["numpy"], ["1.26"]),
        ("don't", [], ["don't"]),
        ("a @ https://x/y", [], ["a @ https://x/y"]),
        ("a; b; c", [], ["a; b; c"]),
        ("six; rm -rf /", [], ["six; rm -rf /"]),
        ("six && rm x", ["six", "rm", "x"], ["&&"]),
    ],
)
def test_what_is_refused_is_named(text: str, lines: list[str], refused: list[str]) -> None:
    found = read_typed(text)
    assert (list(found.lines), [each.text for each in found.refused]) == (lines, refused)


def test_an_allowed_source_is_taken() -> None:
    wheel = "https://good.example.org/whl/a-1-py3-none-any.whl"
    for text in (f"a @ {wheel}", wheel, f"pip install {wheel}"):
        assert read_typed(text, ["https://good.example.org/whl/"]).lines == (f"a @ {wheel}",)


def test_long_texts_are_refused() -> None:
    assert "Upload a requirements.txt" in read_typed("a " * 20_000).refused[0].why
    assert len(read_typed("\n".join(f"p{i} q{i}" for i in range(500))).lines) == 500


@pytest.mark.parametrize(
    "piece",
    ["a ", ",", " ", "a,", "[a,", "= ", "'", '"', "python -m ", "sudo ", "a[b]", "a;", "-e ", "pip install ", "@ "],
)
def test_a_long_line_takes_no_long_time(piece: str) -> None:
    assert not read_typed(f"a {piece * 30_000}").lines
    found = read_typed(f"a {piece * (3900 // len(piece))}")
    assert len(found.lines) <= 500 and len(found.refused) <= 101
