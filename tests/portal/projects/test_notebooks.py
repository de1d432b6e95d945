"""A notebook becomes a script that does the same, and its notes name what only Jupyter can do."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from portal.projects.inspecting.program import external_modules
from portal.projects.inspecting.source import read
from portal.projects.unpacking.common import BadUploadError
from portal.projects.unpacking.notebooks import Script, to_script
from portal.projects.unpacking.program import unpack
from tests import corpus


def converted(*cells: str) -> Script:
    return to_script(corpus.notebook(*cells).decode(), "try.ipynb")


def run(script: Script, folder: Path) -> str:
    """What the script prints, in a folder with the files that the version has."""
    for name, content in script.files.items():
        (folder / name).write_text(content)
    (folder / "try.py").write_text(script.text)
    done = subprocess.run([sys.executable, "try.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + script.text
    return done.stdout


@pytest.mark.parametrize(
    ("cells", "printed"),
    [
        (["print(1)"], "1\n"),
        (["%time x = 1", "print(x)"], "1\n"),
        (["%%time\nx = 2\nprint(x)"], "2\n"),
        (["%timeit -n 10 x = 3", "print(x)"], "3\n"),
        (["!echo hello"], "hello\n"),
        (["words = !echo one two; echo three", "print(words)"], "['one two', 'three']\n"),
        (["name = 'lab'\n!echo {name}s and $name", "pass"], "labs and lab\n"),
        (["!echo $HOME | wc -l"], "1\n"),
        (["!echo {not a value}"], "{not a value}\n"),
        (["for i in range(2):\n    !echo $i"], "0\n1\n"),
        (["!echo a \\\n   b"], "a b\n"),
        (["%env LR=0.5", "import os\nprint(os.environ['LR'])"], "0.5\n"),
        (["%env LR 0.5", "import os\nprint(os.environ['LR'])"], "0.5\n"),
        (["!mkdir deep\n%cd deep", "import os\nprint(os.path.basename(os.getcwd()))"], "deep\n"),
        (["here = %pwd", "print(bool(here))"], "True\n"),
        (["%%writefile helper.py\ndef f():\n    return 42", "from helper import f\nprint(f())"], "42\n"),
        (["%%writefile a.txt\none", "%%writefile -a a.txt\ntwo", "print(open('a.txt').read())"], "one\ntwo\n\n"),
        (["%%writefile more.py\nimport sys\nx = sys.argv[1:]", "%run more.py a b", "print(x)"], "['a', 'b']\n"),
        (["s = !echo one", "print(s)"], "['one']\n"),  # the code that a name stands for may begin with it
        (["%env LR=1", "o = %env LR", "print(o)"], "1\n"),
        (["%%bash\nfor i in 1 2; do echo $i; done"], "1\n2\n"),
        (["if True:\n    %matplotlib inline\nprint('on')"], "on\n"),
        (["if True:\n    %pip install x\nprint('on')"], "on\n"),
        (["display({'a': 1})"], "{'a': 1}\n"),
        (["from IPython.display import display, HTML, clear_output\nclear_output()\ndisplay(1)"], "1\n"),
        (["display('early')", "from IPython.display import Image, display", "display('late')"], "early\nlate\n"),
        (["display(1)", "def display(value):\n    print('own', value)", "display(2)"], "1\nown 2\n"),
        (["import IPython\nprint('on')"], "on\n"),
        (["import asyncio\nasync def f(x):\n    return x", "x = await f(1)\nprint(x, await f(await f(2)))"], "1 2\n"),
        (['text = """\n%time is\n!money\n"""\nprint(text)'], "\n%time is\n!money\n\n"),
        (["x = (7\n  % 4)\nprint(x)"], "3\n"),
        (["print('a') # !x %y", "x = 5 % 3\nprint(x)"], "a\n2\n"),
        (["print?\nlen??\n?print\nprint('on')"], "on\n"),
        (["x = {'a': '!b'}\nprint(x)"], "{'a': '!b'}\n"),
        (["x = 3\nx + 1", "x"], "4\n3\n"),
        (["'text'", "[1,\n 2]  # both\n", "None", "x = 1", "5;", "(6)"], "'text'\n[1, 2]\n6\n"),
        (["s = 'ä'; s", "s, 1", "(2, 3)", "(y := 4)", "[i for i in 'a']"], "'ä'\n('ä', 1)\n(2, 3)\n4\n['a']\n"),
        (["if True:\n    7", "print(8)", "display(9)", "!echo a"], "8\n9\na\n"),
        (["%%time\n1 + 1", "len?", "# nothing"], "2\n"),
        (["async def f():\n    return 4", "await f()"], "4\n"),
        (["from google.colab import drive\ndrive.mount('/content/drive')", "print('on')"], "on\n"),
        (["from google.colab import files\nfor name in files.upload():\n    print(name)\nfiles.download('x')"], ""),
        (["import os\nos.environ['KEY'] = 'k'\nfrom google.colab import userdata\nprint(userdata.get('KEY'))"], "k\n"),
        (["import google.colab\nfrom google.colab.patches import cv2_imshow\ncv2_imshow(1)\nprint('on')"], "on\n"),
        (["%cd /content/drive/MyDrive/lab", '%cd "/content"', "import os\nprint(os.path.exists('try.py'))"], "True\n"),
        (["if True:\n    %cd /kaggle/working\nprint('on')"], "on\n"),
        (["from __future__ import print_function, division", "1 / 2"], "0.5\n"),
        (["'Notes'", "x = 1\nfrom __future__ import annotations; y: Later = 2\ny"], "'Notes'\n2\n"),
        (["def _show(x):\n    return -x", "_show(1)"], "-1\n"),
        (["'a' * 30_000"], f"'{'a' * 19_999}… (30,002 characters)\n"),
        (["try:\n  import google.colab\n  on = 1\nexcept ImportError:\n  on = 0", "on"], "0\n"),
        (["try: from google.colab import drive\nexcept: drive = None", "drive is None"], "True\n"),
        (
            [
                "import sys\nif 'google.colab' in sys.modules:\n    from google.colab import drive\nelse:\n    print('here')"
            ],
            "here\n",
        ),
    ],
)
def test_a_script_does_what_the_notebook_does(cells: list[str], printed: str, tmp_path: Path) -> None:
    assert run(converted(*cells), tmp_path) == printed


@pytest.mark.parametrize(
    ("cells", "notes"),
    [
        (["print(1)"], []),
        (
            ["%matplotlib inline\nimport os", "%load_ext autoreload\n%autoreload 2", "%matplotlib inline"],
            [
                "Left out, since only Jupyter has it: %matplotlib (cells 1, 3), %load_ext (cell 2), %autoreload (cell 2)."
            ],
        ),
        (
            ["!pip install -q einops torch-geometric==2.5", "import torch_geometric as g", "x = 1"],
            [
                "A job installs no packages. What cell 1 would install is now the package list “requirements-try.txt”: the form for a "
                "new job offers to install it.",
            ],
        ),
        (["%%html\n<b>1</b>"], ["Left out, since only Jupyter has it: %%html (cell 1)."]),
        (
            ["%%writefile helper.py\nx = 1"],
            ["The cells with %%writefile also became files of this version: “helper.py”."],
        ),
        (
            ["async for x in y():\n    print(x)"],
            ["“async for” and “async with” outside a function only run in Jupyter: cell 1."],
        ),
    ],
)
def test_the_notes_name_what_only_jupyter_can_do(cells: list[str], notes: list[str]) -> None:
    assert converted(*cells).notes == notes


def test_a_shell_cell_that_fails_ends_the_run_and_a_shell_line_does_not(tmp_path: Path) -> None:
    assert run(converted("!false", "print('on')"), tmp_path) == "on\n"
    (tmp_path / "try.py").write_text(converted("%%bash\nfalse", "print('on')").text)
    done = subprocess.run([sys.executable, "try.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and "CalledProcessError" in done.stderr


def test_a_notebook_of_the_old_format_is_read(tmp_path: Path) -> None:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "collapsed": False,
        "input": ["x = 1\n", "print(x)"],
        "language": "python",
    }
    old = {
        "metadata": {"name": ""},
        "nbformat": 3,
        "nbformat_minor": 0,
        "worksheets": [{"cells": [{**cell, "metadata": {}, "outputs": []}], "metadata": {}}],
    }
    assert run(to_script(json.dumps(old), "old.ipynb"), tmp_path) == "1\n"


def test_another_language_is_refused() -> None:
    with pytest.raises(BadUploadError, match="Only Python notebooks"):
        to_script(corpus.notebook("x <- 1", language="R").decode(), "a.ipynb")


def test_a_notebook_in_a_folder_also_becomes_a_script_beside_its_helpers() -> None:
    notebook = corpus.notebook("from helper import f", "%load_ext x")
    files = {"lab/try.ipynb": notebook, "lab/helper.py": b"f = 1\n", "lab/data.ipynb": b"no notebook"}
    taken = stored(files)
    assert set(taken[0]) == {"try.ipynb", "try.py", "helper.py", "data.ipynb"}
    assert taken[0]["try.py"].startswith(b"# %%\nfrom helper import f\n")
    assert "The notebook “lab/try.ipynb” also became the script “lab/try.py”." in taken[1]
    assert "Left out, since only Jupyter has it: %load_ext (cell 2)." in taken[1]


def test_a_notebook_by_itself_has_a_note_about_its_script() -> None:
    out = io.BytesIO()
    answer = unpack(io.BytesIO(corpus.notebook("print(1)")), out, "Copy of Lab3.ipynb")
    assert [file["path"] for file in answer["files"]] == ["Copy of Lab3.py"]
    assert answer["notes"] == ["The notebook “Copy of Lab3.ipynb” became the script “Copy of Lab3.py”."]


def test_what_only_colab_has_is_neither_imported_nor_missed() -> None:
    script = converted(
        "from google.colab import drive\nfrom IPython.display import display", "%cd /content/drive", "import torch"
    )
    assert script.notes == [
        "Only Colab has google.colab, which cell 1 imports: what the notebook asks of it does nothing. Upload the files that it "
        "reads with it.",
        "Left out, since jobs have no such folder: %cd (cell 2). A job starts at the top of the upload.",
    ]
    source = read("try.py", script.text.encode())
    assert list(external_modules([source], {"try.py": source}).places) == ["torch"]


def test_other_packages_of_google_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "google" / "cloud").mkdir(parents=True)
    (tmp_path / "google" / "cloud" / "store.py").write_text("x = 5\n")
    script = converted("from google.colab import auth", "from google.cloud import store\nprint(store.x)")
    assert run(script, tmp_path) == "5\n"
    assert "google.colab" not in converted("from google.cloud import store").text


def test_a_package_of_google_that_is_missing_is_reported_by_its_name(tmp_path: Path) -> None:
    cell = "try:\n    import google.nowhere\nexcept ModuleNotFoundError as error:\n    print(error)"
    printed = run(converted("from google.colab import auth", cell), tmp_path)
    assert printed == "No module named 'google.nowhere'\n"


@pytest.mark.parametrize("cell", ["x = 1\r\nx\r", "-" * 5_000 + "1", "(" * 5_000, "a" + ".b" * 5_000])
def test_a_cell_whose_value_cannot_be_found_stays_as_it_is(cell: str) -> None:
    assert "x = 1" not in cell or "_show" not in converted(cell).text
    assert cell[:100].split("\r")[0] in converted(cell).text


@pytest.mark.parametrize("source", ["\ud800 = 1", "x = '\ud800'", "try :" + " " * 100_000 + "x", "from " * 100_000])
def test_a_cell_of_any_text_becomes_a_script(source: str) -> None:
    began = time.process_time()
    answer = unpack(io.BytesIO(corpus.notebook(source)), io.BytesIO(), "try.ipynb")
    assert [file["path"] for file in answer["files"]] == ["try.py"]
    assert time.process_time() - began < 5


def test_a_script_of_the_same_name_is_kept() -> None:
    files = {"try.ipynb": corpus.notebook("print(1)"), "try.py": b"print(2)\n"}
    assert stored(files) == (files, [])


def test_many_notebooks_stay_as_they_are() -> None:
    files = {f"n{number}.ipynb": corpus.notebook("print(1)") for number in range(6)} | {"train.py": b"1"}
    assert stored(files) == (files, ["6 notebooks stay as they are. To run one of them, upload it by itself."])


def stored(files: dict[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """The files of a version that was uploaded as a zip, and its notes."""
    upload, out = io.BytesIO(corpus.zip_tree(files)), io.BytesIO()
    answer = unpack(upload, out, "code.zip")
    content = out.getvalue()
    return {file["path"]: content[file["offset"] : file["offset"] + file["size"]] for file in answer["files"]}, answer[
        "notes"
    ]
