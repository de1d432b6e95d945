"""A machine becomes a node: the line, what it fetches, its tokens, and what is found wrong with it."""

import gzip
import hashlib
import io
import re
import ssl
import tarfile
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from portal.accounts.models import AuditEntry, User
from portal.cluster import agent_package, findings, quarantine, services
from portal.cluster.agent_package import Certificate, join_command
from portal.cluster.models import Gpu, Node
from portal.refused import Refused
from portal.sentences import sentence_of
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import make_node, make_user
from tests.portal.pages import one_line

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

UNSAFE = {"text": "This runc lets people out.", "fix": "Upgrade runc.", "blocking": True}


@pytest.fixture
def admin() -> User:
    return make_user("admin", is_staff=True)


@pytest.fixture
def browser(admin: User) -> Client:
    client = Client()
    client.force_login(admin)
    return client


class TestPackage:
    def test_the_line_s_script_and_the_script_s_archive_are_the_announced_ones(self) -> None:
        script = Client().get("/agent/install.sh")
        text = script.content.decode()
        line = join_command("https://lab.example", "sln_x", Certificate(True))
        # The shell's $(...) drops the ends of lines at the end.
        assert f'"{hashlib.sha256(text.rstrip(chr(10)).encode()).hexdigest()}  -"' in line
        found = re.search(r"ARCHIVE_SHA256='([0-9a-f]{64})'", text)
        assert found
        archive = Client().get(f"/agent/schedulearn-agent-{found[1]}.tar.gz")
        assert hashlib.sha256(archive.content).hexdigest() == found[1]
        assert Client().get(f"/agent/schedulearn-agent-{'0' * 64}.tar.gz").status_code == 404

    def test_the_archive_holds_the_agent_and_nothing_of_the_portal(self) -> None:
        content = gzip.decompress(agent_package.package().content)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            names = archive.getnames()
            packages = archive.extractfile("requirements.lock")
            assert packages is not None
            locked = {line.partition(b"==")[0].decode() for line in packages.read().splitlines() if b"==" in line}
        assert "runners/agent/program.py" in names and "runners/launch/supervisor.py" in names
        assert {name.partition("/")[0] for name in names} == {"runners", "requirements.lock"}
        assert not any("__pycache__" in name for name in names)
        assert set(agent_package.PACKAGES) <= locked and not locked & {"django", "channels", "celery"}

    def test_the_same_files_give_the_same_archive(self) -> None:
        assert agent_package.pack(settings.BASE_DIR) == agent_package.package().content

    def test_only_an_unknown_certificate_is_pinned(self) -> None:
        trusted = join_command("https://lab.example/", "sln_x", Certificate(True))
        assert "curl -fsSL https://lab.example/agent/install.sh" in trusted and "--pin" not in trusted
        pinned = join_command("https://lab.example", "sln_x", Certificate(False, "ab" * 32))
        assert "curl -fsSLk" in pinned and pinned.endswith(f"--pin {'ab' * 32}")

    def test_a_portal_that_cannot_check_its_certificate_reports_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> str:
            raise ConnectionRefusedError("refused")

        monkeypatch.setattr(ssl, "get_server_certificate", refuse)
        found = agent_package.check_certificate("https://lab.example")
        assert found.trusted and "could not check" in found.problem
        assert agent_package.check_certificate("http://localhost:8000") == Certificate(True)

    def test_what_the_agent_imports_is_installed_with_it(self) -> None:
        used = set()
        for path in Path(settings.BASE_DIR, "runners").glob("*.py"):
            used |= set(
                re.findall(r"^\s*(?:import|from) (docker|httpx|pynvml|requests|numpy|yaml)\b", path.read_text(), re.M)
            )
        assert used <= {"docker", "httpx", "packaging", "pynvml", "requests"}  # requests comes with docker


class TestThePageOfALine:
    def test_it_shows_the_machine_once_it_has_joined_with_what_it_found(self, browser: Client) -> None:
        shown = browser.post("/admin/nodes/add").content.decode()
        line = re.search(r"SCHEDULEARN_JOIN_TOKEN=(sln_[\w-]+) sh -c", shown)
        place = re.search(r"live-joining from:document\" hx-get=\"(/admin/nodes/added/\d+)\"", shown)
        assert line and place
        assert "Waiting for the machine" in browser.get(place[1]).content.decode()
        facts = {"engine": "Docker 28.2", "runc": "1.2.8", "cpus": 8, "packages": {"runc": "1.2.8"}}
        services.join(line[1], "gpu-7", "docker", facts, [UNSAFE])
        seen = browser.get(place[1]).content.decode()
        assert "gpu-7 has joined" in seen and "Docker 28.2" in seen and "Upgrade runc." in seen
        assert "Approve" not in seen
        Node.objects.update(problems=[])
        assert "Approve" in browser.get(place[1]).content.decode()

    def test_a_line_that_has_expired_is_no_longer_waited_for(self, browser: Client) -> None:
        token = services.issue_join_token(None, lifetime=timedelta(seconds=-1))
        seen = browser.get(f"/admin/nodes/added/{services.token_id(token)}").content.decode()
        assert "expired" in seen and "hx-trigger" not in seen
        assert browser.get("/admin/nodes/added/999999").status_code == 404

    def test_facts_of_another_shape_spoil_no_page(self) -> None:
        node = make_node(
            facts={"packages": "?", "clock_offset_seconds": "x", "cpus": [], "gpus": 3, "system": "Debian"}
        )
        assert [each.title for each in findings.node_findings(node)] == ["System"]
        good = make_node(facts={"clock_offset_seconds": -3.25, "address": "10.0.0.7", "interface": "eth0"})
        assert {each.text for each in findings.node_findings(good)} == {"3.2 s behind the portal's", "10.0.0.7 (eth0)"}
        fast = make_node("fast", facts={"clock_offset_seconds": 7})
        assert [each.text for each in findings.node_findings(fast)] == ["7.0 s ahead of the portal's"]
        files = Node(facts={"datasets": ["cifar", "imagenet"], "shared": "0123456789abcdef"})
        assert [each.text for each in findings.node_findings(files)] == ["cifar, imagenet", "01234567"]


class TestApproval:
    def test_an_unsafe_machine_is_not_approved_by_an_admin_or_by_its_line(self, admin: User, browser: Client) -> None:
        node = services.join(services.issue_join_token(admin, approves=True), "n", "docker", {}, [UNSAFE]).node
        assert node.approved_at is None
        with pytest.raises(Refused, match="cannot be approved yet. This runc lets people out. Upgrade runc."):
            services.approve(admin, node)
        assert browser.post(f"/api/v1/nodes/{node.pk}/approve/").status_code == 409
        Node.objects.update(problems=[{**UNSAFE, "blocking": False}])
        assert services.approve(admin, Node.objects.get()).approved_at is not None


class TestTokens:
    def test_the_old_token_works_until_the_new_one_is_used(self, admin: User) -> None:
        agent = Agent()
        assert agent.post("token", {}).status_code == 403  # no admin has asked for it
        services.rotate_token(admin, agent.node)
        assert agent.sync()["rotate"] is True
        lost, new = (agent.post("token", {}).json()["token"] for _ in range(2))
        assert agent.sync()["rotate"] is True  # by the old one
        old, agent.token = agent.token, new
        assert agent.sync()["rotate"] is False
        for gone in (old, lost):
            agent.token = gone
            assert agent.post("sync", agent.report).status_code == 401
        assert new not in str(list(AuditEntry.objects.values()))

    def test_a_revoked_token_opens_nothing_and_the_machine_may_come_back_as_the_same_node(self, admin: User) -> None:
        agent = Agent()
        services.rotate_token(admin, agent.node)
        waiting = agent.post("token", {}).json()["token"]
        services.revoke_token(admin, agent.node)
        for token in (agent.token, waiting):
            agent.token = token
            assert agent.post("sync", agent.report).status_code == 401
        with pytest.raises(Refused, match="was revoked"):
            services.rotate_token(admin, Node.objects.get())
        again = services.issue_rejoin_token(admin, agent.node)
        assert services.join(again, "other-name", "fake", {}).node.pk == agent.node.pk
        agent.token = services.join(again, "other-name", "fake", {}).token  # the first answer was lost
        agent.sync()
        assert Node.objects.get().token_revoked_at is None
        with pytest.raises(Refused, match="used already"):
            services.join(again, "other-name", "fake", {})

    def test_the_page_of_a_node_offers_both(self, browser: Client) -> None:
        node = make_node("gpu-7")
        browser.post(f"/admin/nodes/{node.pk}/rotate", {"back": "node"})
        assert "new token requested" in browser.get(f"/admin/nodes/{node.pk}/").content.decode()
        browser.post(f"/admin/nodes/{node.pk}/revoke", {"back": "node"})
        assert "join again" in browser.get(f"/admin/nodes/{node.pk}/").content.decode()
        assert "sh -c" in browser.post(f"/admin/nodes/{node.pk}/rejoin").content.decode()


class TestQuarantine:
    def test_a_fault_takes_a_gpu_out_of_use_until_an_admin_gives_it_back(self, admin: User, browser: Client) -> None:
        agent = Agent()
        agent.sync()
        agent.report["gpus"][1]["fault"] = "XID 79 at noon"
        agent.sync()
        bad = Gpu.objects.get(index=1)
        assert sentence_of(bad.quarantine_reason) == "XID 79 at noon." and not bad.usable
        assert Gpu.objects.get(index=0).usable
        assert "XID 79 at noon." in browser.get("/admin/nodes/").content.decode()
        assert browser.post(f"/admin/nodes/{agent.node.pk}/gpus/{bad.pk}/release").status_code == 302
        for fault in ("XID 79 at noon", "", "XID 79 at noon"):  # a restarted agent has forgotten it
            agent.report["gpus"][1]["fault"] = fault
            agent.sync()
            assert Gpu.objects.get(index=1).usable
        agent.report["gpus"][1]["fault"] = "XID 79 at one"
        agent.sync()
        assert not Gpu.objects.get(index=1).usable
        actions = AuditEntry.objects.filter(action__startswith="gpu.").values_list("action", flat=True)
        assert list(actions.order_by("id")) == ["gpu.quarantined", "gpu.released", "gpu.quarantined"]

    def test_an_admin_may_take_one_out_and_only_once(self, admin: User) -> None:
        gpu = make_node().gpus.all()[0]
        assert "by admin" in sentence_of(quarantine.quarantine_by_admin(admin, gpu).quarantine_reason)
        with pytest.raises(Refused, match="already"):
            quarantine.quarantine_by_admin(admin, gpu)
        assert quarantine.release(admin, gpu).usable
        with pytest.raises(Refused, match="not in quarantine"):
            quarantine.release(admin, gpu)

    def test_who_works_outside_the_portal_is_named_to_admins_only(self, browser: Client) -> None:
        agent = Agent()
        agent.report["gpus"][0]["outside"] = "python, process 4711"
        agent.sync()
        gpu = Gpu.objects.get(index=0)
        assert not gpu.usable and gpu.quarantined_at is None
        assert "process 4711" in browser.get(f"/admin/nodes/{agent.node.pk}/").content.decode()
        other = Client()
        other.force_login(make_user("bob"))
        seen = one_line(other.get("/nodes/").content.decode())
        assert "In use outside the portal" in seen and "4711" not in seen
        agent.report["gpus"][0]["outside"] = ""
        agent.sync()
        assert Gpu.objects.get(index=0).usable
