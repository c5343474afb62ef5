"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest

import pytest

from qindex.format.rabbitmq import names, properties_format


@pytest.mark.parametrize("module", [names, properties_format])
def test_examples(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted >= 2
    assert result.failed == 0
