"""The facts that an agent reports about its machine, in the order and wording of the node's page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from portal.cluster.models import Node
from portal.sentences import sentence_of


@dataclass(frozen=True, slots=True)
class Finding:
    title: str
    text: str


def node_findings(node: Node) -> list[Finding]:
    """Return the facts of a node for its page.

    They come from a program that may be older, newer or not ours: values of an unexpected type are left out.
    """
    found = []
    for title, describe in FACTS:
        try:
            text = describe(node.facts)
        except (TypeError, ValueError, AttributeError, KeyError):
            continue
        if text:
            found.append(Finding(title, text))
    return found


def confinement(facts: Mapping[str, Any]) -> str:
    """Return how the jobs of a process runtime are confined; an agent of the previous release reports a text only."""
    return sentence_of(facts.get("confinement_message")) or str(facts.get("confinement") or "")[:200]


def limits(facts: Mapping[str, Any]) -> str:
    """Return whether a process runtime enforces limits of memory and processors; empty for an agent that does not report it."""
    return sentence_of(facts.get("limits_message"))


def _text(*names: str) -> Callable[[dict[str, Any]], str]:
    return lambda facts: ", ".join(str(facts[name])[:200] for name in names if facts.get(name))


def _gib(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda facts: f"{facts[name] / 1024:.0f} GiB" if facts.get(name) else ""


def _yes_or_no(name: str, yes: str, no: str) -> Callable[[dict[str, Any]], str]:
    return lambda facts: (yes if facts[name] else no) if name in facts else ""


def _packages(facts: dict[str, Any]) -> str:
    return ", ".join(f"{str(name)[:40]} {str(version)[:60]}" for name, version in sorted(facts["packages"].items()))


def _clock(facts: dict[str, Any]) -> str:
    offset = float(facts["clock_offset_seconds"])
    if abs(offset) < 1:
        return "within a second of the portal's"
    return f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} the portal's"


def _address(facts: dict[str, Any]) -> str:
    where = f" ({facts['interface']})" if facts.get("interface") else ""
    return f"{str(facts['address'])[:60]}{where[:40]}"


def _comma_separated(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda facts: ", ".join(str(each)[:80] for each in facts[name])


def _disks(facts: dict[str, Any]) -> str:
    disks = [(str(disk["folder"])[:80], int(disk["free_mib"]), int(disk["total_mib"])) for disk in facts["disks"]]
    return "; ".join(f"{folder}: {free / 1024:.0f} of {total / 1024:.0f} GiB" for folder, free, total in disks)


def _free_disk(facts: dict[str, Any]) -> str:
    """Of an agent of the release before, which does not report its disks."""
    return "" if "disks" in facts else _gib("disk_free_mib")(facts)


FACTS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("System", _text("system", "kernel")),
    ("Processors", lambda facts: f"{int(facts['cpus'])}" if facts.get("cpus") else ""),
    ("Memory", _gib("memory_mib")),
    ("Free on its disks", _disks),
    ("Free disk for the agent", _free_disk),
    ("Engine", _text("engine", "storage")),
    ("Confinement of jobs", confinement),
    ("Memory and processor limits", limits),
    ("runc", _text("runc")),
    ("containerd", _text("containerd")),
    ("Packages", _packages),
    ("Jobs survive a restart of the engine", _yes_or_no("live_restore", "yes (live-restore)", "no")),
    ("Default runtime", _text("default_runtime")),
    ("GPUs", _comma_separated("gpus")),
    ("NVIDIA driver", _text("driver")),
    ("CUDA of the driver", _text("cuda")),
    ("Engine gives GPUs", lambda facts: ("yes" if facts["nvidia_runtime"] else "no") if facts.get("driver") else ""),
    ("GPUs by a container's own variable", _yes_or_no("gpus_by_variable", "accepted", "refused")),
    ("Clock", _clock),
    ("Address for other nodes", _address),
    ("Datasets under /data", _comma_separated("datasets")),
    ("Shared folder for checkpoints", lambda facts: str(facts.get("shared", ""))[:8]),
    ("Python", _text("python")),
    ("Agent", _text("agent")),
)
