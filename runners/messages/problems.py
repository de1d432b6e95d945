"""What is unfit about a machine, and what to do about it.

Numbers are rounded to what the sentence shows: a problem that changes in every report would be stored again each time.
"""

from dataclasses import dataclass
from typing import Any

from runners.messages import Message

DEBIAN_IPTABLES = "Install iptables (Debian: apt-get install iptables)."
SEE_OVERLAY = "See docs/admin/several-nodes.md."
RUNC_CONFIG = (
    "accept-nvidia-visible-devices-envvar-when-unprivileged = false in /etc/nvidia-container-runtime/config.toml."
)
REACH_MACHINE = "Jobs with a network can reach services of this machine itself: "
CANNOT_SPAN = "Jobs cannot span this node and others: "
HOW_TO_SHARE = "To share this machine with other people, install Docker Engine, remove the node, and let it join again."
INSTALL_BUBBLEWRAP = (
    "Install bubblewrap (Debian or Ubuntu: sudo apt-get install bubblewrap; Fedora: sudo dnf install bubblewrap) and restart the "
    "agent: jobs then see only their own files and processes."
)
MAX_NAMED = 3
FORMER_FIX = "mend"
"""The name of ``fix`` in reports and answers of the release before."""


class Problem(Message):
    """Something unfit about this machine, for the page of the node."""

    blocking = False
    """True when no container can run, or none safely, before it is fixed."""

    @property
    def fix(self) -> str:
        """What an admin should do; empty when there is nothing to do."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the problem as reports have it. Portals of the previous release read the texts, and the fix by two names."""
        former = {"text": self.text, "fix": self.fix, FORMER_FIX: self.fix}
        return self.data() | {"blocking": self.blocking} | former


# --- the container engine and its parts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class NoEngine(Problem):
    code = "problem.no_engine"
    blocking = True
    fix = (
        "Install Docker Engine and start it, let the agent's user reach its socket (group docker), or set DOCKER_HOST."
    )
    error: Message

    @property
    def text(self) -> str:
        return f"No Docker Engine can be used: {self.error.text}"


@dataclass(frozen=True)
class EngineAway(Problem):
    """The engine does not list the containers."""

    code = "problem.engine_away"
    blocking = True
    fix = "Start the engine of this machine."
    error: Message

    @property
    def text(self) -> str:
        return self.error.text


@dataclass(frozen=True)
class OldEngine(Problem):
    code = "problem.old_engine"
    blocking = True
    fix = "Install Docker Engine 20.10 or newer for Linux."
    version: str
    """Empty when the engine does not name it."""

    @property
    def text(self) -> str:
        return f"The Docker Engine is too old or not for Linux ({self.version or 'unknown version'})."


class MapsUsers(Problem):
    """The engine maps user ids: a job could not write to its folders there."""

    blocking = True
    fix = "Use an ordinary engine for this node: jobs run without root and without capabilities in it."


@dataclass(frozen=True)
class RootlessEngine(MapsUsers):
    code = "problem.rootless_engine"
    text = "The Docker Engine runs rootless: jobs could not write to their folders."


@dataclass(frozen=True)
class UserNamespaces(MapsUsers):
    code = "problem.user_namespaces"
    text = "The Docker Engine maps user ids (userns-remap): jobs could not write to their folders."


@dataclass(frozen=True)
class NoSeccomp(Problem):
    code = "problem.no_seccomp"
    blocking = True
    text = "The Docker Engine runs containers without its seccomp filter."
    fix = (
        'Remove "seccomp-profile": "unconfined" from daemon.json, or use a kernel with seccomp, and restart the engine.'
    )


@dataclass(frozen=True)
class NoLimits(Problem):
    code = "problem.no_limits"
    blocking = True
    fix = "Enable the cgroup controllers memory, cpu and pids (or cgroup v2) on this machine and restart the engine."
    missing: tuple[str, ...]
    """``memory``, ``processes``, ``processors``."""

    @property
    def text(self) -> str:
        return f"The Docker Engine cannot limit a container's {' and '.join(self.missing)}."


@dataclass(frozen=True)
class NoSwapLimit(Problem):
    code = "problem.no_swap_limit"
    text = "The Docker Engine cannot limit swap: a job over its memory limit may slow the machine down."
    fix = "Turn swap off, or boot with swapaccount=1."


@dataclass(frozen=True)
class NoLiveRestore(Problem):
    code = "problem.no_live_restore"
    text = "Every job on this node dies when the Docker Engine is restarted or upgraded."
    fix = 'Put {"live-restore": true} into /etc/docker/daemon.json and reload the engine (systemctl reload docker).'


@dataclass(frozen=True)
class OldRunc(Problem):
    code = "problem.old_runc"
    blocking = True
    fix = "Upgrade the packages of this machine: runc 1.1.12 or newer, or one that your distribution has fixed."
    version: str

    @property
    def text(self) -> str:
        return f"This runc ({self.version}) lets a container reach the files of the machine (CVE-2024-21626)."


@dataclass(frozen=True)
class EscapableRunc(Problem):
    code = "problem.escapable_runc"
    fix = "Upgrade runc to 1.2.8, 1.3.3 or newer (a newer containerd.io or docker package brings it)."
    version: str

    @property
    def text(self) -> str:
        return f"This runc ({self.version}) has known container escapes (CVE-2025-31133, -52565, -52881)."


@dataclass(frozen=True)
class OldContainerd(Problem):
    code = "problem.old_containerd"
    fix = "Upgrade containerd to 1.7.29, 2.0.7, 2.1.5 or newer (package containerd.io)."
    version: str

    @property
    def text(self) -> str:
        return (
            f"This containerd ({self.version}) lets users of the machine into folders of containers (CVE-2024-25621)."
        )


# --- GPUs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DriverAway(Problem):
    code = "problem.driver_away"
    blocking = True
    fix = "Reboot after a driver update, and check that nvidia-smi works for the agent's user."
    error: str

    @property
    def text(self) -> str:
        return f"NVIDIA's driver does not answer ({self.error}): no GPU of this machine can be offered."


@dataclass(frozen=True)
class GpusOutOfReach(Problem):
    code = "problem.gpus_out_of_reach"
    blocking = True
    text = "This machine has GPUs, but its Docker Engine cannot give them to containers."
    fix = "Install NVIDIA Container Toolkit, then run: nvidia-ctk runtime configure && systemctl restart docker"


@dataclass(frozen=True)
class NvidiaByDefault(Problem):
    code = "problem.nvidia_by_default"
    blocking = True
    text = "NVIDIA's runtime is the engine's default: a container may see GPUs it was not given."
    fix = f"Set the default runtime back to runc, and {RUNC_CONFIG}"


@dataclass(frozen=True)
class OldToolkit(Problem):
    code = "problem.old_toolkit"
    blocking = True
    fix = "Upgrade nvidia-container-toolkit to 1.17.8 or newer and restart the engine."
    version: str

    @property
    def text(self) -> str:
        return (
            f"This NVIDIA Container Toolkit ({self.version}) lets an image become root of the machine (CVE-2025-23266)."
        )


@dataclass(frozen=True)
class GpusByVariable(Problem):
    code = "problem.gpus_by_variable"
    text = "Containers that others start on this engine can take any GPU by setting a variable."
    fix = f"Set {RUNC_CONFIG}"


# --- the machine --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongClock(Problem):
    code = "problem.wrong_clock"
    fix = "Synchronise it by NTP (timedatectl set-ntp true, or chrony)."
    ahead_seconds: int
    """Negative when it is behind."""

    @property
    def text(self) -> str:
        side = "ahead of" if self.ahead_seconds > 0 else "behind"
        return f"The clock of this machine is {abs(self.ahead_seconds)} s {side} the portal's: times in logs are wrong."


DISK_USES = {
    "agent": "files of jobs",
    "cache": "environments",
    "engine": "images of the engine",
}
"""What an agent has on a disk: its own files (AGENT_HOME), SCHEDULEARN_CACHE, and the folder of the Docker Engine."""
SEE_FULL_DISK = "See docs/operations/disk.md, “A node's disk is full”."


def named_uses(uses: tuple[str, ...]) -> str:
    """Return what is on a disk, in words."""
    *others, last = [DISK_USES.get(use, use) for use in uses] or ["files of jobs"]
    return f"{', '.join(others)} and {last}" if others else last


@dataclass(frozen=True)
class SmallDisk(Problem):
    code = "problem.small_disk"
    fix = f"Make room there before it is full: then this node gets no new jobs, and those that run fail to write. {SEE_FULL_DISK}"
    free_gib: float
    folder: str
    uses: tuple[str, ...] = ("agent",)

    @property
    def text(self) -> str:
        return f"Only {self.free_gib:.1f} GiB are free on the disk with {named_uses(self.uses)} ({self.folder})."


@dataclass(frozen=True)
class FullDisk(Problem):
    code = "problem.full_disk"
    blocking = True
    fix = f"Make room there: the node then gets jobs again by itself. {SEE_FULL_DISK}"
    free_mib: int
    folder: str
    uses: tuple[str, ...] = ("agent",)

    @property
    def text(self) -> str:
        return f"The disk with {named_uses(self.uses)} is full: {self.free_mib} MiB are free ({self.folder})."


@dataclass(frozen=True)
class FoldersSetAside(Problem):
    """A restored backup has given out numbers again, so folders of these numbers belong to other jobs."""

    code = "problem.folders_set_aside"
    fix = (
        "They are deleted 30 days after they were set aside. Copy what is needed, or delete them now. "
        "See docs/operations/backup.md, “After a restored backup”."
    )
    count: int
    first: tuple[str, ...]
    """The first of them."""

    @classmethod
    def among(cls, folders: tuple[str, ...]) -> "FoldersSetAside":
        return cls(len(folders), folders[:MAX_NAMED])

    @property
    def text(self) -> str:
        rest = self.count - len(self.first)
        more = f" and {rest} more" if rest > 0 else ""
        folders = "A folder" if self.count == 1 else f"{self.count} folders"
        named = ", ".join(self.first)
        return f"{folders} with files of jobs that the portal does not know: {named}{more}. No job gets them."


# --- the firewall -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirewallNotRoot(Problem):
    code = "problem.firewall_not_root"
    text = f"{REACH_MACHINE}the agent is not root and cannot block them in the firewall."
    rule: str

    @property
    def fix(self) -> str:
        return run_once_as_root(self.rule)


@dataclass(frozen=True)
class FirewallMissing(Problem):
    code = "problem.firewall_missing"
    text = f"{REACH_MACHINE}iptables is not installed."
    fix = DEBIAN_IPTABLES


@dataclass(frozen=True)
class FirewallRefused(Problem):
    code = "problem.firewall_refused"
    error: str
    rule: str

    @property
    def text(self) -> str:
        return f"{REACH_MACHINE}iptables refused the rule ({self.error})."

    @property
    def fix(self) -> str:
        return run_once_as_root(self.rule)


def run_once_as_root(rule: str) -> str:
    return f"Run once as root: iptables -I {rule} (and make your firewall keep the rule), or run the agent as root."


# --- jobs over several nodes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OverlayNotRoot(Problem):
    code = "problem.overlay_not_root"
    text = f"{CANNOT_SPAN}the agent is not root."
    fix = "Run the agent as root."


@dataclass(frozen=True)
class OverlayProgramMissing(Problem):
    code = "problem.overlay_program_missing"
    fix = "Debian: apt-get install iproute2 iptables."
    program: str

    @property
    def text(self) -> str:
        return f"{CANNOT_SPAN}{self.program} is not installed."


@dataclass(frozen=True)
class OverlayTaken(Problem):
    code = "problem.overlay_taken"
    text = f"{CANNOT_SPAN}another agent on this machine makes their networks."
    fix = "Run one agent per machine."


@dataclass(frozen=True)
class OverlayFailed(Problem):
    code = "problem.overlay_failed"
    fix = SEE_OVERLAY
    error: str

    @property
    def text(self) -> str:
        return f"{CANNOT_SPAN}{self.error}"


@dataclass(frozen=True)
class SmallPackets(Problem):
    code = "problem.small_packets"
    fix = SEE_OVERLAY
    interface: str
    bytes: int

    @property
    def text(self) -> str:
        return f"{CANNOT_SPAN}{self.interface} takes packets of {self.bytes} bytes, not 1,500."


@dataclass(frozen=True)
class ForeignAddress(Problem):
    code = "problem.foreign_address"
    fix = SEE_OVERLAY
    address: str

    @property
    def text(self) -> str:
        return f"{CANNOT_SPAN}{self.address} is not an address of this machine."


@dataclass(frozen=True)
class NetworksFailed(Problem):
    """The networks of the present jobs could not be set up."""

    code = "problem.networks_failed"
    fix = SEE_OVERLAY
    error: Message

    @property
    def text(self) -> str:
        return self.error.text


# --- confinement by bubblewrap --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobsSeeEachOther(Problem):
    code = "problem.jobs_see_each_other"
    text = "Jobs run inside bubblewrap, but they see the processes of this machine and can end those of your user."
    fix = (
        "This system refuses a new /proc, as in a container or under ProtectKernelTunables= and ProtectProc= of systemd. Start "
        "the agent without these."
    )


class Unconfined(Problem):
    """Jobs run as ordinary processes. The subclasses know how to confine them."""

    text = "Jobs run as ordinary processes of this machine: they can read and change everything you can."

    @property
    def advice(self) -> str:
        """What is needed for bubblewrap; empty where it does not exist."""
        return ""

    @property
    def fix(self) -> str:
        return " ".join(filter(None, (self.advice, HOW_TO_SHARE)))


@dataclass(frozen=True)
class CannotConfine(Unconfined):
    code = "problem.cannot_confine"


@dataclass(frozen=True)
class ConfinementOff(Unconfined):
    code = "problem.confinement_off"
    advice = "To confine them, start the agent without SCHEDULEARN_CONFINE=no."


@dataclass(frozen=True)
class NoBubblewrap(Unconfined):
    code = "problem.no_bubblewrap"
    advice = INSTALL_BUBBLEWRAP


@dataclass(frozen=True)
class NoUserNamespaces(Unconfined):
    """A kernel setting forbids user namespaces; ``value`` allows them."""

    code = "problem.no_user_namespaces"
    setting: str
    value: str

    @property
    def advice(self) -> str:
        return (
            "Bubblewrap needs user namespaces. Allow them "
            f"(sudo sysctl -w {self.setting}={self.value}) and restart the agent."
        )


@dataclass(frozen=True)
class BubblewrapRefuses(Unconfined):
    code = "problem.bubblewrap_refuses"
    error: str

    @property
    def advice(self) -> str:
        return f"Bubblewrap is installed but does not work here ({self.error}). Restart the agent when that is solved."
