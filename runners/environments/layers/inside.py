"""Runs a command inside a sandbox: sets its limits and priority, and forwards a local port to the socket of the proxy outside.

``python inside.py LIMITS SOCKET COMMAND...`` with LIMITS as JSON ({"AS": bytes, ...}) and SOCKET a path, or empty for no
network. Only the standard library is used, and nothing of ours: it runs on whatever Python a sandbox has, 3.8 or newer.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time

CHUNK_BYTES = 256 * 1024
KILLED_FIRST = 500
"""Added to its badness where memory runs out on the whole machine, so that the kernel ends builds before jobs."""
TRIES, PAUSE_SECONDS = 10, 0.1
"""The kernel takes the niceness of a group ten times a second, from all users together."""


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, then end the target."""
    try:
        while True:
            data = source.recv(CHUNK_BYTES)
            if not data:
                break
            target.sendall(data)
    except OSError:
        pass
    for each in (source, target):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def forward(client: socket.socket, path: str) -> None:
    with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as proxy:
        try:
            proxy.connect(path)
        except OSError:
            return
        back = threading.Thread(target=pump, args=(proxy, client), daemon=True)
        back.start()
        pump(client, proxy)
        back.join()


def accept(listener: socket.socket, path: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=forward, args=(client, path), daemon=True).start()


def set_limits(limits: "dict[str, int]") -> None:
    for name, wanted in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        _, maximum = resource.getrlimit(kind)
        value = wanted if maximum == resource.RLIM_INFINITY else min(wanted, maximum)
        resource.setrlimit(kind, (value, value))


def set_priority() -> None:
    """Yield to the jobs of this machine. A sandbox is a session of its own, for which the kernel makes a group of processes with
    the usual niceness, whatever that of each process is."""
    write("/proc/self/oom_score_adj", KILLED_FIRST)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    for _ in range(TRIES if niceness > 0 else 0):
        if write("/proc/self/autogroup", niceness):
            break
        time.sleep(PAUSE_SECONDS)


def write(path: str, number: int) -> bool:
    """Return whether it need not be tried again."""
    try:
        with open(path, "w") as file:
            file.write(str(number))
    except BlockingIOError:
        return False
    except OSError:
        pass  # this kernel has no such groups
    return True


def main(limits: str, path: str, command: "list[str]") -> int:
    set_limits(json.loads(limits))
    set_priority()
    if not path:
        os.execvp(command[0], command)  # noqa: S606  the command is the argument of this program
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    threading.Thread(target=accept, args=(listener, path), daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    code = subprocess.call(command, env=dict(os.environ, **dict.fromkeys(names, address)))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
