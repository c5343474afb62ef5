"""Golden fixtures of RabbitMQ's queues of version 2: directories that nodes of 3.10.8, 4.0.5 and
4.3.6 left, and what they delivered from them (``tests/data/README.md``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden import DATA_DIR, VHOST_DIR_NAME, _fresh_copy, _unpack

FOLDER = "rabbitmq-v2"
SCENARIOS: tuple[str, ...] = tuple(
    sorted(
        path.name.removesuffix(".tar.xz")
        for path in (DATA_DIR / FOLDER).glob("*.tar.xz")
        if not path.name.startswith("t_")
    )
)
SYNTHETIC = "t_synthetic_v2"
RECORDED_AT = 1_795_160_000
"""Seconds since 1970: a time at which the nodes delivered; since then messages have expired."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message as the node delivered it; ``props`` as :mod:`tests.golden` has them."""

    sha16: str
    body_len: int
    redelivered: bool
    exchange: str
    routing_key: str
    props: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. ``versions``: the version of each queue that was asked for."""

    name: str
    vhost_dir: Path
    rabbitmq: str
    clean: bool
    delivered: dict[str, list[Delivered]]
    versions: dict[str, int]

    def copy(self, tmp_path: Path) -> Path:
        """Copy the vhost directory below ``tmp_path``; each call makes a fresh one."""
        return _fresh_copy(self.vhost_dir, tmp_path)


@dataclass(frozen=True, slots=True)
class Case:
    """One hand-made state. ``nodes``: what each node delivered, by version and queue:
    ``"<first 8 characters>..<length>"``, a trailing ``-`` means redelivered=false."""

    name: str
    vhost_dir: Path
    description: str
    nodes: dict[str, dict[str, list[str]]]

    def copy(self, tmp_path: Path) -> Path:
        """Copy the vhost directory below ``tmp_path``; each call makes a fresh one."""
        return _fresh_copy(self.vhost_dir, tmp_path)


@cache
def scenario(name: str) -> Scenario:
    """Give a scenario by its name, or by the part before its last word; ``KeyError`` for none."""
    chosen = next((one for one in SCENARIOS if one == name or one.startswith(name + "_")), None)
    if chosen is None:
        raise KeyError(name)
    directory = _unpack(f"{FOLDER}/{chosen}.tar.xz")
    truth = json.loads((directory / "truth.json").read_bytes())
    delivered = {name: list(_delivered(q, truth["kinds"])) for name, q in truth["queues"].items()}
    versions = {name: queue["version"] for name, queue in truth["queues"].items()}
    vhost = directory / VHOST_DIR_NAME
    clean = truth["clean_shutdown"]
    return Scenario(chosen, vhost, truth["rabbitmq"], clean, delivered, versions)


def _delivered(queue: dict[str, Any], kinds: list[Any]) -> Iterator[Delivered]:
    for at, (length, kind) in enumerate(zip(queue["body_len"], queue["kind"], strict=True)):
        sha16 = queue["sha16"][16 * at : 16 * at + 16]
        yield Delivered(sha16, length, queue["redelivered"][at] == "1", *kinds[kind])


@cache
def cases() -> dict[str, Case]:
    """Give all hand-made states by name."""
    directory = _unpack(f"{FOLDER}/{SYNTHETIC}.tar.xz")
    truth = json.loads((directory / "truth.json").read_bytes())
    return {
        name: Case(name, directory / name / VHOST_DIR_NAME, one["description"], one["nodes"])
        for name, one in truth.items()
    }
