"""Erlang terms as text, each closed by a full stop: the form of ``.config`` and ``clean.dot``.

What a node writes there, and what a person may have put in by hand::

    % a comment to the end of the line
    {segment_entry_count, 2048}.                    tuples, atoms, integers
    {client_refs,[<<173,186,14>>,<<"text">>]}.      lists, binaries as bytes or as text
    'Quoted atom'.  "a string".  -1.5e3.

Values are those of :mod:`qindex.format.rabbitmq.term_format` (a string is a list of integers, its
bytes as they are in the file). Not supported: maps, ``16#ff``, ``$c``, bit sizes in binaries; no
file that is read here has them.
"""

from __future__ import annotations

import re
from typing import Final

from qindex.format.rabbitmq.term_format import Atom, Term, TermError

MAX_DEPTH: Final = 32
"""Levels of nesting that are read; the files in question need three."""

_TOKEN = re.compile(
    rb"""
    (?P<skip>(?:[\x00-\x20]++|%[^\n]*+)++)
  | (?P<stop>\.(?=[\x00-\x20%]|\Z))
  | (?P<float>[+-]?[0-9]{1,400}\.[0-9]{1,400}(?:[eE][+-]?[0-9]{1,4})?)
  | (?P<integer>[+-]?[0-9]{1,4000})
  | (?P<atom>[a-z][A-Za-z0-9_@]*)
  | (?P<quoted>'(?:[^'\\]++|\\.)*+')
  | (?P<string>"(?:[^"\\]++|\\.)*+")
  | (?P<sign><<|>>|[{}\[\],])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {
    b"b": b"\b",
    b"d": b"\x7f",
    b"e": b"\x1b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"s": b" ",
    b"t": b"\t",
    b"v": b"\v",
}
_CLOSING: Final = {b"{": b"}", b"[": b"]", b"<<": b">>"}


def parse_terms(text: bytes) -> list[Term]:
    """Read all terms of ``text``. O(length). Raises :class:`TermError`, and nothing else."""
    terms: list[Term] = []
    reader = _Reader(text)
    while reader.kind != "end":
        terms.append(reader.term(0))
        reader.expect("stop", b".")
    return terms


class _Reader:
    """The text and one token of it: its kind, its bytes, and where it starts."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._next = 0
        self.at = 0
        self.kind = ""
        self.token = b""
        self.advance()

    def advance(self) -> None:
        """Go to the next token that is not a space or comment."""
        while True:
            self.at = self._next
            if self.at == len(self._text):
                self.kind, self.token = "end", b""
                return
            match = _TOKEN.match(self._text, self.at)
            if match is None:
                raise TermError("is not an Erlang term", self.at)
            self._next = match.end()
            if match.lastgroup != "skip":
                self.kind, self.token = str(match.lastgroup), match.group()
                return

    def expect(self, kind: str, token: bytes) -> None:
        """Go past this token, or raise."""
        if self.kind != kind or self.token != token:
            raise TermError(f"has no {token.decode()!r} where one belongs", self.at)
        self.advance()

    def term(self, depth: int) -> Term:
        """Read one term and go past it."""
        if depth > MAX_DEPTH:
            raise TermError(f"is nested more than {MAX_DEPTH} deep", self.at)
        kind, token, at = self.kind, self.token, self.at
        if kind == "sign" and token in _CLOSING:
            self.advance()
            items = self._items(_CLOSING[token], depth)
            if token == b"<<":
                return _binary(items, at)
            return tuple(items) if token == b"{" else items
        self.advance()
        if kind == "integer":
            return int(token)
        if kind == "atom":
            return Atom(token.decode("ascii"))
        if kind == "string":
            return list(_unescaped(token[1:-1]))
        if kind == "quoted":
            return _quoted(token, at)
        if kind == "float":
            return _float(token, at)
        raise TermError("has no term where one belongs", at)

    def _items(self, closing: bytes, depth: int) -> list[Term]:
        items: list[Term] = []
        while (self.kind, self.token) != ("sign", closing):
            if items:
                self.expect("sign", b",")
            items.append(self.term(depth + 1))
        self.advance()
        return items


def _binary(items: list[Term], at: int) -> bytes:
    """``<<1,2,"text">>``: bytes and strings of bytes, in any order."""
    out = bytearray()
    for item in items:
        if type(item) is int and 0 <= item <= 255:
            out.append(item)
        elif type(item) is list and all(type(byte) is int and 0 <= byte <= 255 for byte in item):
            out += bytes(item)
        else:
            raise TermError("is a binary of something else than bytes", at)
    return bytes(out)


def _quoted(token: bytes, at: int) -> Atom:
    try:
        text = _unescaped(token[1:-1]).decode("utf-8")
    except UnicodeDecodeError:
        raise TermError("is an atom that is not UTF-8", at) from None
    if len(text) > 255:
        raise TermError(f"is an atom of {len(text)} characters", at)
    return Atom(text)


def _float(token: bytes, at: int) -> float:
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise TermError("is a float that is too large", at)
    return value


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(_escape, text)


def _escape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, character = match.groups()
    if octal:
        return bytes((int(octal, 8) & 255,))
    if hexadecimal:
        return bytes((int(hexadecimal, 16),))
    return _ESCAPED.get(character, character)
