"""The journal's bytes, held against the worked example of the module's text."""

from __future__ import annotations

import re

from journal import format as journal_format
from journal.format import ACK, DELIVER, MAX_SEQ_ID, pack_action, pack_publish

MSG_ID = bytes(range(16))


def test_worked_example() -> None:
    text = journal_format.__doc__ or ""
    example = text[text.index("58 bytes in all::") :].partition("::")[2]
    spelled = example.replace("<16 bytes id>", MSG_ID.hex()).replace("00*8", "00" * 8)
    expected = bytes.fromhex(re.sub(r"\s+", "", spelled))
    made = (
        pack_publish(5, True, MSG_ID, 0, 1, b"\x97\x01")
        + pack_action(DELIVER, 5)
        + pack_action(ACK, 5)
    )
    assert made == expected
    assert len(made) == 58


def test_every_field_stands_where_the_diagram_says() -> None:
    record = pack_publish(0x0102030405060708, False, MSG_ID, 0x1112131415161718, 0x21222324, b"abc")
    assert record[:8].hex() == "4102030405060708"
    assert record[8:24] == MSG_ID
    assert record[24:32].hex() == "1112131415161718"
    assert record[32:36].hex() == "21222324"
    assert record[36:40].hex() == "00000003"
    assert record[40:] == b"abc"


def test_highest_seq_id() -> None:
    assert pack_action(ACK, MAX_SEQ_ID) == b"\xff" * 8
    assert pack_action(DELIVER, MAX_SEQ_ID) == b"\xbf" + b"\xff" * 7
    assert pack_publish(MAX_SEQ_ID, True, MSG_ID, 0, 0, b"")[:8] == b"\x3f" + b"\xff" * 7
