"""Which commands make a node's VXLAN devices as they are wanted."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.host.firewall import chain_rules
from runners.host.overlay import (
    BROADCAST,
    MTU,
    PORT,
    Command,
    Device,
    Link,
    OverlayState,
    conflicting_network,
    node_address,
    parse_state,
    update_commands,
)

HERE = "10.1.0.1"
LINK = Link(7, "slj-abc", frozenset({"10.1.0.2"}))
MADE = Device(7, HERE, "slj-abc", True, frozenset({"10.1.0.2"}))
BRIDGES = frozenset({"slj-abc", "slj-def", "docker0"})


def state_of(*devices: Device) -> OverlayState:
    return OverlayState({f"slv-{device.number}": device for device in devices}, BRIDGES)


def test_a_new_link_gets_a_device_in_its_bridge_and_a_way_to_each_peer() -> None:
    assert update_commands([LINK], state_of(), HERE) == [
        tuple(f"ip link add dev slv-7 type vxlan id 7 local {HERE} dstport {PORT}".split()),
        tuple(f"ip link set dev slv-7 mtu {MTU} addrgenmode none master slj-abc up".split()),
        tuple(f"bridge fdb append {BROADCAST} dev slv-7 dst 10.1.0.2".split()),
    ]


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert update_commands([LINK], state_of(MADE), HERE) == []


def test_a_peer_that_left_is_forgotten_with_all_that_was_learnt_about_it() -> None:
    learnt = frozenset({("02:42:00:00:00:01", "10.1.0.2"), ("02:42:00:00:00:03", "10.1.0.3")})
    moved = replace(LINK, peers=frozenset({"10.1.0.3"}))
    assert update_commands([moved], state_of(replace(MADE, learnt=learnt)), HERE) == [
        tuple(f"bridge fdb append {BROADCAST} dev slv-7 dst 10.1.0.3".split()),
        tuple(f"bridge fdb del {BROADCAST} dev slv-7 dst 10.1.0.2".split()),
        ("bridge", "fdb", "del", "02:42:00:00:00:01", "dev", "slv-7", "dst", "10.1.0.2"),
    ]


@pytest.mark.parametrize(
    "wanted",
    [[], [replace(LINK, peers=frozenset())], [replace(LINK, bridge="slj-gone")]],
    ids=["nothing wanted", "no peers", "its bridge is gone"],
)
def test_a_device_that_nothing_needs_goes(wanted: list[Link]) -> None:
    assert update_commands(wanted, state_of(MADE), HERE) == [("ip", "link", "del", "dev", "slv-7")]


def test_a_device_with_another_address_is_replaced() -> None:
    commands = update_commands([LINK], state_of(replace(MADE, local="10.9.9.9")), HERE)
    assert [command[:3] for command in commands] == [
        ("ip", "link", "del"),
        ("ip", "link", "add"),
        ("ip", "link", "set"),
        ("bridge", "fdb", "append"),
    ]


def test_a_device_that_lost_its_bridge_is_put_into_it_again() -> None:
    (command,) = update_commands([LINK], state_of(replace(MADE, bridge="")), HERE)
    assert command[:5] == ("ip", "link", "set", "dev", "slv-7") and command[-3:] == ("master", "slj-abc", "up")


# --- a kernel made of values --------------------------------------------------------------------------------------


def obey(commands: list[Command], before: OverlayState) -> OverlayState:
    """What the kernel would have afterwards. KeyError or AssertionError for what it would refuse."""
    devices = dict(before.devices)
    for program, what, verb, *rest in commands:
        words = dict(zip(rest[::2], rest[1::2], strict=False))
        if program == "ip" and verb == "del":
            del devices[words["dev"]]
        elif program == "ip" and verb == "add":
            assert words["dev"] not in devices
            devices[words["dev"]] = Device(int(words["id"]), words["local"], up=False)
        elif program == "ip" and verb == "set":
            assert words["master"] in before.bridges
            devices[words["dev"]] = replace(devices[words["dev"]], bridge=words["master"], up=True)
        else:
            assert what == "fdb"
            mac, words = rest[0], dict(zip(rest[1::2], rest[2::2], strict=True))
            device = devices[words["dev"]]
            if mac != BROADCAST:
                assert (mac, words["dst"]) in device.learnt
                device = replace(device, learnt=device.learnt - {(mac, words["dst"])})
            elif verb == "append":
                assert words["dst"] not in device.peers
                device = replace(device, peers=device.peers | {words["dst"]})
            else:
                device = replace(device, peers=device.peers - {words["dst"]})
            devices[words["dev"]] = device
    return OverlayState(devices, before.bridges)


nodes = st.frozensets(st.sampled_from([f"10.1.0.{number}" for number in range(2, 7)]))
numbers = st.integers(0, 4)
bridges = st.sampled_from(["slj-abc", "slj-def", "slj-gone"])
links = st.lists(st.builds(Link, numbers, bridges, nodes), max_size=4, unique_by=lambda link: link.number)
learnt = st.frozensets(
    st.tuples(
        st.sampled_from(["02:42:00:00:00:01", "02:42:00:00:00:02"]),
        nodes.flatmap(lambda some: st.sampled_from(sorted(some) or ["10.1.0.2"])),
    ),
    max_size=3,
)
devices = st.lists(
    st.builds(Device, numbers, st.sampled_from([HERE, "10.9.9.9"]), bridges, st.booleans(), nodes, learnt),
    max_size=4,
    unique_by=lambda device: device.number,
)


@given(links, devices)
def test_afterwards_it_is_as_wanted_and_nothing_is_left_to_do(wanted: list[Link], before: list[Device]) -> None:
    after = obey(update_commands(wanted, state_of(*before), HERE), state_of(*before))
    assert update_commands(wanted, after, HERE) == []
    expected = {f"slv-{link.number}": link for link in wanted if link.peers and link.bridge in BRIDGES}
    assert after.devices.keys() == expected.keys()
    for name, device in after.devices.items():
        assert (device.bridge, device.peers, device.up) == (expected[name].bridge, expected[name].peers, True)
        assert {node for _, node in device.learnt} <= device.peers


# --- what ip and bridge print -------------------------------------------------------------------------------------


def test_it_reads_what_the_programs_print() -> None:
    shown = [
        {
            "ifname": "slv-7",
            "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
            "master": "slj-abc",
            "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 7, "local": HERE, "port": PORT}},
        },
        {"ifname": "vxlan.calico", "linkinfo": {"info_data": {"id": 4096}}},
        {},
    ]
    table = [
        {"mac": "33:33:00:00:00:01", "ifname": "slj-abc"},
        {"mac": "02:42:0a:c0:00:03", "ifname": "slv-7", "master": "slj-abc"},
        {"mac": "02:42:0a:c0:00:03", "ifname": "slv-7", "dst": "10.1.0.2"},
        {"mac": BROADCAST, "ifname": "slv-7", "dst": "10.1.0.2"},
        {"mac": BROADCAST, "ifname": "vxlan.calico", "dst": "10.1.0.9"},
    ]
    found = parse_state(json.dumps(shown), json.dumps([{"ifname": "slj-abc"}, {}]), json.dumps(table))
    assert found.bridges == {"slj-abc"}
    assert found.devices == {"slv-7": replace(MADE, learnt=frozenset({("02:42:0a:c0:00:03", "10.1.0.2")}))}
    assert parse_state("", "", "").devices == {}


def test_an_overlay_network_must_not_hide_a_network_of_the_machine() -> None:
    routes = json.dumps(
        [
            {"dst": "default", "dev": "eth0"},
            {"dst": "10.192.0.0/16", "dev": "eth0"},
            {"dst": "10.200.0.0/22", "dev": "slj-abc"},
        ]
    )
    assert conflicting_network("10.192.4.0/22", routes) == "10.192.0.0/16 (eth0)"
    assert conflicting_network("10.200.0.0/22", routes) == ""  # another ring's: the engine judges that


def test_a_machine_whose_portal_is_itself_has_no_address_for_others() -> None:
    assert node_address("https://127.0.0.1:8000") == ""
    assert node_address("https://127.0.0.1:8000", "10.1.0.1") == "10.1.0.1"
    assert node_address("https://name.invalid") == ""
    with pytest.raises(ValueError):
        node_address("https://127.0.0.1", "node-a")


def test_the_chain_admits_only_the_peers() -> None:
    assert chain_rules({"10.1.0.3", "10.1.0.2"}) == [
        "-A SCHEDULEARN-RING -s 10.1.0.2/32 -j ACCEPT",
        "-A SCHEDULEARN-RING -s 10.1.0.3/32 -j ACCEPT",
        "-A SCHEDULEARN-RING -j DROP",
    ]
