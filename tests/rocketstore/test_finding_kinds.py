"""What verify finds has a kind, as the findings of a queue store have."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.findings import Kind
from rocketstore.verify import verify
from tests.rocketstore.support import TINY, open_tiny


def harm(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("file", "needle", "kind"),
    [
        ("commitlog/*", b"body 3", Kind.CHECKSUM),
        ("consumequeue/t/0/*", None, Kind.MISMATCH),
        ("index/*", None, Kind.MISMATCH),
    ],
)
def test_kinds(tmp_path: Path, file: str, needle: bytes | None, kind: Kind) -> None:
    with open_tiny(tmp_path) as store:
        for number in range(6):
            store.put("t", b"body %d" % number, keys=f"k{number}", queue_id=0)
    assert verify(tmp_path, **TINY) == []
    [path] = sorted(tmp_path.glob(file))[:1]
    data = path.read_bytes()
    at = data.index(needle) if needle else data.rindex(data.rstrip(b"\0")[-4:])
    harm(path, at, bytes(byte ^ 0x11 for byte in data[at : at + 1]))
    assert {one.kind for one in verify(tmp_path, **TINY)} == {kind}
