"""Terms as text, and the two files that hold them: a vhost's .config, and clean.dot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qindex.format.rabbitmq.clean_dot import message_store_clean, parse_clean_dot
from qindex.format.rabbitmq.recovery_terms import read_recovery_terms
from qindex.format.rabbitmq.term_format import Atom, Term, TermError
from qindex.format.rabbitmq.text_terms import MAX_DEPTH, parse_terms
from qindex.format.rabbitmq.vhost_config import (
    LEGACY_SEGMENT_ENTRY_COUNT,
    format_vhost_config,
    parse_vhost_config,
)
from tests.golden import SCENARIOS, golden


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        (b"", []),
        (b"%% nothing but a comment", []),
        (b" \t\r\n", []),
        (b"a.", [Atom("a")]),
        (b"a.b.", None),
        (b"a. b.", [Atom("a"), Atom("b")]),
        (b"a.%c\nb.%", [Atom("a"), Atom("b")]),
        (b"rabbit@host_1.", [Atom("rabbit@host_1")]),
        (b"'a b'. 'it\\'s'. ''.", [Atom("a b"), Atom("it's"), Atom("")]),
        (b"'\xc3\xa9'.", [Atom("é")]),
        (b"0. -7. +7. 123456789012345678901234567890.", [0, -7, 7, 123456789012345678901234567890]),
        (b"1.5. -2.25e300. 1.0E-2.", [1.5, -2.25e300, 0.01]),
        (b'"ab". "". "\\n\\x41\\101\\"%".', [[97, 98], [], [10, 65, 65, 34, 37]]),
        (b'<<>>. <<1,2,255>>. <<"text">>. <<1,"b",2>>.', [b"", b"\1\2\xff", b"text", b"\1b\2"]),
        (b"{}. {a}. { a , 1 }.", [(), (Atom("a"),), (Atom("a"), 1)]),
        (b"[]. [[],[1]].", [[], [[], [1]]]),
        (b"{a,[1,{b,<<2>>}]}.", [(Atom("a"), [1, (Atom("b"), b"\2")])]),
        (b"[1|2].", None),
        (b"<<256>>.", None),
        (b"<<-1>>.", None),
        (b"<<a>>.", None),
        (b"<<1.5>>.", None),
        (b"<<1:4>>.", None),
        (b"#{a=>1}.", None),
        (b"A.", None),
        (b"a", None),
        (b"a b.", None),
        (b"a..", None),
        (b".", None),
        (b"{a,}.", None),
        (b"{,a}.", None),
        (b"{a b}.", None),
        (b"{a.", None),
        (b"{a].", None),
        (b"}.", None),
        (b"'a.", None),
        (b'"a.', None),
        (b"1.0e9999.", None),
        (b"'\xff'.", None),
        (b"'" + b"a" * 256 + b"'.", None),
        (b"9" * 5000 + b".", None),
    ],
)
def test_text_terms(text: bytes, terms: list[Term] | None) -> None:
    if terms is None:
        with pytest.raises(TermError):
            parse_terms(text)
    else:
        read = parse_terms(text)
        assert read == terms
        assert [type(term) for term in read] == [type(term) for term in terms]


def test_an_error_says_where() -> None:
    with pytest.raises(TermError, match="at byte 3: ") as caught:
        parse_terms(b"{a,}.")
    assert caught.value.offset == 3


def test_nesting_is_read_up_to_the_limit() -> None:
    assert parse_terms(b"{" * MAX_DEPTH + b"}" * MAX_DEPTH + b".")
    for depth in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(TermError, match="nested more than"):
            parse_terms(b"[" * depth + b"]" * depth + b".")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", [b"'", b'"', b"'\\", b" ", b"%", b"%%\n ", b"<<", b"1", b"a", b"1."]
)
def test_long_nonsense_takes_linear_time(text: bytes) -> None:
    with pytest.raises(TermError):
        parse_terms(text * (1_000_000 // len(text)) + b"\n?")


def gives_terms_or_an_error(text: bytes) -> None:
    try:
        terms = parse_terms(text)
    except TermError:
        return
    assert len(terms) <= len(text)


@given(st.binary(max_size=80))
def test_any_bytes_give_terms_or_an_error(text: bytes) -> None:
    gives_terms_or_an_error(text)


@given(st.text(alphabet="{}[]<>,.\"'\\%ab19 \n", max_size=60))
def test_anything_of_the_right_letters_gives_terms_or_an_error(text: str) -> None:
    gives_terms_or_an_error(text.encode())


# --- .config -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2048, 16384])
def test_config_round_trip(count: int) -> None:
    assert parse_vhost_config(format_vhost_config(count)) == (count, None)


@pytest.mark.parametrize("name", SCENARIOS)
def test_config_of_a_real_node(name: str) -> None:
    raw = (golden(name).vhost_dir / ".config").read_bytes()
    count, fallback = parse_vhost_config(raw)
    assert (count, fallback) == (2048, None)
    assert format_vhost_config(count) == raw


def test_config_written_by_hand() -> None:
    assert parse_vhost_config(b"% mine\n{segment_entry_count,\n  4096}. %") == (4096, None)
    assert parse_vhost_config(b"{a,1}.\n{segment_entry_count,64}.")[0] == 64


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "missing"),
        (b"{segment_entry_count, 2048}", "unreadable"),
        (b"{segment_entry_count, 20", "unreadable"),
        (b"\x93\xff", "unreadable"),
    ],
)
def test_config_missing_or_unreadable_means_the_legacy_count(
    raw: bytes | None, reason: str
) -> None:
    count, fallback = parse_vhost_config(raw)
    assert count == LEGACY_SEGMENT_ENTRY_COUNT == 16384
    assert fallback is not None
    assert reason in fallback


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0\0",
        b"{other, 1}.",
        b"{segment_entry_count, 0}.",
        b"{segment_entry_count, 16385}.",
        b"{segment_entry_count, -1}.",
        b"{segment_entry_count, many}.",
        b"{segment_entry_count, 1.0}.",
        b"{segment_entry_count}.",
    ],
)
def test_config_that_is_sound_and_impossible_is_refused(raw: bytes) -> None:
    with pytest.raises(TermError, match="segment_entry_count"):
        parse_vhost_config(raw)


# --- clean.dot ---------------------------------------------------------------------------------

A, B = bytes(range(16)), bytes(16)


def dot(*refs: bytes, module: str = "rabbit_msg_store_ets_index") -> bytes:
    binaries = ",".join("<<" + ",".join(map(str, ref)) + ">>" for ref in refs)
    return f"{{client_refs,[{binaries}]}}.\n{{index_module,{module}}}.\n".encode()


def clean(
    raw: bytes | None,
    refs: list[bytes],
    *,
    summary: bool = True,
    index: bool = True,
    rdt: bool = False,
) -> str | None:
    return message_store_clean(raw, refs, has_file_summary=summary, has_index=index, has_rdt=rdt)


def test_clean_dot_is_read() -> None:
    parsed = parse_clean_dot(dot(A, B))
    assert parsed.client_refs == [B, A]
    assert parsed.refs == {A, B}
    assert parsed.index_module == "rabbit_msg_store_ets_index"
    assert parse_clean_dot(b"").client_refs == []
    assert parse_clean_dot(b'{client_refs,[<<"text">>]}.').refs == {b"text"}
    assert parse_clean_dot(b"{client_refs,[<<1>>]}. {client_refs,[<<2>>]}. x. {1}.").refs == {b"\1"}


@pytest.mark.parametrize(
    "raw",
    [
        b"{client_refs,[<<1>>]}",
        b"{client_refs,<<1>>}.",
        b"{client_refs,[1]}.",
        b"{index_module,1}.",
    ],
)
def test_malformed_clean_dot_is_refused(raw: bytes) -> None:
    with pytest.raises(TermError):
        parse_clean_dot(raw)
    assert clean(raw, []) is not None


def test_a_store_is_clean_when_both_sides_name_the_same_queues() -> None:
    assert clean(dot(A, B), [B, A]) is None
    assert clean(dot(), []) is None
    assert clean(dot(A, A), [A, A]) is None


def test_each_reason_against_a_clean_store() -> None:
    both = dot(A, B)
    assert clean(both, [A, B], rdt=True) == "a compaction was under way (.rdt file)"
    assert clean(None, [A, B]) == "clean.dot is missing"
    for missing in ("summary", "index"):
        assert "is missing" in str(clean(both, [A, B], **{missing: False}))
    assert "unreadable" in str(clean(both[:-3], [A, B]))
    assert "another index module" in str(clean(dot(A, module="other"), [A]))
    assert "another index module" in str(clean(bytes(200), []))
    for refs in ([A], [], [A, A], [A, B, B], [A, bytes([9] * 16)]):
        assert "different queues" in str(clean(both, refs))


@pytest.mark.parametrize("name", SCENARIOS)
def test_clean_dot_of_a_real_node(name: str) -> None:
    store = golden(name)
    persistent = store.vhost_dir / "msg_store_persistent"
    path = persistent / "clean.dot"
    terms = read_recovery_terms((store.vhost_dir / "recovery.dets").read_bytes()).queues
    refs = [queue.persistent_ref for queue in terms.values() if queue.persistent_ref]
    reason = clean(
        path.read_bytes() if path.exists() else None,
        refs,
        summary=(persistent / "file_summary.ets").exists(),
        index=(persistent / "msg_store_index.ets").exists(),
    )
    assert (reason is None) is store.clean_shutdown
    if store.clean_shutdown:
        assert refs
        assert len(refs) == len(terms)
