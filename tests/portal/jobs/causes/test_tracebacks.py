"""The exceptions in an output, as CPython, PyTorch and rich print them, and what became of each."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.jobs.causes.output import read_lines
from portal.jobs.causes.tracebacks import Error, Fate, find_errors


def errors_of(text: str) -> list[Error]:
    return find_errors(read_lines(text.encode()))


def run(folder: Path, program: str, *arguments: str) -> list[Error]:
    """What a program prints when Python runs it."""
    (folder / "main.py").write_text(program)
    command = [sys.executable, *(arguments or ["main.py"])]
    return errors_of(subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60).stderr)


CHAINED = "def load():\n    try:\n        {}['lr']\n    except KeyError as error:\n        raise RuntimeError('no lr') "


@pytest.mark.parametrize(
    ("program", "chain", "fate"),
    [
        ("def f():\n    1 / 0\nf()\n", ["ZeroDivisionError: division by zero"], Fate.UNCAUGHT),
        ("class Bang(Exception): pass\nraise Bang\n", ["Bang"], Fate.UNCAUGHT),
        ("class A:\n    class B(Exception): pass\nraise A.B('x: y')\n", ["A.B: x: y"], Fate.UNCAUGHT),
        ("def f():\n    class Gone(Exception): pass\n    raise Gone('1')\nf()\n", ["f.<locals>.Gone: 1"], Fate.UNCAUGHT),
        ("raise ValueError('first\\n  second\\nthird')\n", ["ValueError: first\n  second"], Fate.UNCAUGHT),
        ("raise ValueError('two problems:\\nlr\\nepochs')\n", ["ValueError: two problems:\nlr\nepochs"], Fate.UNCAUGHT),
        (f"{CHAINED} from error\nload()\n", ["RuntimeError: no lr", "KeyError: 'lr'"], Fate.UNCAUGHT),
        (f"{CHAINED}\nload()\n", ["RuntimeError: no lr", "KeyError: 'lr'"], Fate.UNCAUGHT),
        (f"{CHAINED} from None\nload()\n", ["RuntimeError: no lr"], Fate.UNCAUGHT),
        (
            "def both():\n    raise ExceptionGroup('two', [ValueError('left'), ExceptionGroup('in', [OSError('right')])])\nboth()\n",
            ["ValueError: left"],
            Fate.UNCAUGHT,
        ),
        (
            "import traceback\ndef f():\n    try:\n        1 / 0\n    except ArithmeticError:\n        traceback.print_exc()\nf()\n",
            ["ZeroDivisionError: division by zero"],
            Fate.HANDLED,
        ),
        (
            "import logging\ntry:\n    1 / 0\nexcept ArithmeticError:\n    logging.exception('no ratio')\n",
            ["ZeroDivisionError: division by zero"],
            Fate.HANDLED,
        ),
        (
            "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\n",
            ["ZeroDivisionError: division by zero"],
            Fate.OTHER,
        ),
        (
            "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a\n",
            ["ZeroDivisionError: division by zero"],
            Fate.IGNORED,
        ),
        (
            "import atexit\natexit.register(lambda: 1 / 0)\n",
            ["ZeroDivisionError: division by zero"],
            Fate.IGNORED,
        ),
        ("def f(:\n    pass\n", ["SyntaxError: invalid syntax"], Fate.UNCAUGHT),
        ("if 1:\n\tx = 1\n        y = 2\n", ["TabError: inconsistent use of tabs and spaces in indentation"], Fate.UNCAUGHT),
    ],
)  # fmt: skip
def test_what_python_prints(tmp_path: Path, program: str, chain: Sequence[str], fate: Fate) -> None:
    (error,) = run(tmp_path, program)
    assert ([each.text for each in error.chain], error.fate) == (list(chain), fate)


def test_a_module_that_is_started_by_name(tmp_path: Path) -> None:
    (error,) = run(tmp_path, "raise ValueError('x')\n", "-m", "main")
    assert (error.text, error.fate) == ("ValueError: x", Fate.UNCAUGHT)


def test_the_exception_of_a_worker_counts_and_not_the_one_that_passes_it_on(tmp_path: Path) -> None:
    program = (
        "from multiprocessing import Pool\ndef work(n):\n    raise ValueError(f'sample {n}')\n"
        "if __name__ == '__main__':\n    with Pool(1) as pool:\n        pool.map(work, [7])\n"
    )
    error = run(tmp_path, program)[-1]
    assert (error.text, error.fate) == ("ValueError: sample 7", Fate.UNCAUGHT)


def test_the_prefix_of_a_launcher_is_left_out() -> None:
    text = 'Traceback (most recent call last):\n  File "/workspace/a.py", line 3, in <module>\n    f()\nBang: loud\n'
    for prefix in ("[rank0]: ", "[rank12]: ", "[3]<stderr>:", "[default0]:", "(train pid=41) "):
        prefixed = "".join(f"{prefix}{line}\n" for line in text.splitlines())
        (error,) = errors_of(prefixed)
        assert error.text == "Bang: loud" and error.frames[0].file == "/workspace/a.py", prefix


def test_a_traceback_behind_a_progress_bar_is_found() -> None:
    bar = "".join(f"\rEpoch 0: {n}%|###   | {n}/100" for n in range(50))
    (error,) = errors_of(
        f'{bar}[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 1, in <module>\n[rank1]: Bang\n'
    )
    assert error.text == "Bang"


def test_output_of_others_between_the_frames_and_the_exception() -> None:
    (error,) = errors_of(
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nstep 12 loss 0.1\nValueError: bad row\n'
    )
    assert error.text == "ValueError: bad row"


def test_a_traceback_whose_exception_is_missing_is_none() -> None:
    assert errors_of('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n') == []


def test_a_message_of_a_hundred_thousand_characters_is_cut() -> None:
    (error,) = errors_of(
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: keys:\n\t'
        + "x" * 100_000
    )
    assert error.text.startswith("ValueError: keys:\n\txxx") and len(error.text) < 5000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                "  + Exception Group Traceback (most recent call last):",
                '  File "/workspace/a.py", line 3, in <module>',
                "    f()",
                "  | ValueError: x",
                "  +-+---------------- 1 ----------------",
                "ValueError: x",
                "During handling of the above exception, another exception occurred:",
                "The above exception was the direct cause of the following exception:",
                "Exception ignored in: <function f>",
                "╭──── Traceback (most recent call last) ────╮",
                "╰─────╯",
                "[rank0]: Traceback (most recent call last):",
                "",
                "\x1b[31mred\x1b[0m",
            ]
        ),
        max_size=60,
    )
)
def test_any_order_of_lines_is_read(lines: list[str]) -> None:
    for error in errors_of("\n".join(lines)):
        assert 0 <= error.start < error.end <= len(lines)
