"""Protocol Buffers by hand: what a client that knows only field numbers sends and reads."""
import struct


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def block(number, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(data)) + data


def fixed64(number, value):
    return varint(number << 3 | 1) + struct.pack('<Q', value)


def floats(first, *values):
    """Write floats in fields `first`, `first` + 1, …"""
    return b''.join(varint(first + i << 3 | 5) + struct.pack('<f', v)
                    for i, v in enumerate(values))


def read(data):
    """Values of a message by field number: bytes, or the integer of a number's bits."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            value = number()
        else:
            size = number() if kind == 2 else {1: 8, 5: 4}[kind]
            value, at = data[at:at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def as_float(data):
    return struct.unpack('<f', data)[0]


def as_integer(data):
    return struct.unpack('<Q', data)[0]
