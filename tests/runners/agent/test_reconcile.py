"""Laws of reconciling: it comes to rest, starts nothing twice, and touches nothing it was not shown."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.agent.reconcile import (
    Action,
    Collect,
    ControlMessage,
    DesiredContainer,
    Exit,
    Finish,
    Forget,
    Halt,
    JournalEntry,
    Prepare,
    Remove,
    Start,
    WriteControl,
    control_for,
    leases_to_renew,
    networks_to_join,
    reconcile,
    state_of,
)
from runners.runtime import AttemptNetwork, ObservedContainer
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


def seen(name: str, state: str) -> ObservedContainer:
    return ObservedContainer(name, job=1, attempt=1, epoch=1, state=state)  # type: ignore[arg-type]


NO_CONTROL = ControlMessage()


def make_desired(
    name: str = "sl-1-a1-0", wanted: str = "run", control: ControlMessage = NO_CONTROL
) -> DesiredContainer:
    return DesiredContainer(spec(name), wanted, control)  # type: ignore[arg-type]


@dataclass
class World:
    """A runtime and the journal entries, and how each action changes them."""

    observed: dict[str, ObservedContainer]
    entries: dict[str, JournalEntry]
    starts: list[str] = field(default_factory=list)

    def apply(self, action: Action, container: DesiredContainer | None) -> None:
        name = action.name
        entry = self.entries.get(name, JournalEntry(job=1, attempt=1, epoch=1))
        match action:
            case Prepare():
                self.observed.setdefault(name, seen(name, "created"))
                self.entries[name] = replace(entry, created=True)
            case Start():
                self.entries[name] = replace(entry, started=True, running_at=1.0)
                if self.observed[name].state == "created":
                    self.starts.append(name)
                    self.observed[name] = seen(name, "running")
            case WriteControl():
                self.entries[name] = replace(entry, control=action.control)
                if action.control.stop_reason:
                    self.observed[name] = seen(name, "exited")
            case Halt():
                self.observed[name] = seen(name, "exited")
            case Finish():
                self.entries[name] = replace(entry, exit=Exit(0, "exited"))
            case Collect():
                self.entries[name] = replace(entry, collected=True)
            case Remove():
                self.observed.pop(name, None)
            case Forget():
                self.entries.pop(name, None)
            case _:
                raise AssertionError(action)


Drawn = dict[str, tuple[str, ControlMessage]]
controls = st.sampled_from([ControlMessage(), ControlMessage(hosts=(("h0", 1),)), ControlMessage("cancelled", 5)])
drawn_containers = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.sampled_from(["run", "stop", "collect"]), controls)
)
observations = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["created", "running", "exited"]))
drawn_entries = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        JournalEntry,
        job=st.just(1),
        attempt=st.just(1),
        epoch=st.just(1),
        created=st.booleans(),
        started=st.booleans(),
        running_at=st.sampled_from([None, 1.0]),
        control=st.one_of(st.none(), controls),
        halted=st.sampled_from(["", "disk"]),
        exit=st.sampled_from([None, Exit(0, "exited")]),
        collected=st.booleans(),
    ),
)


def desired_of(drawn: Drawn) -> dict[str, DesiredContainer]:
    """Make containers as ``DesiredContainer.from_json`` does: one to stop has a reason to stop, and only that one."""
    return {
        name: make_desired(
            name,
            wanted,
            ControlMessage(hosts=control.hosts) if wanted == "run" else replace(control, stop_reason="cancelled"),
        )
        for name, (wanted, control) in drawn.items()
    }


@given(drawn_containers, observations, drawn_entries, st.sets(st.sampled_from(NAMES)), st.randoms())
@settings(max_examples=examples(500), deadline=None)
def test_from_any_state_it_comes_to_rest_and_stays(
    drawn: Drawn, states: dict[str, str], entries: dict[str, JournalEntry], overdue: set[str], chance: Random
) -> None:
    desired = desired_of(drawn)
    world = World({name: seen(name, state) for name, state in states.items()}, dict(entries))
    ran_already = {name for name, state in states.items() if state != "created"}
    for _ in range(8):
        actions = reconcile(desired, world.observed, world.entries, overdue)
        assert len({action.name for action in actions}) == len(actions), "two actions for one container"
        if not actions:
            break
        chance.shuffle(actions)
        for action in actions[: chance.randint(1, len(actions))]:  # the others come in a later pass
            world.apply(action, desired.get(action.name))
            if chance.random() < 0.3:
                world.apply(action, desired.get(action.name))  # repeated
    for _ in range(40):
        overdue = {name for name, entry in world.entries.items() if entry.control and entry.control.stop_reason}
        for action in reconcile(desired, world.observed, world.entries, overdue):
            world.apply(action, desired.get(action.name))
    assert reconcile(desired, world.observed, world.entries) == []
    assert len(set(world.starts)) == len(world.starts), "started twice"
    assert not set(world.starts) & ran_already, "started what had run before"
    assert set(world.observed) <= set(desired) and set(world.entries) <= set(desired)
    for name, container in desired.items():
        if container.wanted == "run" and world.entries[name].exit is None:
            assert world.observed[name].state == "running"
        else:
            assert world.entries[name].collected and name not in world.observed


@given(drawn_containers, observations, drawn_entries)
def test_the_reported_state_never_goes_back(
    drawn: Drawn, states: dict[str, str], entries: dict[str, JournalEntry]
) -> None:
    desired = desired_of(drawn)
    world = World({name: seen(name, state) for name, state in states.items()}, dict(entries))
    reported = dict.fromkeys(desired, 0)
    for _ in range(10):
        actions = reconcile(desired, world.observed, world.entries)
        busy = {action.name for action in actions}
        for name, container in desired.items():
            state = ORDER.index(
                state_of(container, world.observed.get(name), world.entries.get(name), busy=name in busy)
            )
            assert state >= reported[name]
            reported[name] = state
        for action in actions:
            world.apply(action, desired.get(action.name))


@given(observations, drawn_entries)
def test_it_names_only_containers_it_was_shown(states: dict[str, str], entries: dict[str, JournalEntry]) -> None:
    observed = {name: seen(name, state) for name, state in states.items()}
    for action in reconcile({}, observed, entries):
        assert action.name in observed or action.name in entries
        assert isinstance(action, Halt | Remove | Forget)


def test_a_started_container_that_is_gone_is_finished_and_never_created_again() -> None:
    entry = JournalEntry(1, 1, 1, created=True, started=True)
    assert reconcile({"sl-1-a1-0": make_desired()}, {}, {"sl-1-a1-0": entry}) == [Finish("sl-1-a1-0")]


def test_a_container_that_is_stopped_before_its_start_never_starts() -> None:
    assert reconcile({"sl-1-a1-0": make_desired(wanted="stop")}, {}, {}) == [Finish("sl-1-a1-0")]
    created = {"sl-1-a1-0": seen("sl-1-a1-0", "created")}
    entry = {"sl-1-a1-0": JournalEntry(1, 1, 1, created=True)}
    assert reconcile({"sl-1-a1-0": make_desired(wanted="stop")}, created, entry) == [Finish("sl-1-a1-0")]


def test_a_half_prepared_container_is_prepared_again_before_its_start() -> None:
    created = {"sl-1-a1-0": seen("sl-1-a1-0", "created")}
    assert reconcile({"sl-1-a1-0": make_desired()}, created, {}) == [Prepare("sl-1-a1-0")]


def test_what_the_portal_gave_up_is_halted_at_once() -> None:
    running = {"sl-1-a1-0": seen("sl-1-a1-0", "running")}
    entry = {"sl-1-a1-0": JournalEntry(1, 1, 1, created=True, started=True, control=ControlMessage())}
    for control in (NO_CONTROL, ControlMessage("preempted", grace_seconds=3600)):  # its long grace period has ended
        assert reconcile({"sl-1-a1-0": make_desired(wanted="collect", control=control)}, running, entry) == [
            Halt("sl-1-a1-0", 10)
        ]


def test_a_running_container_that_is_not_listed_has_its_grace_period() -> None:
    name = "sl-1-a1-0"
    assert reconcile({}, {name: seen(name, "running")}, {}) == [Halt(name, 10)]
    assert reconcile({}, {name: seen(name, "exited")}, {}) == [Remove(name)]


def test_drivers_come_after_hosts() -> None:
    driver, host = make_desired(NAMES[0]), make_desired(NAMES[1])
    desired = {NAMES[0]: replace(driver, spec=replace(driver.spec, role="driver")), NAMES[1]: host}
    assert reconcile(desired, {}, {}) == [Prepare(NAMES[1]), Prepare(NAMES[0])]


def test_new_hosts_are_sent_once() -> None:
    running = {"sl-1-a1-0": seen("sl-1-a1-0", "running")}
    hosts = ControlMessage(hosts=(("h0", 1), ("h1", 1)))
    container = make_desired(control=hosts)
    entry = JournalEntry(1, 1, 1, created=True, started=True, control=ControlMessage(hosts=(("h0", 1),)))
    assert reconcile({container.spec.name: container}, running, {container.spec.name: entry}) == [
        WriteControl("sl-1-a1-0", hosts)
    ]
    assert (
        reconcile({container.spec.name: container}, running, {container.spec.name: replace(entry, control=hosts)}) == []
    )


def test_the_portals_reason_to_stop_outranks_the_agents() -> None:
    entry = JournalEntry(1, 1, 1, halted="disk")
    assert control_for(make_desired(), entry).stop_reason == "disk"
    assert (
        control_for(make_desired(wanted="stop", control=ControlMessage("cancelled", 3)), entry).stop_reason
        == "cancelled"
    )


def test_a_reply_renews_what_may_still_train() -> None:
    desired = {
        name: make_desired(name, wanted) for name, wanted in zip(NAMES, ["run", "stop", "collect", "run"], strict=True)
    }
    entries = {name: JournalEntry(1, 1, 1, created=True, started=True) for name in NAMES}
    entries[NAMES[3]] = JournalEntry(1, 1, 1, exit=Exit(0, "exited"))
    assert leases_to_renew(desired, entries) == NAMES[:2]


def test_an_entry_of_the_protocol_is_read() -> None:
    data = {
        "spec": spec().to_json(),
        "wanted": "stop",
        "stop": {"reason": "preempted", "grace_seconds": 30},
        "hosts": [{"name": "h0", "slots": 2}],
        "batch": 64,
    }
    control = ControlMessage("preempted", 30, (("h0", 2),), 64)
    assert DesiredContainer.from_json(data) == make_desired(wanted="stop", control=control)
    assert control.to_json() == {key: data[key] for key in ("stop", "hosts", "batch")} | {"driver": None}
    assert (
        DesiredContainer.from_json({"spec": spec().to_json(), "wanted": "run", "stop": None}).control
        == ControlMessage()
    )


# --- attempts on several nodes ------------------------------------------------------------------------------------

GROUP = CollectiveGroup("10.192.4.2", 4000, "s", 1, 3, number=9, subnet="10.192.4.0/22", address="10.192.4.3")


def test_an_attempts_neighbours_are_those_of_all_its_containers_that_live() -> None:
    here = replace(spec("sl-1-a1-1"), collective=GROUP)
    desired = {
        "sl-1-a1-0": DesiredContainer(replace(here, name="sl-1-a1-0"), "run", peers=frozenset({"10.1.0.2"})),
        "sl-1-a1-1": DesiredContainer(here, "stop", peers=frozenset({"10.1.0.3"})),
        "sl-1-a1-2": DesiredContainer(replace(here, name="sl-1-a1-2"), "collect", peers=frozenset({"10.1.0.4"})),
        "sl-2-a1-0": DesiredContainer(replace(spec("sl-2-a1-0"), job=2, collective=replace(GROUP, number=0)), "run"),
        "sl-3-a2-0": make_desired("sl-3-a2-0"),
    }
    entries = {"sl-1-a1-2": JournalEntry(1, 1, 1, exit=Exit(0, "exited"))}
    assert networks_to_join(desired, entries) == [AttemptNetwork("sl-1-a1", 9, frozenset({"10.1.0.2", "10.1.0.3"}))]


def test_addresses_in_a_reply_are_addresses() -> None:
    """They end up in commands that root runs."""
    container = {"spec": spec().to_json(), "wanted": "run", "driver": "10.192.4.9", "peers": ["10.1.0.2"]}
    read = DesiredContainer.from_json(container)
    assert (read.control.driver, read.peers) == ("10.192.4.9", {"10.1.0.2"})
    for bad in ({"driver": "driver"}, {"peers": ["10.1.0.2/0"]}, {"peers": ["-j ACCEPT"]}):
        with pytest.raises(ValueError):
            DesiredContainer.from_json({**container, **bad})


@pytest.mark.parametrize("state", ["created", "running", "exited"])
def test_a_job_waits_until_no_container_of_its_number_is_left_that_the_portal_does_not_know(state: str) -> None:
    """One that was lost when a backup was restored, and still has the folder."""
    lost, name = "sl-1-a1-0a0a0a0a0a0a-c0ffee-0", "sl-1-a1-0b0b0b0b0b0b-c0ffee-0"
    actions = reconcile({name: make_desired(name)}, {lost: seen(lost, state)}, {})
    assert [(type(each), each.name) for each in actions] == [(Halt if state == "running" else Remove, lost)]
    assert reconcile({name: make_desired(name)}, {}, {lost: JournalEntry(1, 1, 1)})[0] == Prepare(name)
    other = replace(seen(lost, state), job=2)
    assert Prepare(name) in reconcile({name: make_desired(name)}, {lost: other}, {}), "it waits for another number"


def test_an_entry_may_name_the_job_beside_its_spec() -> None:
    container = {"spec": spec().to_json(), "wanted": "run", "stop": None}
    assert DesiredContainer.from_json(container).spec.identity is None, "as from a portal of the release before"
    named = DesiredContainer.from_json({**container, "identity": {"installation": "1" * 32, "job": "a" * 32}})
    assert named.spec == replace(spec(), identity=JobIdentity("1" * 32, "a" * 32))
