"""Which addresses count as one when requests are counted."""

import ipaddress

IPV6_PREFIX_BITS = 64
"""Bits of an IPv6 address that are compared: one machine can use any address with the same prefix."""


def counted_address(address: str) -> str:
    """Return what an address is counted as: an IPv6 address by its network; "elsewhere" for what is no address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "elsewhere"
    return str(ipaddress.ip_network((ip, IPV6_PREFIX_BITS), strict=False) if ip.version == 6 else ip)
