"""Which address and interface a container's ranks use."""

import fcntl
import ipaddress
import socket
import struct

SIOCGIFADDR = 0x8915


def own_address_towards(host: str, port: int) -> str:
    """Our address on the way to a peer; nothing is sent. Raises OSError when there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def own_address_in(driver_host: str, port: int) -> str:
    """Our address in the network of a ring, whether or not its driver is there already. Raises OSError without one.

    A name of the driver's is known only while it runs; a container that knows no other has one network, where its own
    name has an address.
    """
    try:
        ipaddress.ip_address(driver_host)
    except ValueError:
        return socket.gethostbyname(socket.gethostname())
    return own_address_towards(driver_host, port)


def interface_of(address: str) -> str:
    """Name of the network interface that holds an IPv4 address. Raises OSError when none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    if address.startswith("127."):
        return "lo"
    raise OSError(f"no network interface holds {address}")


def bind_address(driver_host: str) -> str:
    """Where the driver listens: only at its name's address, if that is its own; else at all of the container's."""
    try:
        address = socket.gethostbyname(driver_host)
        with socket.socket() as probe:
            probe.bind((address, 0))
        return address
    except OSError:
        return ""


def own_name_resolves() -> bool:
    """Gloo looks up the machine's own name for each process set, whatever interface it was told to use."""
    try:
        socket.gethostbyname(socket.gethostname())
        return True
    except OSError:
        return False
