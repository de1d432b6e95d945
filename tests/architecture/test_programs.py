"""Programs of the tests and benches clean up after themselves, however they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.programs import call

INNER = """
import sys, time
try:
    print("up", flush=True)
    time.sleep(60)
finally:
    print("cleaning up", flush=True)
    open(sys.argv[1]).read()
    open(sys.argv[2], "w").close()
"""
"""Its cleaning up takes until the pipe has been opened for writing and closed."""
OUTER = """
import signal, sys
from tests.programs import call
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what is in the background without
call([sys.executable, "-c", *sys.argv[1:]])
"""


def test_an_interrupted_program_is_given_the_time_to_clean_up(tmp_path: Path) -> None:
    pipe, clean = tmp_path / "pipe", tmp_path / "clean"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", OUTER, INNER, str(pipe), str(clean)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as outer:
        assert outer.stdout is not None and outer.stdout.readline() == b"up\n"
        os.killpg(outer.pid, signal.SIGINT)
        assert outer.stdout.readline() == b"cleaning up\n"
        assert outer.poll() is None
        pipe.open("w").close()
        assert outer.wait(30)
    assert clean.exists()


def test_the_exit_code_is_the_programs() -> None:
    assert call([sys.executable, "-c", "raise SystemExit(3)"]) == 3
