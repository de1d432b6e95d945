"""The units of systemd take from each process what it never needs, and leave what it does."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = {path.stem: path.read_text() for path in sorted((ROOT / "deploy" / "systemd").iterdir())}
PORTAL = [name for name in UNITS if name != "schedulearn-agent"]
SCRIPT = (ROOT / "deploy" / "agent" / "install.sh").read_text()
AGENTS = {
    "the unit file": UNITS["schedulearn-agent"],
    "the unit of the install script": re.findall(r"<<UNIT\n(.+?)\nUNIT\n", SCRIPT, re.DOTALL)[0],
}

Service = Mapping[str, Sequence[str]]
"""Each setting's values, in order."""

EVERYWHERE = {
    "LockPersonality": "true",
    "NoNewPrivileges": "true",
    "ProtectHome": "true",
    "ProtectHostname": "true",
    "ProtectKernelLogs": "true",
    "ProtectKernelTunables": "true",
    "ProtectSystem": "strict",
    "RestrictRealtime": "true",
    "RestrictSUIDSGID": "true",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
}
OF_THE_PORTAL = EVERYWHERE | {
    "CapabilityBoundingSet": "",
    "MemoryDenyWriteExecute": "true",
    "PrivateDevices": "true",
    "PrivateTmp": "true",
    "ProtectClock": "true",
    "ProtectControlGroups": "true",
    "ProtectKernelModules": "true",
    "ProtectProc": "invisible",
    "RemoveIPC": "true",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces": "true",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
    "User": "schedulearn",
}
NEEDED_BY_THE_AGENT = {
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SETGID",
    "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PTRACE",
}  # fmt: skip
"""Files of jobs' users, the firewall, networks of jobs, devices of GPUs, and who computes on them."""


def service(unit: str) -> Service:
    found: dict[str, list[str]] = defaultdict(list)
    body = unit.partition("[Service]\n")[2].partition("\n[")[0]
    for line in body.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return found


@pytest.mark.parametrize("name", PORTAL)
def test_a_process_of_the_portal_can_reach_its_own_files_and_the_network_only(name: str) -> None:
    found = service(UNITS[name])
    assert {setting: found[setting] for setting in OF_THE_PORTAL} == {
        setting: [value] for setting, value in OF_THE_PORTAL.items()
    }
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged"]


@pytest.mark.parametrize("where", AGENTS)
def test_the_agent_cannot_change_the_clock_or_the_kernels_settings(where: str) -> None:
    found = service(AGENTS[where])
    assert {setting: found[setting] for setting in EVERYWHERE} == {
        setting: [EVERYWHERE[setting]] for setting in EVERYWHERE
    }
    assert found["SystemCallFilter"] == ["~@clock @cpu-emulation @obsolete @raw-io @reboot @swap"]
    assert found["RestrictAddressFamilies"] == ["AF_UNIX AF_INET AF_INET6 AF_NETLINK"]


@pytest.mark.parametrize("where", AGENTS)
def test_the_agent_keeps_what_engine_gpus_and_networks_of_jobs_need(where: str) -> None:
    found = service(AGENTS[where])
    taken = " ".join(found["CapabilityBoundingSet"])
    assert all(line.startswith("~") for line in found["CapabilityBoundingSet"])
    assert not NEEDED_BY_THE_AGENT & set(taken.replace("~", " ").split())
    assert {"CAP_SYS_TIME", "CAP_SYS_BOOT", "CAP_SYS_RAWIO"} <= set(taken.replace("~", " ").split())
    hides_gpus = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"}
    hides_the_engine = {"PrivateTmp", "PrivateNetwork", "InaccessiblePaths"}
    stops_jobs_that_are_processes = {"MemoryDenyWriteExecute", "RestrictNamespaces"}
    assert not (hides_gpus | hides_the_engine | stops_jobs_that_are_processes) & set(found)
    assert any("/run" in value.split() for value in found["ReadWritePaths"])
    assert found["Delegate"] == ["cpu memory pids"] and "ProtectControlGroups" not in found, "jobs that are processes"


def test_the_unit_file_and_the_install_script_confine_the_agent_alike() -> None:
    places = {"ExecStart", "WorkingDirectory", "Environment", "EnvironmentFile", "ReadWritePaths"}
    places |= {"StateDirectory", "StateDirectoryMode", "CacheDirectory"}
    first, second = (
        {name: value for name, value in service(unit).items() if name not in places} for unit in AGENTS.values()
    )
    assert first == second
