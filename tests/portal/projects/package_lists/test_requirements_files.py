"""A requirements.txt: encodings, continued lines, included files, limits."""

import codecs
from collections.abc import Mapping

import pytest

from portal.projects.package_lists.collecting import MAX_BYTES
from portal.projects.package_lists.model import PackageList
from portal.projects.package_lists.reading import read_list
from portal.projects.package_lists.requirements_files import path_in_upload


def read(files: Mapping[str, str | bytes] | str | bytes, path: str = "requirements.txt") -> PackageList:
    files = files if isinstance(files, Mapping) else {path: files}
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    return read_list(path, contents.get)


@pytest.mark.parametrize(
    "content",
    [
        b"numpy>=1\npandas\n",
        b"numpy>=1\r\npandas",
        b"numpy>=1\rpandas\r",
        codecs.BOM_UTF8 + b"numpy>=1\npandas\n",
        codecs.BOM_UTF16_LE + "numpy>=1\r\npandas\r\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "numpy>=1\npandas\n".encode("utf-16-be"),
        "numpy>=1\npandas\n".encode("utf-16-le"),
        "# für später\nnumpy>=1 # größer\npandas\n".encode(),
        "# für später\nnumpy>=1 # größer\npandas\n".encode("latin-1"),
        b"numpy \\\n  >=1\n\n   \n# six\n\tpandas   # yes\n",
        b"numpy>=1 \\\n# a comment ends it\npandas\\\n",
    ],
)
def test_whatever_wrote_the_file_its_packages_are_read(content: bytes) -> None:
    found = read(content)
    assert (found.lines, found.refused) == (("numpy>=1", "pandas"), ())


def test_a_refused_line_is_named_with_its_number_and_others_are_taken() -> None:
    found = read("six\n\n# x\nrich \\\n --no-binary rich\n-e .\npandas\n")
    assert found.lines == ("six", "pandas")
    assert [(each.line, each.path) for each in found.refused] == [(4, "requirements.txt"), (6, "requirements.txt")]
    assert found.refused[1].text == "-e ."


def test_a_lock_with_hashes_is_taken_with_one_note() -> None:
    line = "a{}==1.{} \\\n    --hash=sha256:" + "ab" * 32 + " \\\n    --hash=sha256:" + "cd" * 32 + "\n    # via b\n"
    found = read("".join(line.format(i, i) for i in range(50)))
    assert len(found.lines) == 50 and found.lines[49] == "a49==1.49" and not found.refused
    assert len(found.notes) == 1 and "hashes" in found.notes[0].text


def test_included_files_and_constraints_are_read_relative_to_their_file() -> None:
    found = read(
        {
            "requirements.txt": "-r requirements/base.txt\n--requirement=requirements/base.txt\nrich\n-c limits.txt\n",
            "requirements/base.txt": "numpy\n-r more.txt\n-c ../limits.txt\n-r ../requirements.txt\n",
            "requirements/more.txt": "six\n",
            "limits.txt": "numpy<2\n-r others.txt\npandas[a]\n",
            "others.txt": "six<2",
        }
    )
    assert found.lines == ("numpy", "six", "rich")
    assert found.constraints == ("numpy<2", "six<2")
    assert [(each.path, each.line) for each in found.refused] == [("limits.txt", 3)]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../secret.txt", "a/../../secret.txt", "http://evil.example.com/r.txt", "file:///etc/passwd", r"..\x.txt", "~/x.txt",
     "$HOME/x.txt", "C:/x.txt", "-r", ".", "..", "", "a\0b", "x" * 400],
)  # fmt: skip
def test_nothing_outside_the_upload_is_included(name: str) -> None:
    asked = []

    def record(path: str) -> bytes | None:
        asked.append(path)
        return b"-r " + name.encode() + b"\n" if path == "requirements.txt" else b"six\n"

    found = read_list("requirements.txt", record)
    assert asked == ["requirements.txt"] and len(found.refused) == 1 and not found.lines
    assert path_in_upload(name, "requirements.txt") is None


def test_a_missing_file_is_named() -> None:
    found = read("-r base.txt\n")
    assert "“base.txt” is not among the text files of the upload" in found.refused[0].why


def test_circles_and_chains_end() -> None:
    circle = read({"requirements.txt": "-r a.txt\nsix\n", "a.txt": "-r requirements.txt\n-r a.txt\nrich\n"})
    assert (circle.lines, circle.refused) == (("rich", "six"), ())
    chain = read({f"requirements{i or ''}.txt": f"-r requirements{i + 1}.txt\np{i}\n" for i in range(30)})
    assert len(chain.refused) == 1 and "5 deep" in chain.refused[0].why
    wide = read(
        {"requirements.txt": "".join(f"-r a{i}.txt\n" for i in range(40))} | {f"a{i}.txt": "six" for i in range(40)}
    )
    assert wide.lines == ("six",) and len(wide.refused) == 20 and "20 files" in wide.refused[0].why


def test_a_long_list_is_cut_with_a_sentence() -> None:
    found = read("".join(f"p{i}\n" for i in range(2000)))
    assert len(found.lines) == 500
    assert [(each.line, "first 500 lines" in each.why) for each in found.refused] == [(501, True)]
    large = read(b"#" * (MAX_BYTES + 1))
    assert not large.lines and "256 KiB" in large.refused[0].why
    noted = read("".join(f"p{i} @ file:///croot/p{i}/work\n" for i in range(150)))
    assert len(noted.notes) == 101 and noted.notes[-1].text == "Further remarks that are not shown: 50."
    many = read("".join(f"-e x{i}\n" for i in range(400)))
    assert len(many.refused) == 101 and many.refused[-1].why == "300 more lines are not taken."


def test_what_is_shown_has_no_credentials_and_no_control_characters() -> None:
    found = read("git+https://me:secret@git.example.org/x\n\x1b[31mred\n" + "y" * 3000)
    assert found.refused[0].text == "git+https://***@git.example.org/x"
    assert all(each.text.isprintable() and len(each.text) <= 200 for each in found.refused)


def test_pip_freeze_of_a_conda_environment() -> None:
    found = read(
        "certifi @ file:///croot/certifi_1/work/certifi\n-e git+https://github.com/a/b@c#egg=b\nnumpy @ file:///croot/numpy_1/work\n"
        "torch==2.1.0\nmine @ file:///home/me/mine\n"
    )
    assert found.lines == ("certifi", "numpy", "torch==2.1.0")
    assert [each.line for each in found.refused] == [2, 5] and [each.line for each in found.notes] == [1, 3]


@pytest.mark.parametrize(
    "line",
    ["a" + " " * 250_000 + "b", "a" + "\t" * 250_000, " --hash" * 30_000, "a --hash=" + "b" * 250_000, "a[" * 100_000, "a @ " + "@" * 250_000, "-" * 250_000,
     "a==" + "9" * 5000, "a>=" + "1." * 100_000, "#" * 250_000, "a" + "\\\n" * 100_000, "a #" * 80_000, "://" * 80_000, "a;" + "(" * 250_000],
)  # fmt: skip
def test_a_long_line_takes_no_long_time(line: str) -> None:
    found = read(line + "\nsix\n")
    assert "six" in found.lines and len(found.lines) + len(found.refused) <= 2


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("environment.yml", "dependencies:\n  - rich\n"),
        ("pyproject.toml", "[project]\ndependencies = ['rich']\n"),
        ("requirements.txt", "rich\n"),
    ],
)
def test_files_of_every_kind_may_be_equally_large(path: str, content: str) -> None:
    filled = content + "# a line of a comment\n" * ((MAX_BYTES - len(content)) // 22)
    assert len(filled) > 250 * 1024 and read_list(path, {path: filled.encode()}.get).lines == ("rich",)
    larger = read_list(path, {path: filled.encode() + b"# and one more line\n" * 2}.get)
    assert [each.why.partition(",")[0] for each in larger.refused] == ["This file is larger than 256 KiB"]
