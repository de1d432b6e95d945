"""Environments that are images: which node finds out what a tag means, who gets credentials, and how images get to others."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.agents import sync
from portal.cluster.models import Node
from portal.environments import builds, credentials, images
from portal.environments.images import ImageRequest, RegistryRequest
from portal.environments.models import Build, Environment, ImageSettings, Lock, NodeEnvironment, Registry
from portal.environments.recipes import OWN_IMAGE
from portal.scheduler.availability import IMAGES, LAYERS, ImagesNeedDocker, read_nodes, why_blocked
from portal.scheduler.run_specs import layer_on
from portal.sentences import sentence_of
from runners.agent import own_images
from runners.messages.environments import AskingRegistry
from runners.messages.image_failures import ImageNotAllowed, NoPython, RegistryAway
from runners.spec import OWN_IMAGE as OWN_IMAGE_OF_SPECS
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import make_project, make_user

pytestmark = pytest.mark.django_db
KIND = "image-linux-amd64"
NAME = "registry.example.org/lab/train:1"
AWAY = RegistryAway("registry.example.org", "no route")


def exact(letter: str = "a") -> str:
    return f"registry.example.org/lab/train@sha256:{letter * 64}"


def docker_agent(name: str) -> Agent:
    agent = Agent(name)
    Node.objects.filter(pk=agent.node.pk).update(
        runtime="docker", facts={"image_format": 1, "layer_format": 1}, ready=True
    )
    agent.node.refresh_from_db()
    agent.report |= {"runtime": "docker", "facts": {"image_format": 1, "layer_format": 1}}
    return agent


@pytest.fixture
def environment() -> Environment:
    admin = make_user("ada", is_staff=True)
    images.set_image_settings(admin, ["registry.example.org/lab"], "needed")
    images.set_registry(admin, RegistryRequest("registry.example.org", "lab", "t0ken-of-the-lab"))
    return images.create(admin, make_project(admin), ImageRequest(NAME))


def claim(agent: Agent, environment: Environment, has: str = "") -> dict[str, Any]:
    answer = agent.post(f"environments/{environment.key}/claim", {"kind": KIND, "has": has})
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def result(letter: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "state": "done",
        "digest": own_images.digest_of(KIND, exact(letter)),
        "sha256": "",
        "lock": exact(letter),
        "unpacked_bytes": 7_000_000,
        "modules": ["torch", "numpy", "not a module"],
        "facts": {"content": "c" * 64, "python": "3.12.4", "libc": "glibc 2.36", "more": 1},
        **changes,
    }


def build(agent: Agent, environment: Environment, letter: str = "a") -> Lock:
    number = claim(agent, environment)["build"]
    assert agent.post(f"builds/{number}/end", result(letter)).status_code == 200
    NodeEnvironment.objects.update_or_create(
        node=agent.node, environment=environment, defaults={"state": "ready", "digest": result(letter)["digest"]}
    )
    return Lock.objects.get(digest=result(letter)["digest"])


def test_the_portal_and_agents_agree_on_names() -> None:
    assert OWN_IMAGE == OWN_IMAGE_OF_SPECS
    assert builds.image_digest(KIND, exact()) == own_images.digest_of(KIND, exact())


def test_one_node_builds_and_the_others_pull_the_digest(environment: Environment) -> None:
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    given = claim(alpha, environment)
    assert given["state"] == "build" and given["recipe"] == {
        "image": NAME,
        "access": {"user": "lab", "token": "t0ken-of-the-lab", "insecure": False},
        "send": False,
    }
    assert claim(beta, environment)["state"] == "wait"
    assert alpha.post(f"builds/{given['build']}/end", result()).status_code == 200
    lock = Lock.objects.get()
    assert (lock.text, lock.archive_sha256, lock.facts) == (
        exact(),
        "",
        {"content": "c" * 64, "python": "3.12.4", "libc": "glibc 2.36"},
    )
    environment.refresh_from_db()
    assert environment.packages == ["numpy", "torch"]
    assert claim(beta, environment) == {
        "state": "ready",
        "final": True,
        "digest": lock.digest,
        "sha256": "",
        "bytes": 0,
        "unpacked_bytes": 7_000_000,
    }
    source = beta.post(f"images/{lock.digest}/source", {}).json()
    assert source["image"] == exact() and source["access"]["token"] == "t0ken-of-the-lab"
    assert (source["bytes"], source["coming"]) == (0, False)


def test_what_a_node_reports_must_be_the_image_that_was_asked_for(environment: Environment) -> None:
    alpha = docker_agent("alpha")
    number = claim(alpha, environment)["build"]
    other = "registry.example.org/lab/other@sha256:" + "a" * 64
    for bad in (
        {"lock": other, "digest": own_images.digest_of(KIND, other)},
        {"lock": f"{exact()}\nx", "digest": own_images.digest_of(KIND, f"{exact()}\nx")},
        {"digest": "d" * 64},
        {"lock": NAME, "digest": own_images.digest_of(KIND, NAME)},
        {"facts": {"content": "x"}},
        {"facts": None},
    ):
        assert alpha.post(f"builds/{number}/end", result(**bad)).status_code in (400, 403, 409), bad
    assert not Lock.objects.exists()


def test_credentials_go_to_approved_nodes_with_docker_only(environment: Environment) -> None:
    lock = build(docker_agent("alpha"), environment)
    process, waiting = Agent("process"), Agent("waiting", approve=False)
    Node.objects.filter(pk=waiting.node.pk).update(runtime="docker", facts={"image_format": 1})
    for agent in (process, waiting):
        for path, body in (
            (f"environments/{environment.key}/claim", {"kind": KIND}),
            (f"images/{lock.digest}/source", {}),
        ):
            answer = agent.post(path, body)
            assert answer.status_code == 404 and b"t0ken" not in answer.content, path
    assert docker_agent("beta").post("images/nothing/source", {}).status_code == 404


def test_a_node_that_cannot_pull_gets_the_image_from_another_one(environment: Environment) -> None:
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    lock = build(alpha, environment)
    assert claim(alpha, environment, lock.digest)["state"] == "ready"  # nothing is sent as long as no node needs it
    source = beta.post(f"images/{lock.digest}/source", {"failure": AWAY.data()}).json()
    assert (source["bytes"], source["coming"]) == (0, True)
    sync._environments.forget()
    (wanted,) = [each for each in alpha.sync()["all_environments"] if each["key"] == environment.key]
    assert wanted == {
        "key": environment.key,
        "base": "image",
        "recipe": environment.recipe,
        "generation": 1,
        "send": lock.digest,
        "project": environment.project_id,
    }
    assert claim(beta, environment)["state"] == "ready"
    given = claim(alpha, environment, lock.digest)
    assert given["state"] == "build" and given["recipe"]["send"] is True and given["recipe"]["image"] == exact()
    assert claim(alpha, environment, lock.digest)["build"] == given["build"]  # its agent was restarted
    content = b"an image"
    sent = alpha.http.put(f"/agent/v1/builds/{given['build']}/archive?offset=0", content, headers=alpha.headers)
    assert sent.status_code == 200
    sha256 = hashlib.sha256(content).hexdigest()
    assert alpha.post(f"builds/{given['build']}/end", result(sha256=sha256)).status_code == 200
    assert beta.post(f"images/{lock.digest}/source", {}).json()["bytes"] == len(content)
    answer = beta.http.get(f"/agent/v1/layers/{lock.digest}?offset=0", headers=beta.headers)
    assert answer.status_code == 200 and answer["Layer-SHA256"] == sha256
    sync._environments.forget()
    (wanted,) = [each for each in alpha.sync()["all_environments"] if each["key"] == environment.key]
    assert "send" not in wanted
    assert claim(alpha, environment, lock.digest)["state"] == "ready"


def test_another_image_is_not_sent_in_its_place(environment: Environment) -> None:
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    lock = build(alpha, environment)
    beta.post(f"images/{lock.digest}/source", {"failure": AWAY.data()})
    number = claim(alpha, environment, lock.digest)["build"]
    assert alpha.post(f"builds/{number}/end", result("b")).status_code == 403


def test_without_archives_no_image_is_sent(environment: Environment) -> None:
    ImageSettings.objects.update(archives="never")
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    lock = build(alpha, environment)
    assert beta.post(f"images/{lock.digest}/source", {"failure": AWAY.data()}).json()["coming"] is False
    assert claim(alpha, environment, lock.digest)["state"] == "ready"
    ImageSettings.objects.update(archives="always")
    assert claim(alpha, environment, lock.digest)["recipe"]["send"] is True


def test_a_node_that_is_alone_with_an_image_is_not_waited_for(environment: Environment) -> None:
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    lock = build(alpha, environment)
    NodeEnvironment.objects.all().delete()
    assert beta.post(f"images/{lock.digest}/source", {"failure": AWAY.data()}).json()["coming"] is False


def test_another_node_tries_a_registry_that_the_first_cannot_reach(environment: Environment) -> None:
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    number = claim(alpha, environment)["build"]
    alpha.post(f"builds/{number}/end", {"state": "failed", "message": AWAY.data()})
    assert claim(alpha, environment) == {"state": "failed", "message": AWAY.data()}
    assert claim(beta, environment)["state"] == "build"
    Build.objects.filter(node=beta.node).update(
        state="failed", message=NoPython(NAME, "3.10").data(), ended_at=timezone.now()
    )
    gamma = docker_agent("gamma")
    assert claim(gamma, environment)["message"] == NoPython(NAME, "3.10").data()  # it would find the same


def test_a_node_tries_again_after_some_time(environment: Environment) -> None:
    alpha = docker_agent("alpha")
    number = claim(alpha, environment)["build"]
    alpha.post(f"builds/{number}/end", {"state": "failed", "message": AWAY.data()})
    Build.objects.update(ended_at=timezone.now() - timedelta(minutes=11))
    assert claim(alpha, environment)["state"] == "build"


def test_build_again_takes_the_tag_of_today_and_jobs_keep_the_old_image_until_then(environment: Environment) -> None:
    from portal.environments import services

    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    first = build(alpha, environment)
    services.build_again(environment.created_by, environment)  # type: ignore[arg-type]
    environment.refresh_from_db()
    given = claim(alpha, environment)
    assert given["state"] == "build" and given["recipe"]["image"] == NAME
    assert claim(beta, environment) | {"unpacked_bytes": 0} == {
        "state": "ready",
        "final": False,
        "digest": first.digest,
        "sha256": "",
        "bytes": 0,
        "unpacked_bytes": 0,
    }
    alpha.post(f"builds/{given['build']}/end", result("b"))
    assert claim(beta, environment)["digest"] == result("b")["digest"]
    assert layer_on(alpha.node, environment) == first.digest  # what the node reports, until it has the new one


def test_nodes_of_another_kind_get_the_same_digest(environment: Environment) -> None:
    alpha, arm = docker_agent("alpha"), docker_agent("arm")
    build(alpha, environment)
    given = arm.post(f"environments/{environment.key}/claim", {"kind": "image-linux-arm64"}).json()
    assert given["state"] == "build" and given["recipe"]["image"] == exact()


def test_an_image_that_is_no_longer_allowed_is_not_pulled(environment: Environment) -> None:
    alpha = docker_agent("alpha")
    lock = build(alpha, environment)
    ImageSettings.objects.update(allowed=["ghcr.io"])
    assert claim(alpha, environment) == {"state": "failed", "message": ImageNotAllowed(NAME).data()}
    answer = alpha.post(f"images/{lock.digest}/source", {})
    assert answer.status_code == 403 and b"t0ken" not in answer.content


def test_jobs_wait_with_a_reason_where_no_node_has_docker(environment: Environment) -> None:
    agent = Agent("process")
    Node.objects.filter(pk=agent.node.pk).update(
        runtime="process", facts={"layer_format": 1}, ready=True, last_seen_at=timezone.now()
    )
    nodes = read_nodes(timezone.now())
    why = why_blocked(0, environment.pk, environment.title, nodes, frozenset(), frozenset({LAYERS, IMAGES}))
    assert why == ImagesNeedDocker("train:1", ["process"])
    assert "is an image, and process runs jobs without Docker" in sentence_of(why.data())


def test_a_dump_of_the_database_opens_no_registry(environment: Environment) -> None:
    row = Registry.objects.get()
    assert "t0ken" not in str(vars(row)) and "t0ken" not in str(row.sealed_token)
    assert credentials.unseal(row.sealed_token) == "t0ken-of-the-lab"
    assert credentials.unseal("gAAAAAB-of-another-key") is None


def test_the_progress_of_a_build_is_shown_to_the_others(environment: Environment) -> None:
    alpha, beta = docker_agent("alpha"), docker_agent("beta")
    number = claim(alpha, environment)["build"]
    step = {"percent": 40, "message": AskingRegistry().data(), "offset": 0, "log": "Image\n"}
    assert alpha.post(f"builds/{number}/progress", step).json() == {"size": 6}
    assert claim(beta, environment)["message"]["step"] == AskingRegistry().data()
