"""Images of a registry on a real engine: pulled by digest, checked as jobs run, saved and loaded."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.environments import own_images, registry_images
from runners.environments.docker_images import BUILD_LABEL, DockerImages, add_bytes, waiting_process
from runners.environments.own_images import OwnImageStore, job_tag, source_tag
from runners.environments.preparing import PrepareError
from runners.environments.registry_images import ImageName, RegistryAccess
from runners.messages import Message
from runners.messages.environment_failures import Failure
from runners.messages.image_failures import (
    BadCertificate,
    BadImageName,
    DamagedImage,
    DoesNotStart,
    HasVolumes,
    ImageTooLarge,
    InsecureNotAllowed,
    NoPython,
    NoShell,
    NoSuchImage,
    OtherPlatform,
    PythonTooOld,
    RegistryAway,
    RegistryWithoutTls,
    SignInRefused,
)
from tests.engine import base_image
from tests.registry import TOKEN, USER, Registry, image_from, image_of_files, registry

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
OPEN = RegistryAccess(insecure=True)
"""The tests' registries speak HTTP on the loopback, which engines accept."""


def digest_for(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def ignore(percent: int, step: Message) -> None:
    """Report nothing."""


@pytest.fixture(scope="module")
def lab(engine: None) -> Iterator[Registry]:
    with registry(5580) as made:
        yield made


@pytest.fixture(scope="module")
def closed_lab(engine: None) -> Iterator[Registry]:
    with registry(5581, with_sign_in=True) as made:
        yield made


@pytest.fixture
def store(engine: None) -> Iterator[OwnImageStore]:
    made = OwnImageStore()
    yield made
    made.tidy((), -1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_images, "PULL_PAUSE_SECONDS", 0.01)


def failure_of(call: object, *args: object) -> Failure:
    with pytest.raises(PrepareError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value.failure


def test_an_image_is_pulled_by_its_digest_checked_and_prepared(lab: Registry, store: OwnImageStore) -> None:
    pushed = lab.push(image_from(base_image(), ("USER 1234", "ENV NVIDIA_VISIBLE_DEVICES=all", "ENV LAB=x")), "lab/a")
    name = f"{lab.address}/lab/a:1"
    exact = store.resolve(name, OPEN)
    assert exact == f"{lab.address}/lab/a@{pushed}"
    digest = digest_for(exact)
    steps: list[str] = []
    store.pull(exact, digest, OPEN, lambda percent, step: steps.append(step.text))
    assert any(name.removesuffix(":1") in step for step in steps)
    assert store.has_source(digest) and store.reference_of(digest) is None
    dead = json.dumps(waiting_process() | {"started": "1"})
    left = store.engine.client.containers.create(base_image(), ["true"], labels={BUILD_LABEL: dead})
    made = store.prepare(name, digest, ignore)
    assert left.id not in [each.id for each in store.engine.client.containers.list(all=True)], "its agent was killed"
    assert (made.facts.command, made.facts.libc.split()[0]) in {("python", "glibc"), ("python3", "glibc")}
    assert made.facts.python.startswith("3.") and made.bytes > 10**6 and len(made.content) == 64
    assert store.reference_of(digest) == job_tag(digest)
    tags = store.engine.client.api.inspect_image(source_tag(digest))
    assert tags["RepoTags"] == [source_tag(digest)] and not tags["RepoDigests"]
    store.tidy([digest], 0)
    assert store.has_source(digest)
    store.tidy([], -1)
    assert not store.has_source(digest) and store.reference_of(digest) is None


def test_a_tag_that_moved_leads_to_another_digest_and_the_old_one_stays(lab: Registry, store: OwnImageStore) -> None:
    first = lab.push(image_from(base_image(), script="echo 1 > /which"), "lab/moving")
    second = lab.push(image_from(base_image(), script="echo 2 > /which"), "lab/moving")
    assert store.resolve(f"{lab.address}/lab/moving:1", OPEN).endswith(f"@{second}")
    old = f"{lab.address}/lab/moving@{first}"
    assert store.resolve(old, OPEN) == old
    store.pull(old, digest_for(old), OPEN, ignore)
    store.prepare(old, digest_for(old), ignore)
    _, output = store._run(old, job_tag(digest_for(old)), ["cat", "/which"])
    assert output == "1\n"


def test_what_a_registry_refuses_is_named_with_its_fix(
    lab: Registry, closed_lab: Registry, store: OwnImageStore
) -> None:
    closed_lab.push(base_image(), "lab/private")
    private = f"{closed_lab.address}/lab/private:1"
    right = RegistryAccess(USER, TOKEN, insecure=True)
    assert "@sha256:" in store.resolve(private, right)
    wrong = RegistryAccess(USER, "a-wrong-token", insecure=True)
    bridge = "172.17.0.1"
    cases = {
        "no such repository": (f"{lab.address}/lab/none:1", OPEN, NoSuchImage),
        "no such tag": (f"{closed_lab.address}/lab/private:2", right, NoSuchImage),
        "no sign-in": (private, OPEN, SignInRefused),
        "a wrong token": (private, wrong, SignInRefused),
        "a registry that is away": ("127.0.0.1:5589/lab/a:1", OPEN, RegistryAway),
        "an unknown host": ("registry.invalid/lab/a:1", OPEN, RegistryAway),
        "plain HTTP": (f"{bridge}:{lab.port}/lab/a:1", OPEN, RegistryWithoutTls),
        "plain HTTP that no admin allowed": (f"{lab.address}/lab/a:1", RegistryAccess(), InsecureNotAllowed),
        "no full name": ("ubuntu", OPEN, BadImageName),
        "an option": ("--privileged/x", OPEN, BadImageName),
        "two steps up": ("127.0.0.1:5580/../x:1", OPEN, BadImageName),
        "a user in the name": ("user@127.0.0.1:5580/x:1", OPEN, BadImageName),
    }
    for case, (image, access, expected) in cases.items():
        failure = failure_of(store.resolve, image, access)
        assert type(failure) is expected, (case, failure)
    refused = failure_of(store.resolve, private, wrong)
    assert isinstance(refused, SignInRefused) and refused.user == USER and "a-wrong-token" not in refused.text


def test_a_token_is_in_no_message_and_no_log() -> None:
    access = RegistryAccess(USER, TOKEN)
    name = ImageName.parse("registry.example.org/lab/a:1")
    assert TOKEN not in repr(access)
    assert TOKEN not in registry_images.explained_text(name, f"strange: Basic {TOKEN}", access).failure.text


def test_a_certificate_of_an_unknown_authority_is_named(engine: None, store: OwnImageStore) -> None:
    with registry(5582, with_tls=True):
        failure = failure_of(store.resolve, "172.17.0.1:5582/lab/a:1", OPEN)
    assert isinstance(failure, BadCertificate) and "/etc/docker/certs.d/172.17.0.1:5582/ca.crt" in failure.fix


def test_an_image_for_another_platform_is_refused_before_it_is_pulled(
    lab: Registry, store: OwnImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{lab.address}/lab/other:1"
    lab.push(image_of_files({"hello": b"x"}), "lab/other")
    here = registry_images.platform_of(store.engine)
    monkeypatch.setattr(registry_images, "platform_of", lambda engine: "linux/riscv64")
    assert failure_of(store.resolve, name, OPEN) == OtherPlatform(name, (here,), "linux/riscv64")


def test_an_image_that_does_not_fit_is_not_pulled(
    lab: Registry, store: OwnImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.push(image_from(base_image(), script="head -c 3000000 /dev/urandom > /noise"), "lab/large")
    monkeypatch.setattr(registry_images.Room, "free_mib", lambda room: 1500)
    exact = store.resolve(f"{lab.address}/lab/large:1", OPEN)
    failure = failure_of(store.pull, exact, digest_for(exact), OPEN, ignore)
    assert isinstance(failure, ImageTooLarge) and failure.free_mib == 1500
    assert not store.has_source(digest_for(exact))


OLD = """cat > /usr/bin/python <<'END'
#!/bin/sh
echo 'schedulearn-image {"name": "python", "facts": {"version": [2, 7, 18], "libc": [], "modules": []}}'
END
chmod 755 /usr/bin/python"""
HIDE = (
    "mkdir /hidden; for each in /usr/bin/python* /usr/local/bin/python*; do [ ! -e $each ] || mv $each /hidden/; done"
)


def keep_as(store: OwnImageStore, image: str, name: str) -> str:
    """Keep an image as one that was pulled, and return its digest."""
    digest = digest_for(name)
    repository, _, version = source_tag(digest).partition(":")
    store.engine.client.api.tag(image, repository, version)
    return digest


def test_what_an_image_lacks_is_named_with_its_fix(store: OwnImageStore) -> None:
    base = base_image()
    cases = {
        "no shell": (image_of_files({"hello": b"x"}), NoShell),
        "no python": (image_from(base, script=HIDE), NoPython),
        "an old python": (image_from(base, script=f"{HIDE}; {OLD}"), PythonTooOld),
        "volumes": (image_from(base, ("VOLUME /data",)), HasVolumes),
        "one that only root can read": (image_from(base, script="chmod 700 /usr/lib/python3*"), DoesNotStart),
    }
    for case, (image, expected) in cases.items():
        digest = keep_as(store, image, case)
        failure = failure_of(store.prepare, case, digest, ignore)
        assert type(failure) is expected, (case, failure)
        assert store.reference_of(digest) is None, case


def test_python3_alone_is_enough_and_onbuild_runs_nothing(store: OwnImageStore) -> None:
    script = (
        "real=$(readlink -f $(command -v python3)); rm -f /usr/bin/python /usr/local/bin/python; "
        "[ -e /usr/bin/python3 ] || ln -s $real /usr/bin/python3"
    )
    image = image_from(base_image(), ("ONBUILD RUN exit 3", 'ENTRYPOINT ["/bin/false"]', "WORKDIR /nowhere"), script)
    digest = keep_as(store, image, "python3")
    made = store.prepare("python3", digest, ignore)
    assert made.facts.command == "python3"
    code, output = store._run("x", job_tag(digest), ["python", "-c", "import sys; print(sys.version_info >= (3, 10))"])
    assert (code, output) == (0, "True\n")


def test_a_saved_image_is_loaded_on_another_node_without_a_registry(
    lab: Registry, store: OwnImageStore, tmp_path: Path
) -> None:
    lab.push(image_from(base_image(), script="echo here > /which"), "lab/sent")
    name = f"{lab.address}/lab/sent:1"
    exact = store.resolve(name, OPEN)
    digest = digest_for(exact)
    store.pull(exact, digest, OPEN, ignore)
    content = store.prepare(name, digest, ignore).content
    archive = tmp_path / "image.tar"
    with archive.open("wb") as file:
        file.writelines(store.save(digest))
    store.tidy((), -1)
    assert not store.has_source(digest)  # as on the other node
    assert isinstance(failure_of(store.load, archive, digest, "0" * 64), DamagedImage)
    assert not store.has_source(digest)
    store.load(archive, digest, content)
    assert store.prepare(name, digest, ignore).content == content
    _, output = store._run(name, job_tag(digest), ["cat", "/which"])
    assert output == "here\n"


def test_archives_that_name_images_are_refused(store: OwnImageStore, tmp_path: Path) -> None:
    victim = "schedulearn-test-good:1"
    store.engine.client.images.get(base_image()).tag("schedulearn-test-good", "1")
    before = store.engine.id_of(victim)
    bad = image_of_files({"evil": b"x"})
    store.engine.client.images.get(bad).tag("schedulearn-test-evil", "1")
    saved = b"".join(store.engine.client.api.get_image("schedulearn-test-evil:1"))
    renamed = saved.replace(b"schedulearn-test-evil:1", victim.encode())
    archive = tmp_path / "evil.tar"
    archive.write_bytes(renamed)
    failure = failure_of(store.load, archive, digest_for("evil"), "0" * 64)
    assert isinstance(failure, DamagedImage) and "replace" in failure.why
    assert store.engine.id_of(victim) == before
    for tag in (victim, "schedulearn-test-evil:1"):
        store.engine.remove(tag)


def members(*named: tuple[str, bytes | str]) -> bytes:
    """Return a tar; a text is where a link leads."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, content in named:
                if isinstance(content, bytes):
                    add_bytes(tar, name, content)
                else:
                    link = tarfile.TarInfo(name)
                    link.type, link.linkname = tarfile.SYMTYPE, content
                    tar.addfile(link)
        return file.getvalue()


PLAIN = b'[{"Config": "c.json", "RepoTags": null, "Layers": []}]'
NAMED = b'[{"Config": "c.json", "RepoTags": ["python:3.11"], "Layers": []}]'


@pytest.mark.parametrize(
    "content",
    [
        members(("manifest.json", NAMED)),
        members(("manifest.json", PLAIN), ("./manifest.json", NAMED)),
        members(("manifest.json", PLAIN), ("x", "."), ("x/manifest.json", NAMED)),
        members(("manifest.json", PLAIN), ("../manifest.json", NAMED)),
        members(("manifest.json", PLAIN), ("repositories", b'{"python": {"3.11": "x"}}')),
        members(
            ("manifest.json", PLAIN),
            ("index.json", b'{"manifests": [{"annotations": {"io.containerd.image.name": "python:3.11"}}]}'),
        ),
        members(("manifest.json", PLAIN[:-1] + b"," + NAMED[1:])),
        members(("manifest.json", "other.json"), ("other.json", NAMED)),
        members(("other.json", PLAIN)),
        b"no tar at all",
    ],
)
def test_no_trick_gets_a_name_into_the_engine(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(content)
    with pytest.raises(PrepareError):
        registry_images.refuse_names(archive)


def test_a_plain_archive_is_accepted(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(members(("manifest.json", PLAIN), ("b/layer.tar", "../a/layer.tar")))
    registry_images.refuse_names(archive)


def test_images_of_others_are_left_alone(store: OwnImageStore) -> None:
    images = DockerImages()
    others = ("schedulearn-image:by-hand", "schedulearn-job:image-by-hand")
    for tag in others:
        images.client.images.get(base_image()).tag(*tag.split(":"))
    store.tidy((), -1)
    assert all(images.id_of(tag) for tag in others)
    for tag in others:
        images.remove(tag)


def test_the_tags_of_a_digest() -> None:
    digest = "ab" * 32
    assert own_images.SOURCE_TAG.fullmatch(source_tag(digest)) and own_images.JOB_TAG.fullmatch(job_tag(digest))
    with pytest.raises(ValueError, match="not the digest"):
        source_tag("../x")
