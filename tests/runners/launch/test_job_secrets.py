"""The supervisor gives secrets to ranks, and masks them in everything that it writes."""

import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from runners.launch.files import ContainerPaths
from runners.launch.job_secrets import JobSecrets
from runners.launch.ranks import rank_env
from runners.launch.supervisor import run_first_process
from tests.runners.conftest import make_spec
from tests.runners.launching import Container, attempt, local_group

TOKEN = "hf_Tq/8+Zw 4"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADAN\n-----END KEY-----\n"
SECRETS = (("HF_TOKEN", "variable"), ("key.pem", "file"))
PRINT = """
import base64, json, os, sys, time
from pathlib import Path
from urllib.parse import quote
token = os.environ["HF_TOKEN"]
key = Path(os.environ["SCHEDULEARN_SECRETS"], "key.pem").read_text()
for piece in token[:3], token[3:9], token[9:] + " in pieces\\n":
    print(piece, end="", flush=True)
    time.sleep(0.05)
print(token, base64.b64encode(("user:" + token).encode()).decode(), quote(token, safe=""))
print(key, json.dumps({"key": key}))
with open(os.environ["SCHEDULEARN_METRICS"], "w") as metrics:
    metrics.write(json.dumps({"step": 1, "values": {token: 1}}) + "\\n")
print("private", os.environ.get("SCHEDULEARN_SECRET_VARIABLES"), "progress", end="", flush=True)
"""


def give(home: Path, variables: dict[str, str], files: dict[str, str]) -> dict[str, str]:
    """Fill the folders as the agent does; return the variables that name them."""
    for folder, values in (("variables", variables), ("files", files)):
        (home / folder).mkdir(parents=True)
        for name, value in values.items():
            (home / folder / name).write_text(value)
    return {"SCHEDULEARN_SECRETS": str(home / "files"), "SCHEDULEARN_SECRET_VARIABLES": str(home / "variables")}


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def run(tmp_path: Path, env: dict[str, str], *command: str) -> Container:
    with attempt(tmp_path / "attempt") as made:
        container = made.container(command, secrets=SECRETS).start(True, **env)
        container.wait()
    return container


def check_logs(container: Container) -> None:
    lines = container.log().splitlines()
    assert lines == ["*** in pieces", lines[1], "***", ' {"key": "***\\n"}', "private None progress"], (
        container.summary()
    )
    begin, in_base64, end = lines[1].split()
    assert (begin, "***" in in_base64, end) == ("***", True, "***")
    written = everything_in(container.scribe) + everything_in(container.control)
    for value in (TOKEN, "MIIEvQIBADAN", quote(TOKEN, safe="")):
        assert value.encode() not in written
    assert json.loads(container.raw("metrics"))["values"] == {"***": 1}


def test_a_command_has_its_secrets_and_its_log_has_none(tmp_path: Path) -> None:
    env = give(tmp_path / "secrets", {"HF_TOKEN": TOKEN}, {"key.pem": KEY})
    check_logs(run(tmp_path, env, "python", "-c", PRINT))


def test_ranks_of_a_driver_have_them_too(tmp_path: Path) -> None:
    env = give(tmp_path / "secrets", {"HF_TOKEN": TOKEN}, {"key.pem": KEY})
    command, group = ("python", "-c", PRINT), local_group(1, 1)
    with attempt(tmp_path / "attempt") as made:
        driver = made.container(command, "horovod", "driver", "driver", 0, group, secrets=SECRETS)
        host = made.container(command, "horovod", "host", "h1", 1, group, secrets=SECRETS).start(True, **env)
        driver.tell(hosts=[("h1", 1)])
        assert driver.start().wait()["code"] == 0, host.summary()
        assert host.wait()["code"] == 0
    check_logs(host)


@pytest.mark.horovod
@pytest.mark.timeout(400)
def test_ranks_of_torchrun_have_them_too(tmp_path: Path, job_python: str) -> None:
    env = give(tmp_path / "secrets", {"HF_TOKEN": TOKEN}, {"key.pem": KEY})
    with attempt(tmp_path / "attempt", job_python) as made:
        container = made.container(("python", "-c", PRINT), launcher="torchrun", secrets=SECRETS).start(True, **env)
        assert container.wait(200)["code"] == 0, container.summary()
    check_logs(container)


def test_the_command_is_masked_where_it_is_reported(tmp_path: Path) -> None:
    env = give(tmp_path / "secrets", {"HF_TOKEN": TOKEN}, {"key.pem": KEY})
    container = run(tmp_path, env, "no-such-program", TOKEN)
    assert "Starting no-such-program ***" in container.log("setup")


def test_a_job_does_not_run_without_a_secret(tmp_path: Path) -> None:
    env = give(tmp_path / "secrets", {}, {"key.pem": KEY})
    container = run(tmp_path, env, "python", "-c", "print('ran')")
    exit = container.exit()
    assert (exit["reason"], "HF_TOKEN is missing" in exit["detail"]) == ("launch_error", True)
    container = run(tmp_path / "gone", {"SCHEDULEARN_SECRETS": str(tmp_path / "none")}, "python", "-c", "print('ran')")
    assert container.exit()["reason"] == "launch_error" and container.log() == ""


def test_a_secret_wins_over_defaults_but_not_over_what_is_ours() -> None:
    secrets = JobSecrets(
        {
            "OMP_NUM_THREADS": "7",
            "LANG": "x",
            "SCHEDULEARN_JOB": "9",
            "SCHEDULEARN_NEW": "9",
            "CUDA_VISIBLE_DEVICES": "0",
        }
    )
    spec = make_spec(env=(("LANG", "y"),))
    env = rank_env(spec, ContainerPaths.from_env({}), {"LANG": "C"}, secrets.for_ranks())
    assert (env["OMP_NUM_THREADS"], env["LANG"], env["SCHEDULEARN_JOB"]) == ("7", "x", "42")
    assert "SCHEDULEARN_NEW" not in env and env["CUDA_VISIBLE_DEVICES"] == ""


def test_an_error_of_the_supervisor_is_masked_in_its_report_and_in_the_engines_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError(f"{'x' * 995} {TOKEN}")

    names = give(tmp_path / "secrets", {"HF_TOKEN": TOKEN}, {})
    control, scribe = tmp_path / "control", tmp_path / "scribe"
    for folder in (control, scribe):
        folder.mkdir()
    (control / "job.json").write_text(json.dumps(make_spec().to_json()))
    for name, value in {**names, "SCHEDULEARN_CONTROL": str(control), "SCHEDULEARN_SCRIBE": str(scribe)}.items():
        monkeypatch.setenv(name, value)
    assert run_first_process(fail) == 1  # type: ignore[arg-type]
    printed = capsys.readouterr().err
    assert "RuntimeError" in printed and "***" in printed
    for text in (printed, everything_in(scribe).decode(errors="replace")):
        assert TOKEN not in text and TOKEN[:4] not in text


def test_the_values_are_not_in_the_text_of_the_object(tmp_path: Path) -> None:
    secrets = JobSecrets.read({**os.environ, **give(tmp_path, {"HF_TOKEN": TOKEN}, {"key.pem": KEY})})
    assert dict(secrets.variables) == {"HF_TOKEN": TOKEN} and dict(secrets.files) == {"key.pem": KEY}
    assert TOKEN not in repr(secrets) and "MIIE" not in repr(secrets)
