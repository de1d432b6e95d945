"""Connects ssh to a host through the sandbox's HTTP proxy: ``python connect.py HOST PORT``, as its ProxyCommand.

Only the standard library is used, and nothing of ours: it runs on whatever Python a sandbox has, 3.11 or newer.
"""

import os
import socket
import sys
import threading

CHUNK_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
SECONDS = 60.0


def open_tunnel(host: str, port: str) -> socket.socket:
    """Return a connection to a host through the proxy. Raises OSError."""
    proxy = os.environ["HTTPS_PROXY"].rpartition("/")[2]
    name, _, number = proxy.partition(":")
    tunnel = socket.create_connection((name, int(number)), SECONDS)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    tunnel.sendall(f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n\r\n".encode("ascii"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # one byte at a time: what follows belongs to ssh
        byte = tunnel.recv(1)
        if not byte or len(head) > MAX_HEAD_BYTES:
            raise OSError("the proxy closed the connection")
        head += byte
    status = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if status[1:2] != ["200"]:
        raise OSError("the proxy answered " + " ".join(status[1:]))
    tunnel.settimeout(None)
    return tunnel


def send_input(tunnel: socket.socket) -> None:
    while True:
        data = os.read(0, CHUNK_BYTES)
        if not data:
            break
        tunnel.sendall(data)
    tunnel.shutdown(socket.SHUT_WR)


def main() -> int:
    try:
        tunnel = open_tunnel(sys.argv[1], sys.argv[2])
    except OSError as error:
        sys.stderr.write(f"connect: {error}\n")
        return 1
    threading.Thread(target=send_input, args=(tunnel,), daemon=True).start()
    try:
        while True:
            data = tunnel.recv(CHUNK_BYTES)
            if not data:
                return 0
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
