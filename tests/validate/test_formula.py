"""Formulas of families: arithmetic over named numbers."""

from __future__ import annotations

import pytest

from fuseledger.validate.formula import evaluate


def test_formulas_are_arithmetic() -> None:
    """Comparisons count 0 or 1, choices and rounding up are there, as families.md writes them."""
    assert evaluate("6+2*(s<4)+clone", {"s": 2, "clone": 1}) == 9
    assert evaluate("(4 if residual else 2)*s", {"residual": 0, "s": 2}) == 4
    assert evaluate("ceil(T/3)", {"T": 7}) == 3


def test_an_unknown_letter_is_named() -> None:
    """The caller counts the record by it."""
    with pytest.raises(NameError, match="q"):
        evaluate("q+1", {})


@pytest.mark.parametrize("formula", ["open(1)", "__import__('os')", "a.b", "[1]", "'x'"])
def test_what_is_no_arithmetic_is_refused(formula: str) -> None:
    """Nothing is run."""
    with pytest.raises(ValueError, match="no arithmetic"):
        evaluate(formula, {"a": 1.0})
