"""A commit becomes a code version and runs as a job: real git hosts by https and ssh, a real portal, and a real agent."""

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contents import contents_below
from tests.git_hosts import TOKEN, USER, Repository, https_host, make_repository, own_address, ssh_host
from tests.system.plain_lab import PlainLab
from tests.system.product import PLAIN, running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough]
REPOSITORY_MIB, LIMIT_MIB = 40, 20
ENDED = ("done", "unchanged", "failed", "cancelled", "replaced")


class Lab:
    """A project that is bound to a repository."""

    def __init__(self, lab: PlainLab, repository: Repository, place: str, **source: Any) -> None:
        self.lab, self.repository = lab, repository
        lab.post("git-hosts/", json={"host": place, "internal": True, "kind": "gitea"})
        self.project = lab.post("projects/", json={"name": "From Git"})["id"]
        self.bound = self.bind(**source)

    def bind(self, **source: Any) -> Any:
        answer = self.lab.api("PUT", f"projects/{self.project}/git/", json={"branch": "main", **source})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def fetch(self) -> dict[str, Any]:
        return self.wait_for(self.lab.post(f"projects/{self.project}/git/fetch/")["id"])

    def wait_for(self, fetch: int) -> dict[str, Any]:
        def ended() -> Any:
            found = self.lab.get(f"projects/{self.project}/git/fetches/{fetch}/")
            return found if found["state"] in ENDED else None

        found: dict[str, Any] = wait_for(f"fetch {fetch} has ended", ended, 120)
        return found

    def commit(self, line: str) -> str:
        return self.repository.commit({"train.py": f"print({line!r}, flush=True)\n"}, f"Print {line}")

    def log_of_newest(self) -> bytes:
        """Run the newest version and return what it printed."""
        newest = self.lab.get(f"projects/{self.project}/code/")[0]["number"]
        job = self.lab.submit({"project": self.project, "code": newest}, "python train.py")
        self.lab.succeeds(job)
        return bytes(wait_for("its log has arrived", lambda: self.lab.log(job), 30))


@contextmanager
def started(folder: Path, **env: str) -> Iterator[PlainLab]:
    folder.chmod(0o755)  # the sandbox reads the authority as another user
    lab = PlainLab.within(folder, **env)
    with running(lab):
        lab.start_all()
        lab.wait_for_nodes()
        yield lab


def test_by_https_with_a_token_and_a_webhook(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    with https_host(tmp_path) as host, started(tmp_path, GIT_SSL_CAINFO=str(host.ca)) as lab:
        place = f"{own_address()}:{host.port}"
        bound = Lab(lab, repository, place, address=host.address(), user=USER, token=TOKEN)
        first = bound.commit("the first commit")
        fetched = bound.fetch()
        assert (fetched["state"], fetched["commit"]) == ("done", first), fetched
        assert bound.log_of_newest() == b"the first commit\n"

        hook = lab.post(f"projects/{bound.project}/git/webhook/")
        second = bound.commit("the second commit")
        body = json.dumps({"ref": "refs/heads/main", "after": second}).encode()
        answer = send(lab, hook, body)
        assert answer.status_code == 202, answer.text
        assert bound.wait_for(answer.json()["fetch"])["commit"] == second
        assert bound.log_of_newest() == b"the second commit\n"
        assert send(lab, {**hook, "secret": "guessed"}, body).status_code == 403

        rewritten = bound.repository.rewrite({"train.py": "print('rewritten', flush=True)\n"})
        forced = bound.fetch()
        assert (forced["state"], forced["commit"]) == ("done", rewritten), forced
        assert bound.log_of_newest() == b"rewritten\n"
        bound.bind(address=host.address(), user=USER, token="wrong-token")
        refused = bound.fetch()
        assert refused["state"] == "failed" and "token" in refused["message"], refused
        assert TOKEN.encode() not in everything_below(lab.home / "agent") + (lab.home / "agent.out").read_bytes()


def test_a_repository_that_is_too_large_is_refused_with_the_limit(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    repository.commit({"weights.bin": os.urandom(REPOSITORY_MIB * 2**20)}, "Add weights")
    with (
        https_host(tmp_path) as host,
        started(tmp_path, GIT_SSL_CAINFO=str(host.ca), GIT_MAX_MIB=str(LIMIT_MIB)) as lab,
    ):
        bound = Lab(lab, repository, f"{own_address()}:{host.port}", address=host.address(), user=USER, token=TOKEN)
        large = bound.fetch()
        assert large["state"] == "failed" and f"{LIMIT_MIB} MiB" in large["message"], large
        (repository.clone / "weights.bin").unlink()
        bound.commit("small again")
        assert bound.fetch()["state"] == "done", "only the newest commit is fetched"


def test_by_ssh_with_a_deploy_key(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    with ssh_host(tmp_path) as host, started(tmp_path) as lab:
        bound = Lab(lab, repository, f"{own_address()}:{host.port}", address=host.address())
        commit = bound.commit("by ssh")
        unknown = bound.fetch()
        assert unknown["state"] == "failed" and "not confirmed yet" in unknown["message"], unknown
        source = lab.get(f"projects/{bound.project}/git/")
        fingerprint = {"fingerprint": source["offered_fingerprint"]}
        lab.post(f"projects/{bound.project}/git/confirm-host-key/", json=fingerprint)
        stranger = bound.fetch()
        assert stranger["state"] == "failed" and "deploy key" in stranger["message"], stranger
        host.allow(source["public_key"])
        fetched = bound.fetch()
        assert (fetched["state"], fetched["commit"]) == ("done", commit), fetched
        assert bound.log_of_newest() == b"by ssh\n"


def send(lab: PlainLab, hook: dict[str, Any], body: bytes) -> httpx.Response:
    """Announce a push as Gitea does."""
    signature = hmac.new(hook["secret"].encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Gitea-Event": "push", "X-Gitea-Signature": signature, "Content-Type": "application/json"}
    return httpx.post(hook["url"], content=body, headers=headers, timeout=30, **PLAIN)


def everything_below(folder: Path) -> bytes:
    return b"".join(content for _, content in contents_below(folder))
