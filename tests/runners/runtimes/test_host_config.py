"""Whatever a RunSpec contains, the engine is asked only for what this list allows (security.md C1, C5, C7)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.runtime import Folders
from runners.runtimes.host_config import MIN_UID, AgentIdentity, Host, container_config, network_config, owner_for
from runners.spec import CollectiveGroup, JobIdentity, Resources, RunSpec
from tests.runners.conftest import GROUP, make_spec

HOST = Host(cpus=8, memory_mib=32_768)
IDENTITY = AgentIdentity("installation", "node")
FOLDERS = Folders(
    *(Path("/agent") / name for name in ("workspace", "control", "scribe", "outputs", "checkpoints", "data"))
)
TARGETS = {
    "/workspace": False,
    "/data": True,
    "/outputs": False,
    "/checkpoints": False,
    "/run/schedulearn/control": True,
    "/run/schedulearn/scribe": False,
}
TOP_KEYS = {
    "Image",
    "Entrypoint",
    "Cmd",
    "WorkingDir",
    "Env",
    "User",
    "Hostname",
    "Labels",
    "Tty",
    "OpenStdin",
    "StopSignal",
    "Healthcheck",
    "HostConfig",
    "NetworkingConfig",
}
HOST_KEYS = {
    "CapDrop",
    "GroupAdd",
    "SecurityOpt",
    "Privileged",
    "ReadonlyRootfs",
    "Mounts",
    "Tmpfs",
    "ShmSize",
    "Memory",
    "MemorySwap",
    "NanoCpus",
    "PidsLimit",
    "OomScoreAdj",
    "Ulimits",
    "IpcMode",
    "NetworkMode",
    "ExtraHosts",
    "Dns",
    "DnsOptions",
    "DeviceRequests",
    "RestartPolicy",
    "AutoRemove",
    "Init",
    "LogConfig",
}

words = st.text(max_size=40)
anything = st.text(st.characters(), max_size=60)
numbers = st.integers(min_value=-(2**40), max_value=2**40)


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    """Also ones that no honest portal would send."""
    group = st.builds(
        CollectiveGroup, driver_host=anything, port=numbers, secret=anything, min_ranks=numbers, max_ranks=numbers
    )
    job, number = draw(st.integers(1, 2**40)), draw(st.integers(1, 999))
    return RunSpec(
        name=f"sl-{job}-a{number}-{draw(st.integers(0, 99))}",
        job=job,
        attempt=draw(st.integers(1, 2**40)),
        number=number,
        role=draw(st.sampled_from(["driver", "host"])),
        hostname=draw(st.sampled_from(["driver", "h0", "h17"])),
        environment=draw(anything),
        code_sha256=draw(anything),
        launcher=draw(st.sampled_from(["horovod", "torchrun", "command"])),
        command=tuple(draw(st.lists(anything, max_size=4))),
        slots=draw(st.integers(0, 64)),
        gpus=tuple(draw(st.lists(st.uuids().map(lambda uuid: f"GPU-{uuid}"), max_size=4))),
        gpu_kind=draw(st.sampled_from(["cuda", "cpu"])),
        elastic=draw(st.booleans()),
        env=tuple(draw(st.lists(st.tuples(anything, anything), max_size=4))),
        collective=draw(st.none() | group),
        resources=Resources(
            cpus=draw(st.floats(-10, 10_000)),
            memory_mib=draw(numbers),
            shm_mib=draw(numbers),
            tmp_mib=draw(numbers),
            pids=draw(numbers),
        ),
    )


def config_of(spec: RunSpec) -> dict[str, Any]:
    return container_config(spec, FOLDERS, "image:tag", owner_for(spec.job, 0, 0), IDENTITY, HOST)


@given(specs())
def test_no_spec_gets_more_than_the_policy(spec: RunSpec) -> None:
    config = config_of(spec)
    host = config["HostConfig"]

    assert set(config) == TOP_KEYS and set(host) == HOST_KEYS
    assert config["Image"] == "image:tag"
    assert config["Entrypoint"] in (
        ["python", "-m", "runners.launch.supervisor"],
        ["python", "-m", "runners.launch.driver"],
    )
    assert config["Cmd"] == [] and config["WorkingDir"] == "/opt/schedulearn"
    uid, gid = (int(part) for part in config["User"].split(":"))
    assert MIN_UID <= uid == gid < 2**31

    assert host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Privileged"] is False and host["ReadonlyRootfs"] is True and host["Init"] is False
    assert host["IpcMode"] == "private" and host["RestartPolicy"] == {"Name": "no"}
    assert host["NetworkMode"] == (IDENTITY.engine_name(spec.network) if spec.network else "none")
    assert set(config["NetworkingConfig"]["EndpointsConfig"]) <= {host["NetworkMode"]} - {"none", "host", "bridge"}
    assert {mount["Target"]: mount["ReadOnly"] for mount in host["Mounts"]} == TARGETS
    assert all(mount["Type"] == "bind" and mount["Source"].startswith("/agent/") for mount in host["Mounts"])
    assert list(host["Tmpfs"]) == ["/tmp"] and "nosuid,nodev" in host["Tmpfs"]["/tmp"]

    assert host["Memory"] == host["MemorySwap"] >= 2**26
    assert 0 < host["NanoCpus"] <= 8e9 and host["PidsLimit"] >= 16 and host["ShmSize"] >= 2**20
    assert host["OomScoreAdj"] > 0
    for request in host["DeviceRequests"]:
        assert spec.gpu_kind == "cuda" and request["Count"] == 0 and request["DeviceIDs"] == list(spec.gpus)


@given(specs())
def test_nothing_a_user_writes_reaches_the_engine(spec: RunSpec) -> None:
    """Neither command nor environment: the NVIDIA hook and the engine read variables too."""
    plain = config_of(make_spec(spec.name, job=spec.job, hostname=spec.hostname, role=spec.role))
    config = config_of(spec)
    assert config["Env"] == plain["Env"] and config["Entrypoint"] == plain["Entrypoint"]
    assert not any(line.startswith(("NVIDIA_", "CUDA_", "LD_")) for line in config["Env"])


@given(specs())
def test_the_policy_is_plain_data(spec: RunSpec) -> None:
    config = config_of(spec)
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("strange", ["all", "0", "none", "", "GPU-", "MIG-1", "GPU-" + "0" * 32 + ",all"])
def test_it_refuses_a_device_that_is_not_named_by_uuid(strange: str) -> None:
    with pytest.raises(ValueError, match="not the UUID"):
        config_of(make_spec(gpu_kind="cuda", gpus=(strange,)))


@pytest.mark.parametrize(
    "uuid", ["GPU-5f3d1a52-8c0e-4a3b-9b3e-0123456789ab", "MIG-5f3d1a52-8c0e-4a3b-9b3e-0123456789ab"]
)
def test_a_cuda_job_gets_its_devices_by_uuid(uuid: str) -> None:
    (request,) = config_of(make_spec(gpu_kind="cuda", gpus=(uuid,)))["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == [uuid] and "gpu" in request["Capabilities"][0]


def test_an_agent_that_is_not_root_runs_jobs_as_itself() -> None:
    assert owner_for(5, 1000, 100).user == "1000:100"


def test_two_jobs_have_different_users() -> None:
    assert owner_for(1, 0, 0) != owner_for(2, 0, 0)


def test_a_plain_command_finds_its_own_name_without_a_network() -> None:
    host = config_of(make_spec())["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ExtraHosts"] == ["h0:127.0.0.1"] and not host["Dns"]


def test_a_group_asks_no_name_server_of_the_machine() -> None:
    spec = make_spec(collective=CollectiveGroup("driver", 4000, "s", 1, 2), launcher="horovod")
    host = config_of(spec)["HostConfig"]
    assert host["Dns"] == ["127.0.0.1"] and not host["DnsOptions"]


def test_over_several_nodes_an_unknown_name_takes_a_second() -> None:
    group = CollectiveGroup("10.192.4.2", 4000, "s", 1, 2, number=9, subnet="10.192.4.0/22", address="10.192.4.3")
    spec = make_spec(collective=group, launcher="torchrun")
    assert config_of(spec)["HostConfig"]["DnsOptions"] == ["timeout:1", "attempts:1"]


def test_two_installations_never_share_a_name_or_a_bridge() -> None:
    other = AgentIdentity("another", "node")
    assert IDENTITY.engine_name("sl-1-a1-0") != other.engine_name("sl-1-a1-0")
    assert IDENTITY.bridge("sl-1-a1") != other.bridge("sl-1-a1")
    assert len(IDENTITY.bridge("sl-1-a1")) == 15  # the kernel's limit for an interface


def test_a_job_network_leads_nowhere() -> None:
    config = network_config("sl-1-a1", IDENTITY)
    assert config["internal"] and not config["enable_ipv6"] and not config["attachable"]
    assert config["options"]["com.docker.network.bridge.name"].startswith("slj-")


def test_over_several_nodes_the_network_and_the_address_are_fixed() -> None:
    group = CollectiveGroup("10.192.4.2", 4000, "s", 1, 2, number=9, subnet="10.192.4.0/22", address="10.192.4.3")
    spec = make_spec(collective=group, launcher="horovod")
    (endpoint,) = config_of(spec)["NetworkingConfig"]["EndpointsConfig"].values()
    assert endpoint["IPAMConfig"] == {"IPv4Address": "10.192.4.3"}
    network = network_config("sl-42-a1", IDENTITY, group)
    assert network["ipam"]["Config"] == [{"Subnet": "10.192.4.0/22"}]
    assert network["internal"] is True and network["options"]["com.docker.network.driver.mtu"] == "1450"


def test_a_container_and_its_network_name_the_job_that_no_restored_backup_repeats() -> None:
    job = JobIdentity("1" * 32, "a" * 32)
    spec = make_spec("sl-42-a1-0a0a0a0a0a0a-c0ffee-0", collective=GROUP, identity=job)
    network = network_config(str(spec.network), IDENTITY, spec.collective, job)
    assert network["name"] == f"sl-42-a1-0a0a0a0a0a0a.{IDENTITY.suffix}"
    for labels in (config_of(spec)["Labels"], network["labels"]):
        assert (labels["sl.portal"], labels["sl.job-uid"]) == (job.installation, job.job)
    assert "sl.job-uid" not in config_of(make_spec())["Labels"], "a portal of the release before gives none"


def test_the_layer_of_an_environment_is_mounted_read_only() -> None:
    spec = make_spec(layer="a" * 64)
    config = container_config(spec, FOLDERS, "image:tag", owner_for(1, 0, 0), IDENTITY, HOST, Path("/cache/layers/a"))
    (mount,) = [mount for mount in config["HostConfig"]["Mounts"] if mount["Target"] == "/opt/layer"]
    assert (mount["Source"], mount["ReadOnly"]) == ("/cache/layers/a", True)
    assert "SCHEDULEARN_LAYER=/opt/layer" in config["Env"]
    assert not any("LAYER" in line for line in config_of(make_spec())["Env"])
