from __future__ import annotations

import re

import pytest

from fuseledger.graph.scalar import BRANCHES, DIVIDES
from fuseledger.triton.functions import HELPERS, TEMPLATES


def _text(function: str) -> str:
    """A function's template with the helpers that it calls."""
    text, called = TEMPLATES[function], set[str]()
    while more := {h for h in HELPERS if h not in called and re.search(rf"(?<![\w.]){h}\(", text)}:
        called |= more
        text += "".join(HELPERS[name] for name in more)
    return text


@pytest.mark.parametrize("function", sorted(TEMPLATES))
def test_the_tables_of_long_functions_say_what_is_emitted(function: str) -> None:
    """A function divides where its code has a quotient or a sigmoid, and branches where it has a
    logarithm to base e, an error function, a sine or a cosine."""
    text = _text(function)
    assert (function in DIVIDES) == (" / " in text or "sigmoid" in text)
    assert (function in BRANCHES) == bool(re.search(r"tl\.(log|erf|sin|cos)\(", text))
