"""Builds images on a Docker Engine with its classic builder, from build contexts that we pack ourselves."""

import io
import json
import os
import re
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from runners.environments.preparing import PrepareError, ProgramError, explain, last_error, read_tail
from runners.environments.targets import Target, parse_glibc
from runners.host import processes
from runners.messages import Message
from runners.messages.environment_failures import (
    CannotPull,
    EngineDiskFull,
    NoWorkingPython,
    ProgramFailed,
    Stage,
    TookTooLong,
)
from runners.messages.environments import AskingRegistry, LayersArrived
from runners.runtimes.docker import APIError, ContainerError, ImageNotFound, NotFound, connect, engine_calls

BUILD_SECONDS = 900
"""The maximum time between two lines of a build."""
SCRIPT_SECONDS = 7200
"""The maximum run time of a script in a container: Horovod takes an hour to compile on a slow machine."""

KEEP_OLD_DAYS = 7
"""How long old images are kept: several installations may share an engine, each with its own version of the images."""

BUILD_LABEL = "schedulearn.build"
"""The label of containers in which packages are built or images are checked: the process that waits for them."""
FOLLOW_SECONDS = 10.0
"""The maximum time for the last output of a container that has ended."""

TICK_SECONDS = 1.0
TAIL_LINES = 20

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

STEP = re.compile(r"Step (\d+)/(\d+)")

TARGET_SCRIPT = (
    "import json, platform, sys; "
    "print(json.dumps([list(sys.version_info[:2]), list(platform.libc_ver()), platform.machine()]))"
)


class DockerImages:
    """What environments need from an engine. Every call fails after a time without output."""

    def __init__(self, base_url: str | None = None) -> None:
        """Raises EngineError when no engine answers."""
        self.client = connect(base_url, BUILD_SECONDS)

    def id_of(self, image: str) -> str | None:
        """Return the digest of the image's content, None when the engine does not have it."""
        with engine_calls():
            try:
                return str(self.client.api.inspect_image(image)["Id"])
            except ImageNotFound:
                return None

    def repo_digests(self, image: str) -> tuple[str, ...]:
        """Return the digests that registries have for an image (``python@sha256:...``); none for one made or imported here."""
        with engine_calls():
            return tuple(self.client.api.inspect_image(image).get("RepoDigests") or ())

    def remove(self, image: str) -> bool:
        """Remove an image or a tag. Returns whether it is gone: one that a container has stays."""
        with engine_calls():
            try:
                self.client.api.remove_image(image)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise
                return bool(error.status_code == 404)  # noqa: PLR2004
        return True

    def pull(self, image: str, progress: Callable[[Message], None]) -> None:
        """Download an image. ``progress`` is called with how much has arrived. Raises PrepareError if no registry has it."""
        layers = DownloadProgress()
        with engine_calls():
            try:
                for event in self.client.api.pull(image, stream=True, decode=True):
                    if "error" in event:
                        raise image_error(image, str(event["error"]))
                    layers.record(event)
                    progress(layers.summary())
            except APIError as error:
                raise image_error(image, str(error.explanation)) from error

    def target(self, image: str, cuda: bool) -> Target:
        """Return the interpreter of an image. It is run for that, without a network or privileges."""
        try:
            python, libc, machine = json.loads(self.output(image, ["python", "-c", TARGET_SCRIPT]))
        except ValueError as error:
            raise PrepareError(NoWorkingPython(image, str(error))) from error
        return Target(".".join(str(part) for part in python), parse_glibc((libc[0], libc[1])), machine, cuda)

    def output(self, image: str, command: list[str]) -> str:
        """Return what a short command prints. Raises ValueError when it fails."""
        with engine_calls():
            try:
                output: bytes = self.client.containers.run(
                    image, command, entrypoint=[], network_mode="none", remove=True, cap_drop=["ALL"], read_only=True
                )
            except (ContainerError, APIError) as error:
                raise ValueError(str(error)) from error
        return output.decode()

    def run_mounted(
        self,
        image: str,
        script: str,
        mounts: Mapping[Path, tuple[str, bool]],
        variables: Mapping[str, str],
        log: Path,
    ) -> Iterator[str]:
        """Run a shell script of ours over some folders, without a network; yields the end of its output each second
        and keeps the whole in ``log``. Raises PrepareError when it fails."""
        options = {
            "environment": dict(variables),
            "user": f"{os.geteuid()}:{os.getegid()}",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
        }
        with self._container(image, script, mounts, log, options) as container:
            yield from follow_until_exit(container, Stage("compiling_in", image), log)

    @contextmanager
    def confined(
        self,
        image: str,
        command: Sequence[str],
        mounts: Mapping[Path, tuple[str, bool]],
        log: Path,
        options: Mapping[str, Any],
    ) -> Iterator[Callable[[], "ContainerEnd | None"]]:
        """Start a command in a container without a network, privileges or a writable file but those of ``mounts``.

        ``mounts``: where each path is inside, and whether it may be written to. Output is added to ``log`` while it runs.
        Yields a function that returns how it ended, None before the end. The container is removed at the end, and by the
        next call if this process is killed.
        """
        with engine_calls():
            self.remove_abandoned()
            container = self.client.containers.create(
                image,
                list(command),
                entrypoint=[],
                network_mode="none",
                mounts=bind_mounts(mounts),
                labels={BUILD_LABEL: json.dumps(waiting_process())},
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                read_only=True,
                init=True,
                **options,
            )
        try:
            with engine_calls():
                container.start()
            follower = threading.Thread(target=follow_output, args=(container, log), name="build output", daemon=True)
            follower.start()
            yield partial(end_of, container)
            follower.join(FOLLOW_SECONDS)
        finally:
            with engine_calls():
                container.remove(force=True, v=True)

    def remove_abandoned(self) -> None:
        """Remove the containers of builds and checks whose agent was killed. Agents elsewhere are not seen here."""
        here = waiting_process()["namespace"]
        for container in self.client.containers.list(all=True, filters={"label": BUILD_LABEL}):
            with suppress(ValueError, LookupError, NotFound):
                waiting = json.loads(container.labels[BUILD_LABEL])
                if waiting["namespace"] == here and not processes.is_alive(waiting):
                    container.remove(force=True, v=True)

    def install(
        self,
        base: str,
        script: str,
        mounts: Mapping[Path, str],
        tag: str,
        programs: str,
        log: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Run a shell script of ours as root in a new container of ``base``, without a network, and tag what it leaves.

        ``mounts`` are folders that it only reads. ``programs`` is put before the image's PATH. ``progress`` is called with
        (step, steps). Raises PrepareError. A Dockerfile takes twice as long: it sends the packages to the engine and copies
        them from stage to stage.
        """
        readable = {path: (to, False) for path, to in mounts.items()}
        log.parent.mkdir(parents=True, exist_ok=True)
        with engine_calls():
            config = self.client.api.inspect_image(base)["Config"]
        variables = dict(each.split("=", 1) for each in config["Env"] or [])
        path, command = variables.get("PATH", DEFAULT_PATH), json.dumps(config["Cmd"] or ["python"])
        options = {"user": "0:0", "labels": {"schedulearn": "image"}}
        with self._container(base, script, readable, log, options) as container:
            progress(1, 2)
            for _ in follow_until_exit(container, Stage("building", tag), log):
                pass
            progress(2, 2)
            repository, _, version = tag.partition(":")
            container.commit(repository, version, changes=[f"ENV PATH={programs}:{path}", f"CMD {command}"])

    def add_files(self, base: str, archive: IO[bytes], tag: str, labels: Mapping[str, str]) -> None:
        """Make an image of another one with the files of a tar, of which nothing runs. Raises EngineError."""
        repository, _, version = tag.partition(":")
        with engine_calls():
            command = self.client.api.inspect_image(base)["Config"]["Cmd"] or ["python"]
            container = self.client.api.create_container(base, command=["true"], network_disabled=True)["Id"]
            try:
                self.client.api.put_archive(container, "/", archive)
                changes = [f"CMD {json.dumps(command)}", *(f"LABEL {name}={value}" for name, value in labels.items())]
                self.client.api.commit(container, repository, version, changes=changes)
            finally:
                self.client.api.remove_container(container, force=True, v=True)

    @contextmanager
    def _container(
        self,
        image: str,
        script: str,
        mounts: Mapping[Path, tuple[str, bool]],
        log: Path,
        options: Mapping[str, Any],
    ) -> Iterator[Any]:
        """Run a script of ours over some folders in a container without a network; its output is stored in ``log``."""
        binds = bind_mounts(mounts)
        with engine_calls():
            container = self.client.containers.create(
                image, ["sh", "-ec", script], entrypoint=[], network_mode="none", mounts=binds, **options
            )
            try:
                container.start()
                yield container
            finally:
                log.write_bytes(container.logs())
                container.remove(force=True, v=True)

    def build(
        self,
        files: Mapping[str, Path | bytes],
        dockerfile: str,
        tag: str,
        args: Mapping[str, str],
        log: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Build from exactly these files (folders by their content) and tag the result.

        ``progress`` is called with (step, steps); ``log`` gets the output. Raises PrepareError with that of a failing step.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with packed_context(files) as context, log.open("w") as account, engine_calls():
            events = self.client.api.build(
                fileobj=context,
                custom_context=True,
                dockerfile=dockerfile,
                tag=tag,
                buildargs=dict(args),
                rm=True,
                forcerm=True,
                pull=False,
                network_mode="none",
                labels={"schedulearn": "image"},
                decode=True,
            )
            for event in events:
                line = str(event.get("stream") or event.get("error") or "")
                account.write(line)
                account.flush()
                if "error" in event:
                    raise build_error(tag, read_tail(log), log)
                if counted := STEP.match(line):
                    progress(int(counted[1]), int(counted[2]))

    def remove_old_images(self, repository: str, environment: str, keep: str) -> None:
        """Remove earlier images of an environment after some days. Those in use stay."""
        with engine_calls():
            ours = re.compile(re.escape(f"{repository}:{environment}-") + "[0-9a-f]{12}")
            for image in self.client.api.images(filters={"reference": f"{repository}:{environment}-*"}):
                if image["Created"] > time.time() - KEEP_OLD_DAYS * 86_400:
                    continue
                for tag in image.get("RepoTags") or []:
                    if tag == keep or not ours.fullmatch(tag):
                        continue
                    try:
                        self.client.api.remove_image(tag)
                    except APIError as error:
                        if error.status_code not in (404, 409):  # gone, or a container has it
                            raise


def waiting_process() -> dict[str, Any]:
    """Return what identifies this process to others that see the same processes."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return {**processes.identity_of(os.getpid()), "namespace": namespace}


def bind_mounts(mounts: Mapping[Path, tuple[str, bool]]) -> list[Any]:
    """Return mounts for the engine. Given as "volumes", they would become volumes of an image made from the container."""
    return [
        {"Type": "bind", "Source": str(path), "Target": to, "ReadOnly": not write}
        for path, (to, write) in mounts.items()
    ]


def follow_output(container: Any, log: Path) -> None:
    """Add what a container prints to a log, until it ends or is removed."""
    with log.open("ab", buffering=0) as file, suppress(APIError, OSError):
        for data in container.logs(stream=True, follow=True):
            file.write(data)


@dataclass(frozen=True)
class ContainerEnd:
    """How a container ended."""

    code: int
    out_of_memory: bool
    """Whether the kernel has killed a process of it because of its memory limit."""


def end_of(container: Any) -> ContainerEnd | None:
    """Return how a container ended, None while it runs."""
    with engine_calls():
        container.reload()
    state = container.attrs["State"]
    return (
        ContainerEnd(int(state["ExitCode"]), state.get("OOMKilled") is True) if container.status == "exited" else None
    )


def follow_until_exit(container: Any, stage: Stage, log: Path) -> Iterator[str]:
    """Yield the end of a container's output each second. Raises PrepareError when it fails or takes too long."""
    until = time.monotonic() + SCRIPT_SECONDS
    while True:
        container.reload()
        last = container.logs(tail=TAIL_LINES).decode(errors="replace")
        if container.status == "exited":
            break
        if time.monotonic() > until:
            raise PrepareError(TookTooLong(stage, int(SCRIPT_SECONDS // 60), str(log)))
        yield last
        time.sleep(TICK_SECONDS)
    if container.attrs["State"]["ExitCode"] != 0:
        raise explain(ProgramError(last), stage, log)


class DownloadProgress:
    """How much of an image is downloaded, layer by layer, from the engine's events."""

    def __init__(self) -> None:
        self._bytes: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()

    def record(self, event: Mapping[str, Any]) -> None:
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        detail = event.get("progressDetail") or {}
        if status == "Pulling fs layer":
            self._bytes.setdefault(layer, (0, 0))
        elif status == "Downloading" and detail.get("total"):
            self._bytes[layer] = (int(detail["current"]), int(detail["total"]))
        elif status in ("Pull complete", "Already exists"):
            self._bytes.setdefault(layer, (0, 0))
            self._done.add(layer)

    @property
    def total_mib(self) -> int:
        """The compressed size of the layers whose sizes are known."""
        return sum(total for _, total in self._bytes.values()) >> 20

    @property
    def arrived(self) -> int:
        """How many layers have arrived."""
        return len(self._done)

    @property
    def percent(self) -> int:
        total = sum(total for _, total in self._bytes.values())
        return 100 * self._here() // total if total else 0

    def _here(self) -> int:
        return sum(total if layer in self._done else now for layer, (now, total) in self._bytes.items())

    def summary(self) -> Message:
        if not self._bytes:
            return AskingRegistry()
        total = sum(total for _, total in self._bytes.values())
        return LayersArrived(len(self._done), len(self._bytes), self._here() >> 20, total >> 20 if total else None)


@contextmanager
def packed_context(files: Mapping[str, Path | bytes]) -> Iterator[Any]:
    """Pack the context as a tar on disk: wheels are too large for memory. Owners and times are fixed, so that equal content
    is equal for the builder's cache."""
    with tempfile.TemporaryFile(prefix="schedulearn-context-") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, content in sorted(files.items()):
                if isinstance(content, Path):
                    tar.add(content, name, filter=normalise_member)
                else:
                    add_bytes(tar, name, content)
        file.seek(0)
        yield file


def normalise_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in member.name or not (member.isdir() or member.isreg()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = 0
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def add_bytes(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = mode
    tar.addfile(member, io.BytesIO(content))


def image_error(image: str, why: str) -> PrepareError:
    return PrepareError(CannotPull(image, why))


def build_error(tag: str, output: str, log: Path) -> PrepareError:
    if "no space left" in output.lower():
        return PrepareError(EngineDiskFull())
    return PrepareError(ProgramFailed(Stage("building", tag), last_error(output), str(log)))
