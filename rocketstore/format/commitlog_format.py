"""The CommitLog record of RocketMQ 4.9.3: pure functions over bytes.

Source of the format: RocketMQ 4.9.3, checked against its classes byte by byte. All integers are
big-endian, signed. ``B`` and ``S`` are 8 bytes (an IPv4 address and its port) or 20 (IPv6)::

    offset     size  field
    0          4     size of the whole record
    4          4     magic 0xDAA320A7
    8          4     CRC-32 of the body, top bit cleared; 0 for an empty body
    12         4     queue id
    16         4     flag (the user's own)
    20         8     queue offset: ordinal in the consume queue
    28         8     physical offset: where this record starts in the endless log
    36         4     sysFlag: 1 compressed, 2 multi-tags, 4|8 transaction, 16 born v6, 32 store v6
    40         8     born timestamp, ms
    48         B     born host: address, port as 4 bytes
    48+B       8     store timestamp, ms
    56+B       S     store host
    56+B+S     4     reconsume times
    60+B+S     8     prepared transaction offset
    68+B+S     4     body length
    72+B+S           body
               1     topic length, then the topic (UTF-8)
               2     properties length, then the properties

A file ends in a *blank record* that fills its rest: 4 bytes length, 4 bytes magic 0xCBD43194.
"""

from __future__ import annotations

import socket
import struct
from functools import lru_cache

from journal.arguments import encoded
from journal.errors import UsageError
from journal.memory.crc import crc32

MESSAGE_MAGIC = -626843481
BLANK_MAGIC = -875286124
BLANK_SIZE = 8
START = struct.Struct(">ii")
"""Size and magic of a record, blank ones included. They are stored last: until then zeros are
there, which end a log, and the bytes after them do not count."""
NO_START = bytes(START.size)
STAMP = struct.Struct(">iq8sq8siq")
"""A record with two IPv4 hosts from its sysFlag to the prepared transaction offset."""
COMMON_FIELDS = (
    ("size", ">i4"),
    ("magic", ">i4"),
    ("crc", ">i4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born", ">i8"),
)
"""The fields at the start of each record, before its first host: names, and types as numpy has
them."""
FIXED_SIZE = 91
"""Bytes of a record with two IPv4 hosts besides body, topic and properties."""

TRANSACTION_MASK = 12
COMMIT = 8
ROLLBACK = 12
V6_BORN = 16
V6_STORE = 32

HEADERS = tuple(
    struct.Struct(f">iiiiiqqiq{born}sq{store}siqi") for store in (8, 20) for born in (8, 20)
)
"""The record up to its body, by ``(sysFlag >> 4) & 3``."""

BODY_LENGTH_AT = tuple(header.size - 4 for header in HEADERS)

_TOPIC_MAX = 127


def file_name(start: int) -> str:
    """Name of the CommitLog or ConsumeQueue file that starts at this offset: 20 digits."""
    return f"{start:020d}"


def body_crc(body: bytes) -> int:
    """CRC-32 of the body without its top bit; 0 if it is empty."""
    return crc32(body) & 0x7FFFFFFF


def blank_record(rest: int) -> bytes:
    """The blank record that fills the last ``rest`` bytes of a file."""
    return START.pack(rest, BLANK_MAGIC)


def encode_record(
    *,
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    offset: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytes:
    """One whole record. Hosts as :func:`host_bytes` gives them; the v6 bits follow from them."""
    sys_flag = with_host_bits(sys_flag, born_host, store_host)
    header = HEADERS[(sys_flag >> 4) & 3]
    return b"".join(
        (
            header.pack(
                header.size + len(body) + 3 + len(topic) + len(properties),
                MESSAGE_MAGIC,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                offset,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                len(body),
            ),
            body,
            bytes((len(topic),)),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def with_host_bits(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """The sysFlag with the bits for IPv6 hosts set where the hosts are."""
    if len(born_host) == 20:
        sys_flag |= V6_BORN
    if len(store_host) == 20:
        sys_flag |= V6_STORE
    return sys_flag


def encode_topic(topic: str) -> bytes:
    """Check a topic and give its bytes. Raises :class:`UsageError` naming the limit of 127."""
    if not topic:
        raise UsageError("the topic is empty")
    data = encoded(topic, "the topic")
    if len(data) > _TOPIC_MAX:
        raise UsageError(f"topic of {len(data)} bytes: the limit is {_TOPIC_MAX}")
    if b"\0" in data or b"/" in data or data in (b".", b".."):
        raise UsageError(f"topic {topic!r}: it must be usable as a directory name")
    return data


def host_bytes(host: str | bytes | tuple[str, int]) -> bytes:
    """A host as the record keeps it: 8 or 20 bytes. Takes these, ``"ip:port"`` or ``(ip, port)``.

    Raises :class:`UsageError` for a name that is not an address or a port out of range.
    """
    if isinstance(host, bytes):
        if len(host) not in (8, 20):
            raise UsageError(f"host of {len(host)} bytes: 8 (IPv4) or 20 (IPv6) are right")
        return host
    return encode_host(host)


@lru_cache(maxsize=1024)
def encode_host(host: str | tuple[str, int]) -> bytes:
    """:func:`host_bytes` of a text or a pair, remembered."""
    if isinstance(host, str):
        address, _, port_text = host.rpartition(":")
        if not port_text.isdigit():
            raise UsageError(f"host {host!r}: address:port is right")
        port = int(port_text)
    else:
        address, port = host
    address = address.strip("[]")
    if not 0 <= port <= 0x7FFFFFFF:
        raise UsageError(f"host {host!r}: the port is out of range")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        packed = socket.inet_pton(family, address)
    except OSError as error:
        raise UsageError(f"host {host!r}: not an IPv4 or IPv6 address") from error
    return packed + port.to_bytes(4, "big")


def format_host(data: bytes) -> str:
    """``"ip:port"`` of a host field; IPv6 addresses are in brackets."""
    port = int.from_bytes(data[-4:], "big", signed=True)
    if len(data) == 8:
        return f"{socket.inet_ntop(socket.AF_INET, data[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, data[:16])}]:{port}"


def message_id(store_host: bytes, offset: int) -> str:
    """RocketMQ's offset message id: store host and offset in upper-case hex, 32 or 56 digits."""
    return store_host.hex().upper() + offset.to_bytes(8, "big").hex().upper()


def parse_message_id(text: str) -> tuple[bytes, int]:
    """Store host and physical offset of a message id. Raises :class:`UsageError`."""
    if len(text) not in (32, 56):
        raise UsageError(f"message id of {len(text)} characters: 32 or 56 are right")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"message id {text!r}: not hexadecimal") from error
    if 2 * len(data) != len(text):
        raise UsageError(f"message id {text!r}: it holds spaces")
    return data[:-8], int.from_bytes(data[-8:], "big")
