"""What the engine is asked when it builds and fetches images, without an engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from runners.environments import docker_images, registry_images
from runners.environments.docker_images import DockerImages, DownloadProgress, follow_until_exit
from runners.environments.preparing import PrepareError
from runners.messages import Message
from runners.messages.environment_failures import Stage
from runners.messages.environments import AskingRegistry
from runners.messages.image_failures import PullFailed


class Api(docker.APIClient):
    """Connects nowhere; notes what it would have fetched."""

    def __init__(self) -> None:
        super().__init__(version="1.41")
        self.asked: list[dict[str, str]] = []

    def _post(self, url: str, params: dict[str, str], **_: Any) -> None:
        self.asked.append(params)

    def _raise_for_status(self, response: None) -> None:
        pass

    def _stream_helper(self, response: None, decode: bool = False) -> Iterator[dict[str, str]]:
        yield {"status": "Pulling"}


class Client:
    def __init__(self) -> None:
        self.api = Api()


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        ("python", "python", "latest"),
        ("python:3.11-slim", "python", "3.11-slim"),
        ("registry.example.org:5000/lab/base", "registry.example.org:5000/lab/base", "latest"),
        ("registry.example.org:5000/lab/base:1", "registry.example.org:5000/lab/base", "1"),
        ("lab/base@sha256:" + "0" * 64, "lab/base", "sha256:" + "0" * 64),
        ("lab/base:1@sha256:" + "0" * 64, "lab/base:1", "sha256:" + "0" * 64),
    ],
)
def test_an_image_is_fetched_by_the_name_it_was_given(
    image: str, repository: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, progress = Client(), list[Message]()
    monkeypatch.setattr(docker_images, "connect", lambda *_: client)
    DockerImages().pull(image, progress.append)
    assert client.api.asked == [{"fromImage": repository, "tag": tag}] and progress == [AskingRegistry()]


class Endless:
    """A container that never exits."""

    status = "running"

    def reload(self) -> None:
        pass

    def logs(self, tail: int) -> bytes:
        return b"still at it"


def test_a_script_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(docker_images, "SCRIPT_SECONDS", -1)
    with pytest.raises(PrepareError, match="Compiling in builder:1 has not ended after"):
        list(follow_until_exit(Endless(), Stage("compiling_in", "builder:1"), tmp_path / "log"))


def test_a_pull_reports_how_much_is_downloaded() -> None:
    layers = DownloadProgress()
    assert layers.summary().text == "asking the registry"
    layers.record({"status": "Pulling from library/python", "id": "3.11"})
    for layer in ("a", "b", "c"):
        layers.record({"status": "Pulling fs layer", "id": layer})
    layers.record({"status": "Already exists", "id": "c"})
    layers.record({"status": "Downloading", "id": "a", "progressDetail": {"current": 2**20, "total": 40 * 2**20}})
    layers.record({"status": "Downloading", "id": "b", "progressDetail": {"current": 3 * 2**20, "total": 80 * 2**20}})
    assert layers.summary().text == "4 of 120 MiB, 1 of 3 layers"
    layers.record({"status": "Pull complete", "id": "a"})
    assert layers.summary().text == "43 of 120 MiB, 2 of 3 layers"


@pytest.mark.parametrize(("arriving", "tries"), [((1, 2, 2, 5, 5, 5, 5), 7), ((0, 0, 0, 9), 3), ((3, 3, 2, 3, 4), 4)])
def test_an_image_is_pulled_as_long_as_more_layers_arrive(
    monkeypatch: pytest.MonkeyPatch, arriving: tuple[int, ...], tries: int
) -> None:
    class Engine:
        def id_of(self, image: str) -> None:
            return None

    def break_off(engine: Any, name: Any, exact: str, access: Any, layers: DownloadProgress, progress: Any) -> None:
        for layer in range(arriving[len(asked)]):
            layers.record({"id": str(layer), "status": "Pull complete"})
        asked.append(exact)
        raise PrepareError(PullFailed(exact, "unexpected EOF"))

    asked: list[str] = []
    monkeypatch.setattr(registry_images, "PULL_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(registry_images, "_require_allowed", lambda *_: None)
    monkeypatch.setattr(registry_images, "_pull_once", break_off)
    name, access = registry_images.ImageName.parse("ghcr.io/lab/train:1"), registry_images.RegistryAccess()
    with pytest.raises(PrepareError):
        registry_images.pull(Engine(), name, "sha256:0", access, lambda percent, step: None)  # type: ignore[arg-type]
    assert len(asked) == tries
