"""What the cells of a notebook would install becomes a package list of the version."""

import io
import time

import pytest

from portal.projects.inspecting.program import inspect
from portal.projects.unpacking.notebooks import Script, to_script
from portal.projects.unpacking.program import unpack
from tests import corpus


def converted(*cells: str) -> Script:
    return to_script(corpus.notebook(*cells).decode(), "Fit all.ipynb")


def lists(files: dict[str, bytes], name: str = "") -> dict[str, tuple[list[str], list[str]]]:
    """The accepted and the refused lines of each package list of an upload: a zip, or a notebook of this name."""
    content = files[name] if name else corpus.zip_tree(files)
    out = io.BytesIO()
    unpack(io.BytesIO(content), out, name or "code.zip")
    out.seek(0)
    return {
        each["path"]: (list(each["lines"]), [line["text"] for line in each["refused"]])
        for each in inspect(out)["package_lists"]
    }


@pytest.mark.parametrize(
    ("cell", "accepted", "refused"),
    [
        ("!pip install rich==13.9", ["rich==13.9"], []),
        ("%pip install -q -U 'pandas>=2,<3' tqdm  # as always", ["pandas<3,>=2", "tqdm"], []),
        ("!pip3 install -qU scikit_learn[extra]", ["scikit-learn[extra]"], []),
        ("!python3 -m pip install --upgrade --no-cache-dir rich", ["rich"], []),
        ("import sys\n!{sys.executable} -m pip install rich", ["rich"], []),
        ("!sudo pip install rich > /dev/null 2>&1", ["rich"], []),
        ("!pip install rich 2>/dev/null && pip install tqdm==4.1; pip list | grep tqdm", ["rich", "tqdm==4.1"], []),
        ("!uv pip install --system rich==13.9", ["rich==13.9"], []),
        ("!uv add rich", ["rich"], []),
        ("%conda install -y -c conda-forge numpy=1.26 'pytorch>=2' cudatoolkit=11.3 python=3.10", ["numpy==1.26.*", "torch>=2"], []),
        ("!pip install rich \\\n  tqdm", ["rich", "tqdm"], []),
        ("if True:\n    %pip install rich", ["rich"], []),
        ("%%bash\nset -e\npip install rich==13.9\necho done", ["rich==13.9"], []),
        ("!pip install -e . git+https://github.com/a/b.git rich", ["rich"], ["-e .", "git+https://github.com/a/b.git"]),
        ("!pip install torch --index-url https://download.pytorch.org/whl/cu121", ["torch"], ["--index-url https://download.pytorch.org/whl/cu121"]),
        ("!pip install -r deps.txt rich", ["rich"], ["-r deps.txt"]),
        ("!pip install 'rich", [], ["'rich"]),
    ],
)  # fmt: skip
def test_what_a_cell_would_install_is_a_list_by_the_rules_of_all_lists(
    cell: str, accepted: list[str], refused: list[str]
) -> None:
    found = lists({"try.ipynb": corpus.notebook(cell)}, "try.ipynb")
    assert found == {"requirements-try.txt": (accepted, refused)}


def test_a_list_of_the_upload_is_offered_beside_that_of_a_notebook() -> None:
    files = {
        "requirements.txt": b"pandas\n",
        "nb/fit.ipynb": corpus.notebook("!pip install rich -r ../requirements.txt"),
    }
    assert lists(files) == {
        "requirements.txt": (["pandas"], []),
        "nb/requirements-fit.txt": (["rich", "pandas"], []),
    }


def test_a_list_that_is_offered_by_itself_is_not_offered_twice() -> None:
    files = {"requirements.txt": b"pandas\n", "fit.ipynb": corpus.notebook("!pip install -q -r requirements.txt")}
    assert list(lists(files)) == ["requirements.txt"]
    assert converted("%pip install -r requirements.txt").notes == [
        "A job installs no packages. The form for a new job offers what cell 1 would install, if the upload has “requirements.txt”."
    ]


def test_a_file_of_the_upload_with_the_name_of_the_list_is_kept() -> None:
    files = {"requirements-fit.txt": b"pandas\n", "fit.ipynb": corpus.notebook("!pip install rich")}
    assert lists(files) == {"requirements-fit.txt": (["pandas"], [])}


def test_the_notes_name_the_cells_and_the_list() -> None:
    script = converted("!pip install rich", "x = 1", "%conda install mystery=1 rich")
    assert script.notes == [
        "A job installs no packages. What cells 1, 3 would install is now the package list “requirements-Fit all.txt”: the form for a "
        "new job offers to install it.",
        "Packages of conda that are not known here, so they are in no list: “mystery=1”.",
    ]
    assert converted("!pip list").notes == ["Left out, since a job installs no packages: cell 1."]


def test_a_shell_cell_keeps_its_other_lines() -> None:
    text = converted("%%bash\nif true; then\n  pip install rich\nfi\npip list\npip install \\\n  tqdm").text
    assert ": # pip install rich\\nfi\\npip list\\npip install \\\\\\n  tqdm" in text


def test_a_name_of_any_length_becomes_the_name_of_a_list() -> None:
    name = f"{'ä' * 124}.ipynb"
    (path,) = lists({name: corpus.notebook("!pip install rich")}, name)
    assert len(path.encode()) < 255


@pytest.mark.parametrize("line", ["pip install " + "a " * 500_000, "python" * 200_000 + " -m pip install x"])
def test_a_hostile_shell_cell_is_read_in_no_time(line: str) -> None:
    began = time.process_time()
    converted(f"%%bash\n{line}")
    assert time.process_time() - began < 5
