"""A message's record without its body: it keeps key, headers and properties without loss.

Of our records the bytes up to the body, as they are on disk (:mod:`qindex.format.message_record`;
the checksum is of no use without the body, and is zero); of RabbitMQ's the record of the same
message with an empty body (:mod:`qindex.format.rabbitmq.record`): exchange, routing keys and
property bytes as the client sent them.
"""

from __future__ import annotations

from dataclasses import replace

from qindex.format import message_record as record_format
from qindex.format.message import Message
from qindex.format.rabbitmq.bridge import RabbitProperties, encode_rabbitmq, message_of
from qindex.format.rabbitmq.record import decode_message


def make_envelope(message: Message) -> bytes:
    """Return the envelope of a message that was read from a store."""
    properties = message.properties
    if not isinstance(properties, RabbitProperties):
        return record_format.encode_front(message)
    source = properties.source
    empty = Message(b"", message.key, message.headers, properties)
    return encode_rabbitmq(empty, source.vhost, source.msg_id, source.persistent)


def open_envelope(envelope: bytes, body: bytes) -> Message:
    """Return the message that an envelope and a body make.

    Raises :class:`journal.errors.StoreError` for bytes that are not an envelope, or of a body of
    another size.
    """
    if envelope[: len(record_format.MAGIC)] == record_format.MAGIC:
        return record_format.decode_record(envelope + body)
    return message_of(replace(decode_message(envelope), body=body))
