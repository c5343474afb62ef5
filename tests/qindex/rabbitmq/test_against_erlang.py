"""The codecs against Erlang itself, and the parser and generator of an installed RabbitMQ.

Skipped where there is none. One Erlang run answers all questions of a test.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qindex.format.rabbitmq.properties_format import (
    Properties,
    decode_properties,
    encode_properties,
    properties_of_record,
)
from qindex.format.rabbitmq.recovery_terms import QueueTerms, RecoveryTerms, read_recovery_terms
from qindex.format.rabbitmq.table_format import Field, PropertiesError, Table
from qindex.format.rabbitmq.term_format import Atom, Term, decode, encode
from qindex.format.rabbitmq.text_terms import parse_terms
from tests.qindex.rabbitmq.terms import tables, terms
from tests.rabbitmq_server import rabbitmq_or_skip

_Value = TypeVar("_Value")

ANSWERS = """\
#!/usr/bin/env escript
%% -*- erlang -*-
%%! -noinput +Bd -pa PARSER
main([In, Out]) ->
    {ok, Questions} = file:read_file(In),
    ok = file:write_file(Out, answers(Questions)).

answers(<<>>) -> [];
answers(<<Kind, Size:32, Question:Size/binary, Rest/binary>>) ->
    Answer = iolist_to_binary(answer(Kind, Question)),
    [<<(byte_size(Answer)):32>>, Answer | answers(Rest)].

answer($T, Term) -> term_to_binary(binary_to_term(Term));
answer($W, Term) -> io_lib:format("~w.~n", [binary_to_term(Term)]);
answer($P, Properties) ->
    try
        Record = rabbit_framing_amqp_0_9_1:decode_properties(60, Properties),
        [term_to_binary(Record), rabbit_framing_amqp_0_9_1:encode_properties(Record)]
    catch error:_ -> <<"refused">>
    end;
answer($D, Entries) ->
    File = "t.dets",
    {ok, Table} = dets:open_file(make_ref(), [{file, File}, {auto_save, infinity}]),
    [dets:insert(Table, Entry) || Entry <- binary_to_term(Entries)],
    ok = dets:close(Table),
    {ok, Written} = file:read_file(File),
    ok = file:delete(File),
    Written.
"""


@pytest.fixture(scope="module")
def erlang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = rabbitmq_or_skip()
    if shutil.which("escript") is None:
        pytest.skip("RabbitMQ is installed, but Erlang's escript is not on the PATH")
    (parser,) = home.glob("plugins/rabbit_common-*/ebin")
    script = tmp_path_factory.mktemp("erlang") / "answers"
    script.write_text(ANSWERS.replace("PARSER", str(parser)))
    return script


def ask(erlang: Path, questions: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Ask Erlang: one answer for each ``(kind, question)``."""
    into, out = erlang.parent / "questions", erlang.parent / "answers.out"
    into.write_bytes(b"".join(kind + struct.pack(">I", len(q)) + q for kind, q in questions))
    subprocess.run(
        ["escript", str(erlang), str(into), str(out)], check=True, timeout=60, cwd=erlang.parent
    )
    data = out.read_bytes()
    answers = []
    while data:
        (size,) = struct.unpack_from(">I", data)
        answers.append(data[4 : 4 + size])
        data = data[4 + size :]
    assert len(answers) == len(questions)
    return answers


def examples(strategy: st.SearchStrategy[_Value], count: int) -> list[_Value]:
    """Values that the strategy draws; all of them, for Erlang is asked but once."""
    drawn: list[_Value] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(strategy)
    def draw(value: _Value) -> None:
        drawn.append(value)

    draw()
    return drawn


def test_erlang_reads_our_terms_and_writes_them_the_same(erlang: Path) -> None:
    values = examples(terms, 400)
    answers = ask(erlang, [(b"T", encode(value)) for value in values])
    for value, answer in zip(values, answers, strict=True):
        again, end = decode(answer)
        assert again == value
        assert end == len(answer)
        assert encode(again) == answer  # not of ``value``: Erlang sorts the keys of maps


def test_erlang_writes_text_that_we_read(erlang: Path) -> None:
    values = [value for value in examples(terms, 300) if is_plain(value)]
    assert len(values) > 30
    answers = ask(erlang, [(b"W", encode(value)) for value in values])
    for value, answer in zip(values, answers, strict=True):
        assert parse_terms(answer) == [value]


def is_plain(value: Term) -> bool:
    """Of the kinds that are read as text: no map, no atom or integer of a size unheard of."""
    if isinstance(value, dict):
        return False
    if isinstance(value, str):
        return value.isascii() and value.isprintable()
    if isinstance(value, int):
        return abs(value) < 1 << 64
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    return True


short = st.none() | st.text(max_size=60)
octet = st.none() | st.integers(0, 255)
all_properties: st.SearchStrategy[Properties] = st.builds(
    Properties,
    *(short, short, st.none() | tables, octet, octet, short, short, short, short),
    st.none() | st.integers(0, (1 << 64) - 1),
    *(short, short, short, short),
)


def test_rabbitmq_reads_our_properties_and_writes_them_the_same(erlang: Path) -> None:
    values = examples(all_properties, 400)
    written = [encode_properties(value) for value in values]
    answers = ask(erlang, [(b"P", raw) for raw in written])
    for value, raw, answer in zip(values, written, answers, strict=True):
        record, end = decode(answer)
        assert properties_of_record(record) == value
        assert answer[end:] == raw


def damaged(raw: bytes, random_: random.Random) -> Iterator[bytes]:
    for _ in range(6):
        at = random_.randrange(len(raw))
        change = random_.choice(
            (b"", b"\0", bytes((random_.randrange(256),)), raw[at : at + 1] * 2)
        )
        yield raw[:at] + change + raw[at + 1 :]


def test_rabbitmq_and_we_refuse_the_same_properties(erlang: Path) -> None:
    random_ = random.Random(7)
    headers: list[Table] = examples(tables, 150)
    questions = [
        raw
        for fields in headers
        for raw in damaged(
            encode_properties(Properties(headers=fields, app_id="app", priority=3)), random_
        )
    ]
    refused = 0
    for raw, answer in zip(questions, ask(erlang, [(b"P", q) for q in questions]), strict=True):
        if answer == b"refused":
            refused += 1
            with pytest.raises(PropertiesError):
                decode_properties(raw)
            continue
        record, _end = decode(answer)
        ours = decode_properties(raw)
        assert properties_of_record(record) == dataclasses.replace(
            ours, headers=None if ours.headers is None else with_one_long(ours.headers)
        )
    assert 100 < refused < len(questions) - 100


def with_one_long(headers: Table) -> Table:
    """L made l: Erlang has one type for both."""
    return tuple((name, _with_one_long(one)) for name, one in headers)


def _with_one_long(one: Field) -> Field:
    if one.tag == "F":
        return Field("F", with_one_long(one.value))
    if one.tag == "A":
        return Field("A", tuple(_with_one_long(item) for item in one.value))
    return Field("l", one.value) if one.tag == "L" else one


def test_dets_tables_of_any_size(erlang: Path) -> None:
    random_ = random.Random(11)
    tables_of: list[dict[str, QueueTerms]] = []
    questions: list[tuple[bytes, bytes]] = []
    for count in (0, 1, 2, 40, 300, 3000):
        queues = {
            f"{random_.getrandbits(128):025X}": QueueTerms(
                segments={n: random_.randrange(5000) for n in range(random_.randrange(6))},
                next_seq_id=random_.getrandbits(40),
                next_deliver_seq_id=random_.getrandbits(20),
                persistent_ref=random_.randbytes(16),
                persistent_count=random_.getrandbits(20),
                persistent_bytes=random_.getrandbits(45),
            )
            for _ in range(count)
        }
        tables_of.append(queues)
        entries = [entry(name, terms_of) for name, terms_of in queues.items()]
        questions.append((b"D", encode(entries)))
    for queues, answer in zip(tables_of, ask(erlang, questions), strict=True):
        assert read_recovery_terms(answer) == RecoveryTerms(queues, [])


def entry(name: str, queue: QueueTerms) -> Term:
    pairs = [
        (key, list(value.items()) if isinstance(value, dict) else value)
        for key, value in (
            ("segments", queue.segments),
            ("next_seq_id", queue.next_seq_id),
            ("next_deliver_seq_id", queue.next_deliver_seq_id),
            ("persistent_ref", queue.persistent_ref),
            ("persistent_count", queue.persistent_count),
            ("persistent_bytes", queue.persistent_bytes),
        )
    ]
    return list(name.encode()), [(Atom(key), value) for key, value in pairs]
