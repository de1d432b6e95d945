"""The address and the interface that a container's ranks use."""

import fcntl
import ipaddress
import socket
import struct

SIOCGIFADDR = 0x8915


def own_address_towards(host: str, port: int) -> str:
    """Return our address on the route to a peer; nothing is sent. Raises OSError when there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def own_address_in(driver_host: str, port: int) -> str:
    """Return our address in the attempt's network, whether or not the driver runs already. Raises OSError without one.

    The driver's name resolves only while it runs. A container that knows the driver by name has one network, in which its
    own name has an address.
    """
    try:
        ipaddress.ip_address(driver_host)
    except ValueError:
        return socket.gethostbyname(socket.gethostname())
    return own_address_towards(driver_host, port)


def interface_of(address: str) -> str:
    """Return the name of the network interface with an IPv4 address. Raises OSError when none has it."""
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
    """Return the address at which the driver listens: its name's, if that is its own; else empty, for all addresses."""
    try:
        address = socket.gethostbyname(driver_host)
        with socket.socket() as probe:
            probe.bind((address, 0))
        return address
    except OSError:
        return ""


def own_name_resolves() -> bool:
    """Whether the machine's own name resolves. Gloo looks it up for each process set, whatever interface it uses."""
    try:
        socket.gethostbyname(socket.gethostname())
        return True
    except OSError:
        return False
