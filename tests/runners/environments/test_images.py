"""The images as the agent makes them: they work, offline, and hold nothing of the machine that built them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runners.environments import docker_images
from runners.environments.builds import DockerEnvironments
from runners.environments.docker_images import DockerImages
from runners.environments.preparing import PrepareError
from tests import engine as engines

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

OFFLINE: dict[str, Any] = {
    "network_mode": "none",
    "remove": True,
    "read_only": True,
    "user": "2000000042",
    "cap_drop": ["ALL"],
}


def output(image: str, script: str, **options: Any) -> str:
    images = DockerImages()
    printed: bytes = images.client.containers.run(image, ["sh", "-c", script], **{**OFFLINE, **options})
    return printed.decode()


@pytest.fixture(scope="module")
def light_image(engine: None) -> str:
    return engines.job_environment_image("python")


def test_both_first_processes_are_in_the_image(job_image: str) -> None:
    for module in ("supervisor", "driver"):
        printed = output(job_image, f"python -c 'import runners.launch.{module} as it; print(it.__file__)'")
        assert printed.strip() == f"/opt/schedulearn/runners/launch/{module}.py"


def test_torch_horovod_and_torchrun_work_without_a_network(job_image: str) -> None:
    script = (
        "cd /tmp; python -c 'import torch, sklearn.datasets, horovod.torch as hvd; hvd.init(); "
        "print(hvd.size(), hvd.allreduce(torch.ones(2)).tolist(), len(sklearn.datasets.load_digits().data))' && "
        "torchrun --help | head -n 1"
    )
    tmp = {"tmpfs": {"/tmp": "size=64m"}, "environment": {"HOME": "/tmp"}, "hostname": "h0"}
    printed = output(job_image, script, extra_hosts={"h0": "127.0.0.1"}, **tmp)
    assert "1 [1.0, 1.0] 1797" in printed and "torchrun" in printed


def test_pytorch_without_horovod_works_without_a_network(engine: None) -> None:
    image = engines.job_environment_image("pytorch")
    script = (
        "cd /tmp; python -c 'import torch, sklearn.datasets, importlib.util as u; "
        'print(torch.ones(2).tolist(), len(sklearn.datasets.load_digits().data), u.find_spec("horovod"))\' && '
        "torchrun --help | head -n 1"
    )
    printed = output(image, script, tmpfs={"/tmp": "size=64m"}, environment={"HOME": "/tmp"})
    assert "[1.0, 1.0] 1797 None" in printed and "torchrun" in printed


def test_the_light_environment_has_no_torch(light_image: str) -> None:
    script = "python -c 'import numpy, sklearn, importlib.util as u; print(u.find_spec(\"torch\"))'"
    assert output(light_image, script).strip() == "None"


@pytest.mark.parametrize("key", ["python", "pytorch-horovod"])
def test_nothing_of_this_machine_is_in_an_image(engine: None, key: str) -> None:
    image = engines.job_environment_image(key)
    config = DockerImages().client.api.inspect_image(image)["Config"]
    names = {line.split("=")[0] for line in config["Env"]}
    assert names <= {"PATH", "LANG", "GPG_KEY", "PYTHON_VERSION", "PYTHON_SHA256"}
    assert not config["Volumes"]
    printed = output(
        image, "cat /etc/pip.conf /opt/env/pip.conf ~/.config/pip/pip.conf 2>/dev/null; ls / /wheels 2>&1; true"
    )
    assert "index-url" not in printed and "find-links" not in printed
    history = json.dumps(DockerImages().client.api.history(image))
    for name, value in os.environ.items():
        if name.startswith(("PIP_", "SSL_", "REQUESTS_")) or name.lower().endswith("_proxy"):
            assert len(value) < 6 or value not in history, name


def test_no_program_of_an_image_gives_rights(job_image: str) -> None:
    assert output(job_image, "find / -xdev -type f -perm /6000 2>/dev/null; true", user="0") == ""


def test_an_image_runs_as_nobody_by_default(light_image: str) -> None:
    assert DockerImages().client.api.inspect_image(light_image)["Config"]["User"] == "65534:65534"


def test_preparing_again_finds_what_is_there(light_image: str) -> None:
    again = DockerEnvironments(base_image=engines.base_image())
    progress: list[str] = []
    report = again.prepare("python", lambda percent, step: progress.append(step.text))
    assert again.reference_of("python") == light_image and report.digest.startswith("sha256:")
    assert progress == ["starting"]
    assert report.detail.startswith(f"Made from {engines.base_image()} (") and "sha256:" in report.detail


def test_a_digest_that_the_engines_base_image_does_not_have_makes_no_environment(light_image: str) -> None:
    pinned = f"{engines.base_image()}@sha256:{'0' * 64}"
    report = DockerEnvironments(base_image=pinned).prepare("python")
    assert report.state == "failed" and "0000" in report.detail


def test_only_old_images_of_the_same_environment_are_dropped(
    pretender: str, engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = DockerImages()
    names = ("python-000000000000", "python-111111111111", "python-other-111111111111")
    tags = [f"schedulearn-test-drop:{name}" for name in names]
    try:
        for tag in tags:
            images.client.images.get(pretender).tag(tag)
        images.remove_old_images("schedulearn-test-drop", "python", keep=tags[0])
        assert all(images.id_of(tag) for tag in tags)  # too young
        monkeypatch.setattr(docker_images, "KEEP_OLD_DAYS", -1)
        images.remove_old_images("schedulearn-test-drop", "python", keep=tags[0])
        assert [images.id_of(tag) is not None for tag in tags] == [True, False, True]
        assert images.id_of(pretender) is not None
    finally:
        for tag in tags:
            if images.id_of(tag):
                images.client.images.remove(tag)


def test_a_script_in_a_container_writes_only_where_it_may(engine: None, tmp_path: Path) -> None:
    """How Horovod is compiled on a host without a compiler."""
    given, out = tmp_path / "given", tmp_path / "out"
    given.mkdir()
    out.mkdir()
    mounts = {given: ("/given", False), out: ("/out", True)}
    script = "sleep 1.5; touch /given/x 2>/dev/null && exit 9; echo $WORD > /out/answer; echo done"
    images, log = DockerImages(), tmp_path / "log"
    ticks = list(images.run_mounted(engines.base_image(), script, mounts, {"WORD": "hello"}, log))
    assert ticks and (out / "answer").read_text() == "hello\n" and log.read_text() == "done\n"
    with pytest.raises(PrepareError, match="no matching package"):
        list(images.run_mounted(engines.base_image(), "echo error: no matching package; exit 1", {}, {}, log))


@pytest.mark.horovod
def test_the_virtual_environment_has_the_same_packages(job_python: str, job_image: str) -> None:
    ask = "import importlib.metadata as m; print(sorted((d.name.lower(), d.version) for d in m.distributions()))"
    here = subprocess.run([job_python, "-c", ask], capture_output=True, text=True, check=True, cwd=Path("/")).stdout
    there = output(job_image, f'cd / && python -c "{ask}"')
    drop = {"pip", "setuptools"}
    packages = [{pair for pair in eval(text) if pair[0] not in drop} for text in (here, there)]  # printed by us
    assert packages[0] == packages[1] and len(packages[0]) > 15
