"""Hypothesis strategies and Erlang spellings that several test modules share."""

from __future__ import annotations

from hypothesis import strategies as st

from qindex.format.rabbitmq.table_format import Field, Table
from qindex.format.rabbitmq.term_format import Atom, Term

atoms = st.text(max_size=12).map(Atom)
finite = st.floats(allow_nan=False, allow_infinity=False)
integers = st.one_of(
    st.integers(min_value=-300, max_value=300),
    st.integers(min_value=-(1 << 70), max_value=1 << 70),
    st.integers(min_value=1 << 2030, max_value=1 << 2060),
)
scalars: st.SearchStrategy[Term] = st.one_of(atoms, integers, finite, st.binary(max_size=20))
keys = st.one_of(atoms, st.binary(max_size=8))
terms: st.SearchStrategy[Term] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.lists(st.integers(0, 255), max_size=8),
    ),
    max_leaves=20,
)


def _integer_fields(tag: str, bits: int, *, signed: bool) -> st.SearchStrategy[Field]:
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    return st.builds(Field, st.just(tag), st.integers(low, high))


names = st.text(max_size=10)
_leaves: st.SearchStrategy[Field] = st.one_of(
    _integer_fields("b", 8, signed=True),
    _integer_fields("B", 8, signed=False),
    _integer_fields("s", 16, signed=True),
    _integer_fields("u", 16, signed=False),
    _integer_fields("I", 32, signed=True),
    _integer_fields("i", 32, signed=False),
    _integer_fields("l", 64, signed=True),
    _integer_fields("T", 64, signed=False),
    st.builds(Field, st.just("f"), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.builds(Field, st.just("d"), finite),
    st.builds(Field, st.just("t"), st.booleans()),
    st.builds(
        Field, st.just("D"), st.tuples(st.integers(0, 255), st.integers(-(1 << 31), (1 << 31) - 1))
    ),
    st.builds(Field, st.sampled_from("Sx"), st.binary(max_size=20)),
    st.just(Field("V", None)),
)


def _tables(inner: st.SearchStrategy[Field]) -> st.SearchStrategy[Table]:
    return st.lists(st.tuples(names, inner), max_size=4).map(tuple)


fields: st.SearchStrategy[Field] = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(Field, st.just("F"), _tables(inner)),
        st.builds(Field, st.just("A"), st.lists(inner, max_size=4).map(tuple)),
    ),
    max_leaves=12,
)
tables: st.SearchStrategy[Table] = _tables(fields)
"""Every type but ``L``, which a node reads as ``l``."""
