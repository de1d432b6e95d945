import json
import sys
from pathlib import Path

import pytest

from runners.runtime import LAUNCH_PATHS
from tests.runners.launching import WAIT_FOR_RELEASE, Container, attempt, until


def run(tmp_path: Path, program: str, **more: object) -> Container:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", program), **more).start()  # type: ignore[arg-type]
        container.wait()
    return container


def test_it_runs_the_command_once_with_all_gpus(tmp_path: Path) -> None:
    program = "import os; print('once', os.environ['CUDA_VISIBLE_DEVICES'], 'MALLOC_TRIM_THRESHOLD_' in os.environ)"
    gpus = ("GPU-1", "GPU-2")
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", program), gpus=gpus, gpu_kind="cuda", slots=2).start()
        exit = container.wait()
    assert exit == {"code": 0, "reason": "exited", "detail": ""}
    assert container.log() == "once GPU-1,GPU-2 False\n"  # what computes on GPUs leaves memory as it is
    assert container.labels() == {"setup": "set-up", "0": "rank 0"}


def test_it_sets_the_environment_of_the_program(tmp_path: Path) -> None:
    program = "import os, json; print(json.dumps({**os.environ, 'cwd': os.getcwd()}))"
    own = (("LEARNING_RATE", "0.1"), ("SCHEDULEARN_JOB", "999"), ("MALLOC_TRIM_THRESHOLD_", "131072"))
    container = run(tmp_path, program, env=own)
    env = json.loads(container.log())
    assert env["cwd"] == env["SCHEDULEARN_WORKSPACE"] == str(container.workspace)
    assert env["SCHEDULEARN_OUTPUTS"] == str(container.outputs)
    assert env["SCHEDULEARN_CHECKPOINTS"] == str(container.checkpoints)
    assert env["LEARNING_RATE"] == "0.1"
    assert env["SCHEDULEARN_JOB"] == "1"  # ours is not the user's to change
    assert env["CUDA_VISIBLE_DEVICES"] == ""  # CPU slots: the GPUs of the machine belong to other jobs
    assert (env["PYTHONUNBUFFERED"], env["OMP_NUM_THREADS"]) == ("1", "1")
    assert env["MALLOC_MMAP_THRESHOLD_"] == "33554432"
    assert env["MALLOC_TRIM_THRESHOLD_"] == "131072"  # what it is by default is the user's to change
    assert "SCHEDULEARN_CONTROL" not in env


def test_both_outputs_stay_in_order(tmp_path: Path) -> None:
    program = "import sys\nfor n in range(50): print('out', n); print('err', n, file=sys.stderr)"
    container = run(tmp_path, program)
    assert container.log() == "".join(f"out {n}\nerr {n}\n" for n in range(50))


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137), ("import os; os.abort()", 134)],
)
def test_it_reports_how_the_program_ended(tmp_path: Path, program: str, code: int) -> None:
    container = run(tmp_path, program)
    assert container.exit() == {"code": code, "reason": "exited", "detail": ""}
    assert f"ended with exit code {code}" in container.log("setup")
    assert container.process is not None and container.process.returncode == code


def test_a_program_that_does_not_exist_is_the_users_error(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("no-such-program", "--fast")).start()
        exit = container.wait()
    assert (exit["code"], exit["reason"]) == (127, "exited")
    assert "“no-such-program” could not be started: No such file or directory" in container.log("setup")


@pytest.mark.parametrize("job", ["", "junk", "{}", '{"name": "sl-1-a1-0"}'])
def test_a_job_it_cannot_read_is_our_error(tmp_path: Path, job: str) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("true",))
        container.write("job.json", job)
        exit = container.start().wait()
    assert (exit["code"], exit["reason"]) == (1, "launch_error")
    assert "could not be run" in container.log("setup")


def test_the_log_is_complete_when_exit_json_is_there(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        program = "import sys; sys.stdout.write('x' * 3_000_000 + 'end')"
        container = made.container(("python", "-c", program)).start()
        until((container.scribe / "exit.json").exists)
        assert len(container.raw()) == 3_000_003


def children_of(pid: int) -> list[str]:
    """States of the processes right below one."""
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            states.append(fields[0])
    return states


ORPHANS = f"""
import os, subprocess, sys
for _ in range(5):
    subprocess.run(["sh", "-c", "(sleep 0.1; echo ended) & exit 0"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
{WAIT_FOR_RELEASE}
"""


def test_it_buries_orphans_and_leaves_no_process_behind(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", ORPHANS)).start(LEFTOVER="from-this-test")
        assert container.process is not None
        until(lambda: container.log().count("ended\n") == 5)
        pid = container.process.pid
        until(lambda: len(states := children_of(pid)) == 1 and "Z" not in states)  # the program
        made.release()
        container.wait()
        left = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if str(tmp_path).encode() in environ.read_bytes():
                    left.append(environ)
            except OSError:
                continue
    assert left == []


def test_the_supervisor_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """It is copied into images with its messages, and with nothing of ``runners`` that needs a package."""
    import shutil
    import subprocess

    home = Path(__file__).resolve().parents[3] / "runners"
    (tmp_path / "runners").mkdir()
    for name in LAUNCH_PATHS:
        if (home / name).is_dir():
            shutil.copytree(home / name, tmp_path / "runners" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(home / name, tmp_path / "runners" / name)
    check = "import runners.launch.supervisor, runners.launch.driver, sys; print('horovod' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
