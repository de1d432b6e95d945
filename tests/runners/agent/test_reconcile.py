"""Laws of reconciling: it comes to rest, starts nothing twice, and touches nothing it was not shown."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.agent.reconcile import (
    Action,
    Collect,
    Desired,
    Exit,
    Finish,
    Forget,
    Halt,
    Note,
    Prepare,
    Remove,
    Start,
    Tell,
    Told,
    neighbours,
    reconcile,
    renewed,
    state_of,
    to_tell,
)
from runners.runtime import Neighbours, Observed
from runners.spec import CollectiveGroup, JobIdentity, RunSpec
from tests.examples import examples

NAMES = ["sl-1-a1-0", "sl-1-a1-1", "sl-2-a1-0", "sl-3-a2-0"]
ORDER = ["ASSIGNED", "PREPARING", "RUNNING", "STOPPING", "EXITED"]


def spec(name: str = "sl-1-a1-0") -> RunSpec:
    return RunSpec(
        name=name,
        job=1,
        attempt=1,
        number=1,
        role="host",
        hostname="h0",
        environment="plain",
        code_sha256="0" * 64,
        launcher="command",
        command=("true",),
        slots=1,
    )


def seen(name: str, state: str) -> Observed:
    return Observed(name, job=1, attempt=1, epoch=1, state=state)  # type: ignore[arg-type]


NOTHING_TOLD = Told()


def wish(name: str = "sl-1-a1-0", wanted: str = "run", told: Told = NOTHING_TOLD) -> Desired:
    return Desired(spec(name), wanted, told)  # type: ignore[arg-type]


@dataclass
class World:
    """A runtime and the notes, and how each action changes them."""

    observed: dict[str, Observed]
    notes: dict[str, Note]
    starts: list[str] = field(default_factory=list)

    def apply(self, action: Action, wish: Desired | None) -> None:
        name = action.name
        note = self.notes.get(name, Note(job=1, attempt=1, epoch=1))
        match action:
            case Prepare():
                self.observed.setdefault(name, seen(name, "created"))
                self.notes[name] = replace(note, created=True)
            case Start():
                self.notes[name] = replace(note, started=True, running_at=1.0)
                if self.observed[name].state == "created":
                    self.starts.append(name)
                    self.observed[name] = seen(name, "running")
            case Tell():
                self.notes[name] = replace(note, told=action.told)
                if action.told.stop_reason:
                    self.observed[name] = seen(name, "exited")
            case Halt():
                self.observed[name] = seen(name, "exited")
            case Finish():
                self.notes[name] = replace(note, exit=Exit(0, "exited"))
            case Collect():
                self.notes[name] = replace(note, collected=True)
            case Remove():
                self.observed.pop(name, None)
            case Forget():
                self.notes.pop(name, None)
            case _:
                raise AssertionError(action)


Wishes = dict[str, tuple[str, Told]]
tolds = st.sampled_from([Told(), Told(hosts=(("h0", 1),)), Told("cancelled", 5)])
wishes = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(["run", "stop", "collect"]), tolds))
observations = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["created", "running", "exited"]))
notes_ = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        Note,
        job=st.just(1),
        attempt=st.just(1),
        epoch=st.just(1),
        created=st.booleans(),
        started=st.booleans(),
        running_at=st.sampled_from([None, 1.0]),
        told=st.one_of(st.none(), tolds),
        halted=st.sampled_from(["", "disk"]),
        exit=st.sampled_from([None, Exit(0, "exited")]),
        collected=st.booleans(),
    ),
)


def desired_of(drawn: Wishes) -> dict[str, Desired]:
    """As ``Desired.from_json`` makes them: a reason to stop goes with the wish to stop, and only with it."""
    return {
        name: wish(name, wanted, Told(hosts=told.hosts) if wanted == "run" else replace(told, stop_reason="cancelled"))
        for name, (wanted, told) in drawn.items()
    }


@given(wishes, observations, notes_, st.sets(st.sampled_from(NAMES)), st.randoms())
@settings(max_examples=examples(500), deadline=None)
def test_from_any_state_it_comes_to_rest_and_stays(
    drawn: Wishes, states: dict[str, str], notes: dict[str, Note], overdue: set[str], chance: Random
) -> None:
    desired = desired_of(drawn)
    world = World({name: seen(name, state) for name, state in states.items()}, dict(notes))
    ran_already = {name for name, state in states.items() if state != "created"}
    for _ in range(8):
        actions = reconcile(desired, world.observed, world.notes, overdue)
        assert len({action.name for action in actions}) == len(actions), "two actions for one container"
        if not actions:
            break
        chance.shuffle(actions)
        for action in actions[: chance.randint(1, len(actions))]:  # the others come in a later pass
            world.apply(action, desired.get(action.name))
            if chance.random() < 0.3:
                world.apply(action, desired.get(action.name))  # repeated
    for _ in range(40):
        overdue = {name for name, note in world.notes.items() if note.told and note.told.stop_reason}
        for action in reconcile(desired, world.observed, world.notes, overdue):
            world.apply(action, desired.get(action.name))
    assert reconcile(desired, world.observed, world.notes) == []
    assert len(set(world.starts)) == len(world.starts), "started twice"
    assert not set(world.starts) & ran_already, "started what had run before"
    assert set(world.observed) <= set(desired) and set(world.notes) <= set(desired)
    for name, entry in desired.items():
        if entry.wanted == "run" and world.notes[name].exit is None:
            assert world.observed[name].state == "running"
        else:
            assert world.notes[name].collected and name not in world.observed


@given(wishes, observations, notes_)
def test_the_reported_state_never_goes_back(drawn: Wishes, states: dict[str, str], notes: dict[str, Note]) -> None:
    desired = desired_of(drawn)
    world = World({name: seen(name, state) for name, state in states.items()}, dict(notes))
    reported = dict.fromkeys(desired, 0)
    for _ in range(10):
        actions = reconcile(desired, world.observed, world.notes)
        busy = {action.name for action in actions}
        for name, entry in desired.items():
            state = ORDER.index(state_of(entry, world.observed.get(name), world.notes.get(name), busy=name in busy))
            assert state >= reported[name]
            reported[name] = state
        for action in actions:
            world.apply(action, desired.get(action.name))


@given(observations, notes_)
def test_it_names_only_containers_it_was_shown(states: dict[str, str], notes: dict[str, Note]) -> None:
    observed = {name: seen(name, state) for name, state in states.items()}
    for action in reconcile({}, observed, notes):
        assert action.name in observed or action.name in notes
        assert isinstance(action, Halt | Remove | Forget)


def test_a_started_container_that_is_gone_is_finished_and_never_made_anew() -> None:
    note = Note(1, 1, 1, created=True, started=True)
    assert reconcile({"sl-1-a1-0": wish()}, {}, {"sl-1-a1-0": note}) == [Finish("sl-1-a1-0")]


def test_a_container_told_to_stop_before_its_start_never_starts() -> None:
    assert reconcile({"sl-1-a1-0": wish(wanted="stop")}, {}, {}) == [Finish("sl-1-a1-0")]
    created = {"sl-1-a1-0": seen("sl-1-a1-0", "created")}
    note = {"sl-1-a1-0": Note(1, 1, 1, created=True)}
    assert reconcile({"sl-1-a1-0": wish(wanted="stop")}, created, note) == [Finish("sl-1-a1-0")]


def test_a_half_prepared_container_is_prepared_again_before_its_start() -> None:
    created = {"sl-1-a1-0": seen("sl-1-a1-0", "created")}
    assert reconcile({"sl-1-a1-0": wish()}, created, {}) == [Prepare("sl-1-a1-0")]


def test_what_the_portal_gave_up_is_halted_at_once() -> None:
    running = {"sl-1-a1-0": seen("sl-1-a1-0", "running")}
    note = {"sl-1-a1-0": Note(1, 1, 1, created=True, started=True, told=Told())}
    for told in (NOTHING_TOLD, Told("preempted", grace_seconds=3600)):  # a long grace period is no longer its own
        assert reconcile({"sl-1-a1-0": wish(wanted="collect", told=told)}, running, note) == [Halt("sl-1-a1-0", 10)]


def test_a_running_container_that_is_not_listed_has_its_grace_period() -> None:
    name = "sl-1-a1-0"
    assert reconcile({}, {name: seen(name, "running")}, {}) == [Halt(name, 10)]
    assert reconcile({}, {name: seen(name, "exited")}, {}) == [Remove(name)]


def test_drivers_come_after_hosts() -> None:
    driver, host = wish(NAMES[0]), wish(NAMES[1])
    desired = {NAMES[0]: replace(driver, spec=replace(driver.spec, role="driver")), NAMES[1]: host}
    assert reconcile(desired, {}, {}) == [Prepare(NAMES[1]), Prepare(NAMES[0])]


def test_new_hosts_are_told_once() -> None:
    running = {"sl-1-a1-0": seen("sl-1-a1-0", "running")}
    hosts = Told(hosts=(("h0", 1), ("h1", 1)))
    entry = wish(told=hosts)
    note = Note(1, 1, 1, created=True, started=True, told=Told(hosts=(("h0", 1),)))
    assert reconcile({entry.spec.name: entry}, running, {entry.spec.name: note}) == [Tell("sl-1-a1-0", hosts)]
    assert reconcile({entry.spec.name: entry}, running, {entry.spec.name: replace(note, told=hosts)}) == []


def test_the_portals_reason_to_stop_outranks_the_agents() -> None:
    note = Note(1, 1, 1, halted="disk")
    assert to_tell(wish(), note).stop_reason == "disk"
    assert to_tell(wish(wanted="stop", told=Told("cancelled", 3)), note).stop_reason == "cancelled"


def test_a_reply_renews_what_may_still_train() -> None:
    desired = {name: wish(name, wanted) for name, wanted in zip(NAMES, ["run", "stop", "collect", "run"], strict=True)}
    notes = {name: Note(1, 1, 1, created=True, started=True) for name in NAMES}
    notes[NAMES[3]] = Note(1, 1, 1, exit=Exit(0, "exited"))
    assert renewed(desired, notes) == NAMES[:2]


def test_an_entry_of_the_protocol_is_read() -> None:
    data = {
        "spec": spec().to_json(),
        "wanted": "stop",
        "stop": {"reason": "preempted", "grace_seconds": 30},
        "hosts": [{"name": "h0", "slots": 2}],
        "batch": 64,
    }
    told = Told("preempted", 30, (("h0", 2),), 64)
    assert Desired.from_json(data) == wish(wanted="stop", told=told)
    assert told.to_json() == {key: data[key] for key in ("stop", "hosts", "batch")} | {"driver": None}
    assert Desired.from_json({"spec": spec().to_json(), "wanted": "run", "stop": None}).told == Told()


# --- attempts on several nodes ------------------------------------------------------------------------------------

GROUP = CollectiveGroup("10.192.4.2", 4000, "s", 1, 3, number=9, subnet="10.192.4.0/22", address="10.192.4.3")


def test_an_attempts_neighbours_are_those_of_all_its_containers_that_live() -> None:
    here = replace(spec("sl-1-a1-1"), collective=GROUP)
    desired = {
        "sl-1-a1-0": Desired(replace(here, name="sl-1-a1-0"), "run", peers=frozenset({"10.1.0.2"})),
        "sl-1-a1-1": Desired(here, "stop", peers=frozenset({"10.1.0.3"})),
        "sl-1-a1-2": Desired(replace(here, name="sl-1-a1-2"), "collect", peers=frozenset({"10.1.0.4"})),
        "sl-2-a1-0": Desired(replace(spec("sl-2-a1-0"), job=2, collective=replace(GROUP, number=0)), "run"),
        "sl-3-a2-0": wish("sl-3-a2-0"),
    }
    notes = {"sl-1-a1-2": Note(1, 1, 1, exit=Exit(0, "exited"))}
    assert neighbours(desired, notes) == [Neighbours("sl-1-a1", 9, frozenset({"10.1.0.2", "10.1.0.3"}))]


def test_addresses_in_a_reply_are_addresses() -> None:
    """They end up in commands that root runs."""
    entry = {"spec": spec().to_json(), "wanted": "run", "driver": "10.192.4.9", "peers": ["10.1.0.2"]}
    read = Desired.from_json(entry)
    assert (read.told.driver, read.peers) == ("10.192.4.9", {"10.1.0.2"})
    for bad in ({"driver": "driver"}, {"peers": ["10.1.0.2/0"]}, {"peers": ["-j ACCEPT"]}):
        with pytest.raises(ValueError):
            Desired.from_json({**entry, **bad})


@pytest.mark.parametrize("state", ["created", "running", "exited"])
def test_a_job_waits_until_no_container_of_its_number_is_left_that_the_portal_does_not_know(state: str) -> None:
    """One that was lost when a backup was restored, and still has the folder."""
    lost, name = "sl-1-a1-0a0a0a0a0a0a-c0ffee-0", "sl-1-a1-0b0b0b0b0b0b-c0ffee-0"
    actions = reconcile({name: wish(name)}, {lost: seen(lost, state)}, {})
    assert [(type(each), each.name) for each in actions] == [(Halt if state == "running" else Remove, lost)]
    assert reconcile({name: wish(name)}, {}, {lost: Note(1, 1, 1)})[0] == Prepare(name)
    other = replace(seen(lost, state), job=2)
    assert Prepare(name) in reconcile({name: wish(name)}, {lost: other}, {}), "it waits for another number"


def test_an_entry_may_name_the_job_beside_its_spec() -> None:
    entry = {"spec": spec().to_json(), "wanted": "run", "stop": None}
    assert Desired.from_json(entry).spec.identity is None, "as from a portal of the release before"
    named = Desired.from_json({**entry, "identity": {"installation": "1" * 32, "job": "a" * 32}})
    assert named.spec == replace(spec(), identity=JobIdentity("1" * 32, "a" * 32))
