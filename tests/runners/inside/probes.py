"""Runs inside a job's container: tries what a job must not be able to do, and writes what came of it.

Standard library only. Each probe is a function that returns when the forbidden thing worked and raises OSError (or
RefusedError) when it did not. The result is a JSON object: name -> "refused: ..." or "OPEN".
"""

import ctypes
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

SYSCALLS = {
    "x86_64": {
        "ptrace": 101,
        "pivot_root": 155,
        "chroot": 161,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "reboot": 169,
        "sethostname": 170,
        "iopl": 172,
        "init_module": 175,
        "quotactl": 179,
        "kexec_load": 246,
        "add_key": 248,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "open_by_handle_at": 304,
        "setns": 308,
        "bpf": 321,
        "userfaultfd": 323,
        "clone": 56,
        "mknod": 133,
        "syslog": 103,
        "process_vm_readv": 310,
    },
    "aarch64": {
        "ptrace": 117,
        "pivot_root": 41,
        "chroot": 51,
        "acct": 89,
        "settimeofday": 170,
        "mount": 40,
        "umount2": 39,
        "swapon": 224,
        "reboot": 142,
        "sethostname": 161,
        "init_module": 105,
        "quotactl": 60,
        "kexec_load": 104,
        "add_key": 217,
        "keyctl": 219,
        "unshare": 97,
        "perf_event_open": 241,
        "open_by_handle_at": 265,
        "setns": 268,
        "bpf": 280,
        "userfaultfd": 282,
        "syslog": 116,
    },
}[platform.machine()]
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000
SECONDS = 2
libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    pass


def syscall(name: str, *args: int | bytes) -> int:
    if name not in SYSCALLS:
        raise RefusedError("this processor has no such call")
    result = libc.syscall(SYSCALLS[name], *[arg if isinstance(arg, bytes) else ctypes.c_long(arg) for arg in args])
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def write(path: str, text: str = "1") -> None:
    with open(path, "w") as file:
        file.write(text)


def read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def connect(host: str, port: int) -> None:
    socket.create_connection((host, port), SECONDS).close()


def in_child(call: Callable[[], object]) -> None:
    """Some calls would change this process."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except (OSError, RefusedError):
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        raise RefusedError("refused in a child")


def exists(*paths: str) -> None:
    if not any(os.path.exists(path) for path in paths):
        raise RefusedError("not there")


def becomes_root(program: list[str]) -> None:
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    if result.stdout.strip() != "0":
        raise RefusedError(result.stdout.strip() or result.stderr.strip()[-80:])


def status_line(name: str) -> str:
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))


def has_capabilities() -> None:
    if all(int(status_line(name), 16) == 0 for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")):
        raise RefusedError("none")


def may_gain_privileges() -> None:
    if status_line("NoNewPrivs") == "1" and status_line("Seccomp") == "2":
        raise RefusedError("no_new_privs and seccomp are on")


def sees_other_processes() -> None:
    own = {pid for pid in os.listdir("/proc") if pid.isdecimal()}
    if len(own) <= 2:
        raise RefusedError(f"sees {len(own)} processes")


def sees_devices() -> None:
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm", "mqueue", "core"}
    extra = set(os.listdir("/dev")) - allowed - {"fd", "stdin", "stdout", "stderr"}
    if not extra:
        raise RefusedError("only the harmless ones")


def has_another_interface() -> None:
    """Loopback and, with a ring, the attempt's own."""
    names = {name for _, name in socket.if_nameindex()}
    if names <= {"lo", "eth0"}:
        raise RefusedError(f"only {sorted(names)}")


def raw(family: int, kind: int, protocol: int = 0) -> None:
    socket.socket(family, kind, protocol).close()


def fills(path: str, mib: int) -> None:
    block = b"\0" * 2**20
    try:
        with open(path, "wb") as file:
            for _ in range(mib):
                file.write(block)
            file.flush()
    finally:
        os.unlink(path)


def probes(settings: dict[str, object]) -> dict[str, Callable[[], object]]:
    null = b"none\0"
    found: dict[str, Callable[[], object]] = {
        "mount a tmpfs": lambda: syscall("mount", null, b"/mnt\0", b"tmpfs\0", 0, 0),
        "remount / writable": lambda: syscall("mount", null, b"/\0", b"none\0", 32, 0),
        "remount control writable": lambda: syscall("mount", null, b"/run/schedulearn/control\0", null, 32 | 4096, 0),
        "unmount /proc": lambda: syscall("umount2", b"/proc\0", 2),
        "new user namespace": lambda: in_child(lambda: syscall("unshare", CLONE_NEWUSER)),
        "new mount namespace": lambda: in_child(lambda: syscall("unshare", CLONE_NEWNS)),
        "new network namespace": lambda: in_child(lambda: syscall("unshare", CLONE_NEWNET)),
        "new process namespace": lambda: in_child(lambda: syscall("unshare", CLONE_NEWPID)),
        "enter another namespace": lambda: syscall("setns", os.open("/proc/self/ns/net", os.O_RDONLY), CLONE_NEWNET),
        "pivot_root": lambda: syscall("pivot_root", b"/tmp\0", b"/tmp\0"),
        "chroot": lambda: in_child(lambda: os.chroot("/tmp")),
        "make a block device": lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)),
        "make a memory device": lambda: os.mknod("/tmp/mem", 0o20600, os.makedev(1, 1)),
        "raw socket": lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "packet socket": lambda: raw(socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
        "kernel key": lambda: syscall("add_key", b"user\0", b"x\0", b"y", 1, -3),
        "kernel keyring": lambda: syscall("keyctl", 0, -3, 1),
        "bpf": lambda: syscall("bpf", 0, 0, 0),
        "kexec": lambda: syscall("kexec_load", 0, 0, 0, 0),
        "load a module": lambda: syscall("init_module", 0, 0, b"\0"),
        "reboot": lambda: syscall("reboot", 0xFEE1DEAD, 672274793, 0, 0),
        "set the host's name": lambda: syscall("sethostname", b"evil", 4),
        "set the clock": lambda: syscall("settimeofday", b"\0" * 16, 0),
        "process accounting": lambda: syscall("acct", b"/tmp/acct\0"),
        "swap on": lambda: syscall("swapon", b"/tmp/swap\0", 0),
        "disk quotas": lambda: syscall("quotactl", 0x800001, b"/dev/vda\0", 0, 0),
        "input and output ports": lambda: syscall("iopl", 3),
        "watch performance of everybody": lambda: syscall("perf_event_open", b"\0" * 128, -1, 0, -1, 0),
        "open by handle (the old way out)": lambda: syscall("open_by_handle_at", -100, b"\0" * 64, 0),
        "catch page faults": lambda: syscall("userfaultfd", 0),
        "read the kernel's messages": lambda: syscall("syslog", 3, b"\0" * 64, 64),
        "trace process 1": lambda: syscall("ptrace", 16, int(str(settings.get("victim", 4_000_000))), 0, 0),
        "be root": lambda: os.setuid(0),
        "be root's group": lambda: os.setgid(0),
        "be root by a setuid program": lambda: becomes_root(
            ["/usr/local/bin/python-as-root", "-c", "import os; print(os.geteuid())"]
        ),
        "capabilities": has_capabilities,
        "gain privileges": may_gain_privileges,
        "greater priority": lambda: os.nice(-5),
        "core files": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
        "real-time scheduling": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "write to /": lambda: write("/evil"),
        "write to /usr": lambda: write("/usr/bin/evil"),
        "write to /etc/passwd": lambda: write("/etc/passwd"),
        "write over the supervisor": lambda: write("/opt/schedulearn/runners/launch/supervisor.py"),
        "write to control": lambda: write("/run/schedulearn/control/lease"),
        "core_pattern": lambda: write("/proc/sys/kernel/core_pattern", "|/tmp/x"),
        "ip_forward": lambda: write("/proc/sys/net/ipv4/ip_forward"),
        "sysrq": lambda: write("/proc/sysrq-trigger", "b"),
        "uevent_helper": lambda: write("/sys/kernel/uevent_helper", "/tmp/x"),
        "cgroup release_agent": lambda: write("/sys/fs/cgroup/memory/release_agent", "/tmp/x"),
        "cgroup limit": lambda: write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1"),
        "cgroup 2 limit": lambda: write("/sys/fs/cgroup/memory.max", "max"),
        "kernel memory": lambda: read("/proc/kcore"),
        "/dev/mem": lambda: read("/dev/mem"),
        "/dev/kmsg": lambda: read("/dev/kmsg"),
        "passwords": lambda: read("/etc/shadow"),
        "devices": sees_devices,
        "other processes": sees_other_processes,
        "docker.sock": lambda: exists("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"),
        "another network interface": has_another_interface,
        "metadata address": lambda: connect("169.254.169.254", 80),
        "the Internet by number": lambda: connect("1.1.1.1", 53),
        "the Internet by name": lambda: socket.getaddrinfo("example.org", 80),
        "more /tmp than allowed": lambda: fills("/tmp/big", int(str(settings.get("tmp_mib", 16))) + 1),
        "more /dev/shm than allowed": lambda: fills("/dev/shm/big", int(str(settings.get("shm_mib", 64))) + 1),
    }
    for name, (host, port) in settings.get("connect", {}).items():  # type: ignore[attr-defined]
        found[name] = lambda host=host, port=port: connect(host, port)  # type: ignore[misc]
    return found


def attempt(probe: Callable[[], object]) -> str:
    try:
        probe()
    except (OSError, RefusedError, ValueError) as error:
        return f"refused: {error}"
    return "OPEN"


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with open("/workspace/settings.json") as file:
        settings = json.load(file)
    only = settings.get("only")
    answers = {name: attempt(probe) for name, probe in probes(settings).items() if only is None or name in only}
    with open("/outputs/answers.json", "w") as file:
        json.dump({"answers": answers, "user": [os.getuid(), os.getgid(), os.getgroups()]}, file)


if __name__ == "__main__":
    main()
    sys.exit(0)
