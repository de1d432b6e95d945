"""Jobs over REST: submit, list, act, logs, outputs; machines and the policy."""

import uuid
from typing import Any

import pytest
from django.core.cache import cache

from portal.accounts.limits import set_limit
from portal.accounts.models import AuditEntry
from portal.cluster.models import Node
from portal.jobs import log_watchers, logs
from portal.jobs.models import Job, LogStream
from portal.projects.models import CodeVersion
from tests.laws.people import CANARY, LOG, RESULT, SECRET, World, make_world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content)


def asked(world: World, **more: Any) -> dict[str, Any]:
    return {"project": world.project.pk, "launcher": "command", "entry": "python train.py", **more}


class TestSubmit:
    def test_all_fields(self, world: World) -> None:
        fields = asked(world, name="n", arguments=["--a", " b "], env_vars={"LR": "0.1"}, min_gpus=1, max_gpus=2)
        fields |= {"time_limit_seconds": 60, "retries": 2, "priority": 3, "description": "d", "code": 1}
        fields |= {"resumable": True, "tier": "basic", "opportunistic": True, "deadline": "2999-01-02T03:04:00Z"}
        fields |= {"mode": "asp", "restarts_without_progress": 18, "silent_rank_minutes": 10_080}
        response = Script(world.bob).send("post", "jobs/", fields)
        assert response.status_code == 201, response.content
        job = response.json()
        for name, value in fields.items():
            assert job[name] == value
        assert (job["state"], job["submitted_by"], job["environment"]) == ("QUEUED", "bob", world.environment.key)

    def test_a_plain_command_may_have_many_options(self, world: World) -> None:
        line = "python train.py " + " ".join(f"--option-{number}=0.00{number}" for number in range(150))
        response = Script(world.bob).send("post", "jobs/", asked(world, entry=line))
        assert response.status_code == 201, response.content
        assert response.json()["entry"] == Job.objects.get(pk=response.json()["id"]).entry == line

    def test_limits_of_progress_may_be_left_out_or_null(self, world: World) -> None:
        names = ("restarts_without_progress", "silent_rank_minutes")
        for fields in ({}, dict.fromkeys(names)):
            job = Script(world.bob).send("post", "jobs/", asked(world, **fields)).json()
            assert [job[name] for name in names] == [None, None]

    def test_what_is_left_out_is_guessed(self, world: World) -> None:
        CodeVersion.objects.filter(pk=world.code.pk).update(
            guess={"entry": "train.py", "launcher": "horovod", "elastic": True}
        )
        job = Script(world.bob).send("post", "jobs/", {"project": world.project.pk}).json()
        assert (job["entry"], job["launcher"], job["elastic"], job["code"]) == ("train.py", "horovod", True, 1)

    def test_the_same_key_makes_one_job(self, world: World) -> None:
        script = Script(world.bob)
        first = script.send("post", "jobs/", asked(world), **{"Idempotency-Key": "k1"})
        again = script.send("post", "jobs/", dict(reversed(asked(world).items())), **{"Idempotency-Key": "k1"})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["id"] == again.json()["id"]
        other = script.send("post", "jobs/", asked(world, name="other"), **{"Idempotency-Key": "k1"})
        assert other.status_code == 409
        mine = Script(world.alice).send("post", "jobs/", asked(world), **{"Idempotency-Key": "k1"})
        assert mine.json()["id"] != first.json()["id"], "keys are each user's own"

    def test_a_repeated_request_is_answered_even_when_the_guess_has_changed(self, world: World) -> None:
        script, fields = Script(world.bob), {"project": world.project.pk}
        first = script.send("post", "jobs/", fields, **{"Idempotency-Key": "k"})
        CodeVersion.objects.filter(pk=world.code.pk).update(guess={})
        assert script.send("post", "jobs/", fields, **{"Idempotency-Key": "k"}).json()["id"] == first.json()["id"]

    def test_a_used_key_is_answered_before_anything_is_guessed(self, world: World) -> None:
        script, key = Script(world.bob), {"Idempotency-Key": "k"}
        script.send("post", "jobs/", asked(world), **key)
        other = script.send("post", "jobs/", {"project": world.project.pk, "environment": "nothing"}, **key)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
        long = script.send("post", "jobs/", asked(world), **{"Idempotency-Key": "k" * 101})
        assert long.status_code == 400 and "idempotency_key" in long.json()["error"]["fields"]

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"code": 9}, "code"),
            ({"environment": "nothing"}, "environment"),
            ({"launcher": "magic"}, "launcher"),
            ({"launcher": "horovod", "entry": "nothing.py"}, "entry"),
            ({"entry": "python train.py " + "x" * 4000}, "entry"),
            ({"min_gpus": 3, "max_gpus": 2}, "max_gpus"),
            ({"env_vars": {"LD_PRELOAD": "x"}}, "env_vars"),
            ({"env_vars": {"A": "x\0"}}, "env_vars.A"),
            ({"arguments": "a b"}, "arguments"),
            ({"time_limit_seconds": 1}, "time_limit_seconds"),
            ({"restarts_without_progress": 19}, "restarts_without_progress"),
            ({"silent_rank_minutes": -1}, "silent_rank_minutes"),
        ],
    )
    def test_what_cannot_run_is_refused_by_field(self, world: World, wrong: dict[str, Any], field: str) -> None:
        before = Job.objects.count()
        response = Script(world.bob).send("post", "jobs/", asked(world, **wrong))
        assert response.status_code == 400
        assert field in response.json()["error"]["fields"], response.content
        assert Job.objects.count() == before

    def test_viewers_and_strangers(self, world: World) -> None:
        assert Script(world.victor).send("post", "jobs/", asked(world)).status_code == 403
        assert Script(world.charlie).send("post", "jobs/", asked(world)).status_code == 404
        assert (
            Script(world.charlie).send("post", "jobs/", asked(world)).content
            == Script(world.charlie).send("post", "jobs/", asked(world, project=987654)).content
        ), "a foreign project looks like none"

    def test_a_code_version_of_another_project_is_none(self, world: World) -> None:
        own = {"project": world.charlies_project.pk, "code": 2}  # type: ignore[union-attr]
        assert Script(world.charlie).send("post", "jobs/", own).status_code == 400

    def test_over_the_limit(self, world: World) -> None:
        set_limit(world.ada, world.bob, max_gpus=None, max_queued=1)
        assert Script(world.bob).send("post", "jobs/", asked(world)).status_code == 201
        response = Script(world.bob).send("post", "jobs/", asked(world))
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "limit"

    @pytest.mark.parametrize(
        "field", ["state", "intent", "submitted_by", "id", "started_at", "queue_position", "copied_from"]
    )
    def test_what_is_not_ones_to_set_is_refused(self, world: World, field: str) -> None:
        before = Job.objects.count()
        response = Script(world.bob).send("post", "jobs/", asked(world, **{field: 1}))
        assert (response.status_code, list(response.json()["error"]["fields"])) == (400, [field])
        assert Job.objects.count() == before


class TestList:
    def ids(self, script: Script, query: str) -> set[int]:
        return {row["id"] for row in script.get(f"jobs/?{query}").json()["results"]}

    def test_filters(self, world: World) -> None:
        script, jobs = Script(world.ada), world.jobs
        assert self.ids(script, "state=RUNNING&state=HELD") == {jobs["RUNNING"].pk, jobs["HELD"].pk}
        assert self.ids(script, f"project={world.charlies_project.pk}") == {world.charlies_job.pk}  # type: ignore[union-attr]
        assert self.ids(script, "submitted_by=charlie") == {world.charlies_job.pk}  # type: ignore[union-attr]
        assert self.ids(script, "q=queued&launcher=command") == {jobs["QUEUED"].pk, world.charlies_job.pk}  # type: ignore[union-attr]
        assert self.ids(script, "submitted_after=2099-01-01T00:00:00Z") == set()
        assert self.ids(Script(world.charlie), "") == {world.charlies_job.pk}  # type: ignore[union-attr]

    @pytest.mark.parametrize("when", ["0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "yesterday"])
    def test_a_time_that_no_clock_shows_is_refused(self, world: World, when: str) -> None:
        response = Script(world.bob).get(f"jobs/?submitted_after={when}")
        assert response.status_code == 400 and "submitted_after" in response.json()["error"]["fields"]

    def test_hidden_fields_are_no_filters(self, world: World) -> None:
        for query in (
            "project__memberships__user=1",
            "submitted_by__password__startswith=p",
            "ordering=env_vars",
            "env_vars__contains=x",
        ):
            assert Script(world.charlie).get(f"jobs/?{query}").status_code == 400

    def test_a_long_list_takes_few_queries(self, world: World, django_assert_max_num_queries: Any) -> None:
        row = world.jobs["QUEUED"]
        for _ in range(80):
            row.pk, row.uid = None, uuid.uuid4()
            row.save(force_insert=True)
        script = Script(world.alice)
        with django_assert_max_num_queries(4):
            assert len(script.get("jobs/?page_size=80").json()["results"]) == 80


class TestActs:
    def test_hold_release_cancel_retry(self, world: World) -> None:
        script, here = Script(world.alice), f"jobs/{world.jobs['QUEUED'].pk}/"
        assert script.post(f"{here}hold/").json()["state"] == "HELD"
        assert script.post(f"{here}release/").json()["state"] == "QUEUED"
        assert script.post(f"{here}cancel/").json()["state"] == "CANCELLED"
        assert script.post(f"{here}cancel/").status_code == 409
        again = script.post(f"{here}retry/")
        assert again.status_code == 201
        assert again.json()["copied_from"] == world.jobs["QUEUED"].pk
        kinds = [event["kind"] for event in script.get(f"{here}events/").json()["results"]]
        assert kinds[0] == "submitted" and "cancel_asked" in kinds

    def test_who_may_not(self, world: World) -> None:
        for act in ("cancel", "hold", "release", "retry"):
            for name, status in (("victor", 403), ("charlie", 404)):
                job = world.jobs["FAILED" if act == "retry" else "QUEUED"]
                assert Script(world.users[name]).post(f"jobs/{job.pk}/{act}/").status_code == status
        assert Script(world.bob).post(f"jobs/{world.jobs['QUEUED'].pk}/cancel/").status_code == 403, "not his job"


class TestDetail:
    def test_the_fields_of_the_response(self, world: World) -> None:
        failed = Script(world.victor).get(f"jobs/{world.jobs['FAILED'].pk}/").json()
        assert failed["cause"]["advice"] == "Look at the log."
        (attempt,) = Script(world.victor).get(f"jobs/{world.jobs['FAILED'].pk}/attempts/").json()["results"]
        assert (attempt["outcome"], attempt["containers"][0]["node"], attempt["containers"][0]["gpus"]) == (
            "failed",
            "node-one",
            [0],
        )
        assert "secret" not in str(attempt).replace("SECRET_OF_JOB", "")

    def test_secrets_of_the_environment_go_to_members_only(self, world: World) -> None:
        here = f"jobs/{world.running.pk}/"
        for name, value in (("alice", SECRET), ("bob", SECRET), ("ada", SECRET), ("victor", None)):
            assert Script(world.users[name]).get(here).json()["env_vars"] == {"SECRET_OF_JOB": value}


class TestLog:
    def stream(self, world: World, name: str = "0") -> LogStream:
        return LogStream.objects.get(container__attempt__job=world.running, name=name)

    def test_all_ranks_as_one_text(self, world: World) -> None:
        text = body(Script(world.victor).get(f"jobs/{world.running.pk}/log/")).decode()
        assert text == f"[set-up] {CANARY} in the log\n[rank 0] {CANARY} in the log\n"
        timed = body(Script(world.victor).get(f"jobs/{world.running.pk}/log/?times=1&attempt=1")).decode()
        assert timed.startswith("2023-11-14T22:13:20.000+00:00 [set-up]")
        assert Script(world.victor).get(f"jobs/{world.running.pk}/log/?attempt=2").status_code == 404
        assert body(Script(world.victor).get(f"jobs/{world.jobs['QUEUED'].pk}/log/")) == b""

    def test_exact_bytes(self, world: World) -> None:
        row = self.stream(world)
        here = f"jobs/{world.running.pk}/log/?stream={row.pk}"
        script = Script(world.victor)
        assert body(script.get(here)) == LOG
        assert body(script.get(f"{here}&start=3&end=7")) == LOG[3:7]
        assert body(script.get(f"{here}&start=3")) == LOG[3:]
        assert body(script.get(f"{here}&start={len(LOG)}")) == b"", "nothing new yet"
        assert script.get(f"{here}&start={len(LOG) + 1}").status_code == 416
        assert script.get(f"{here}&start=-1").status_code == 400

    @pytest.mark.parametrize(
        ("header", "status", "start", "end"),
        [
            ("bytes=0-3", 206, 0, 4),
            ("bytes=5-", 206, 5, len(LOG)),
            ("bytes=-4", 206, len(LOG) - 4, len(LOG)),
            ("bytes=-9999", 206, 0, len(LOG)),
            ("bytes=0-99999", 206, 0, len(LOG)),
            ("bytes=7-3", 200, 0, len(LOG)),
            ("bytes=0-1,4-5", 200, 0, len(LOG)),
            ("lines=1-2", 200, 0, len(LOG)),
            ("bytes=-", 200, 0, len(LOG)),
        ],
    )
    def test_ranges_as_http_has_them(self, world: World, header: str, status: int, start: int, end: int) -> None:
        here = f"jobs/{world.running.pk}/log/?stream={self.stream(world).pk}"
        response = Script(world.victor).get(here, headers={"Range": header})
        assert (response.status_code, body(response)) == (status, LOG[start:end])
        if status == 206:
            assert response["Content-Range"] == f"bytes {start}-{end - 1}/{len(LOG)}"

    @pytest.mark.parametrize("header", ["bytes=9999-", "bytes=-0"])
    def test_a_range_behind_the_end(self, world: World, header: str) -> None:
        here = f"jobs/{world.running.pk}/log/?stream={self.stream(world).pk}"
        response = Script(world.victor).get(here, headers={"Range": header})
        assert (response.status_code, response["Content-Range"]) == (416, f"bytes */{len(LOG)}")

    def test_a_stream_of_another_job_is_none(self, world: World) -> None:
        other = LogStream.objects.get(container__attempt__job=world.jobs["FAILED"], name="0")
        assert Script(world.alice).get(f"jobs/{world.running.pk}/log/?stream={other.pk}").status_code == 404

    def test_following_gives_every_character_once(self, world: World) -> None:
        row, script, here = self.stream(world), Script(world.victor), f"jobs/{world.running.pk}/log/follow/"
        written = LOG
        cache.clear()
        news = script.get(here).json()
        assert not news["finished"] and log_watchers.is_watched(world.running.pk)
        got = "".join(piece["text"] for piece in news["pieces"] if piece["stream"] == row.pk)
        euro = "zehn \u20ac\n".encode()
        for cut in (euro[:6], euro[6:7], euro[7:]):
            row.refresh_from_db()
            logs.append(row, row.size, cut)
            written += cut
            news = script.get(f"{here}?cursor={news['cursor']}").json()
            got += "".join(piece["text"] for piece in news["pieces"])
        assert got == written.decode()
        assert script.get(f"{here}?cursor={news['cursor']}").json()["pieces"] == []

    def test_following_ends_with_the_job(self, world: World) -> None:
        news = Script(world.victor).get(f"jobs/{world.jobs['SUCCEEDED'].pk}/log/follow/").json()
        assert news["finished"] and len(news["pieces"]) == 2

    @pytest.mark.parametrize("cursor", ["x", "1:2:3", "1:", "1:2,", "-1:2", "1:2,,3:4", "9" * 20 + ":1"])
    def test_a_cursor_that_is_none(self, world: World, cursor: str) -> None:
        assert Script(world.victor).get(f"jobs/{world.running.pk}/log/follow/?cursor={cursor}").status_code == 400

    def test_a_cursor_cannot_reach_into_another_job(self, world: World) -> None:
        foreign = self.stream(world).pk
        news = Script(world.charlie).get(f"jobs/{world.charlies_job.pk}/log/follow/?cursor={foreign}:0").json()  # type: ignore[union-attr]
        assert news["pieces"] == []


class TestOutputs:
    def test_listed_and_read(self, world: World) -> None:
        here = f"jobs/{world.running.pk}/outputs/"
        (row,) = Script(world.victor).get(here).json()["results"]
        assert (row["path"], row["size"]) == ("results/metrics.txt", len(RESULT))
        file = Script(world.victor).get(f"{here}results/metrics.txt")
        assert body(file) == RESULT
        assert 'filename="metrics.txt"' in file["Content-Disposition"]
        for path in ("metrics.txt", "../x", "results/%2e%2e/metrics.txt"):
            assert Script(world.victor).get(here + path).status_code == 404


class TestNodesAndPolicy:
    def test_the_holder_of_a_gpu_is_shown_to_those_who_may_see_the_job(self, world: World) -> None:
        def holders(name: str) -> list[tuple[bool, int | None]]:
            (node,) = Script(world.users[name]).get("nodes/").json()
            return [(gpu["busy"], gpu["job"]) for gpu in node["gpus"]]

        assert holders("victor") == [(True, world.running.pk), (False, None)]
        assert holders("charlie") == [(True, None), (False, None)]

    def test_acts_are_for_admins(self, world: World) -> None:
        here = f"nodes/{world.node.pk}/"
        for act in ("approve", "cordon", "drain", "resume"):
            assert Script(world.alice).post(f"{here}{act}/").status_code == 404
            assert Script(world.ada).post(f"{here}{act}/").status_code == 200
        assert Script(world.alice).delete(here).status_code == 404
        assert Script(world.ada).delete(here).status_code == 409, "it still runs something"
        assert Script(world.alice).post("nodes/join-token/").status_code == 404
        assert Script(world.ada).post("nodes/join-token/").json()["token"].startswith("sln_")
        assert AuditEntry.objects.filter(actor=world.ada).count() == 5

    def test_a_machine_that_waits_for_approval_is_the_admins_business(self, world: World) -> None:
        new = Node.objects.create(name="new", runtime="docker", token_digest="x")
        assert Script(world.alice).get(f"nodes/{new.pk}/").status_code == 404
        assert Script(world.ada).get(f"nodes/{new.pk}/").json()["approved"] is False

    def test_environments(self, world: World) -> None:
        (row,) = [
            row
            for row in Script(world.alice).get("environments/").json()["results"]
            if row["key"] == world.environment.key
        ]
        assert row["ready_on"] == ["node-one"]
        assert Script(world.alice).get(f"environments/{world.environment.key}/").status_code == 200

    def test_the_policy_is_known_to_all_and_switched_by_admins(self, world: World) -> None:
        assert {policy["key"] for policy in Script(world.alice).get("policies/").json()} >= {
            "fifo",
            "round_robin",
            "elastic_fifo",
        }
        assert Script(world.alice).send("put", "policy/", {"policy": "fifo"}).status_code == 404
        assert Script(world.ada).send("put", "policy/", {"policy": "fifo"}).json()["policy"] == "fifo"
        assert Script(world.alice).get("policy/").json()["created_by"] == "ada"
        for wrong in (
            {"policy": "nothing"},
            {"policy": "fifo", "params": {"x": 1}},
            {"policy": "fifo", "params": []},
            {},
        ):
            assert Script(world.ada).send("put", "policy/", wrong).status_code == 400


class TestUnknownFields:
    """A typo must not cost a day of GPUs: what the API does not know is refused, with the nearest name that it knows."""

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("gpus", "Did you mean min_gpus or max_gpus?"),
            ("time_limit", "Did you mean time_limit_seconds?"),
            ("enviroment", "Did you mean environment?"),
            ("bogus", "There are: after, arguments, code,"),
        ],
    )
    def test_a_job_with_one_is_refused(self, world: World, name: str, hint: str) -> None:
        before = Job.objects.count()
        response = Script(world.bob).send("post", "jobs/", asked(world, **{name: 1}))
        assert response.status_code == 400 and Job.objects.count() == before
        assert hint in response.json()["error"]["fields"][name][0]

    def test_they_are_reported_with_what_else_is_wrong(self, world: World) -> None:
        response = Script(world.bob).send("post", "jobs/", asked(world, gpus=2, retries=-1))
        assert set(response.json()["error"]["fields"]) == {"gpus", "retries"}

    def test_also_within_a_list(self, world: World) -> None:
        simulation = {"days": 14, "policies": [{"policy": "fifo", "parameters": {}}]}
        response = Script(world.ada).send("post", "simulations/", simulation)
        assert response.status_code == 400
        assert list(response.json()["error"]["fields"]) == ["policies.0.parameters"]

    def test_what_was_read_may_be_sent_back(self, world: World) -> None:
        project = Script(world.alice).send("get", f"projects/{world.project.pk}/").json()
        response = Script(world.alice).send("patch", f"projects/{world.project.pk}/", {**project, "name": "again"})
        assert (response.status_code, response.json()["name"]) == (200, "again")
