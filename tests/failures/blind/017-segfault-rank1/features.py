import ctypes


def native_checksum(address):
    """What our C library does with the address of a buffer."""
    return sum((ctypes.c_uint8 * 64).from_address(address))
