"""Values of the commands' options, as click callbacks: sizes, factors and figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

INT_MAX = 10**12


class Count(click.IntRange):
    """A whole number within bounds, called so where it is none."""

    name = "whole number"


class Seconds(click.FloatRange):
    """A time limit in seconds; infinity is no limit, and NaN is refused."""

    name = "number of seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number within bounds."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}", param, ctx)
        return number


Callback = Callable[[click.Context, click.Parameter, str | None], Any]


def sizes(letters: str) -> Callback:
    """`4096x4096x4096`: one whole size from 1 up per letter; None stays None."""

    def convert(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        parts = text.lower().replace("×", "x").split("x")
        if len(parts) != len(letters) or not all(map(is_size, parts)):
            shape = "x".join(letters)
            raise click.BadParameter(f"{text!r}: expected {shape} in whole numbers from 1 up")
        return tuple(int(part) for part in parts)

    return convert


def factors(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """`4,8,16`: whole numbers from 1 up; none where the option is not given."""
    if text is None:
        return ()
    parts = text.split(",")
    if not all(map(is_size, parts)):
        raise click.BadParameter(f"{text!r}: expected whole numbers from 1 up, such as 4,8,16")
    return tuple(int(part) for part in parts)


def positive(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A finite number above 0; None stays None."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e18:
        raise click.BadParameter(f"{text!r}: expected a number above 0")
    return number


def is_size(text: str) -> bool:
    """Whether a text is a whole number from 1 to 10¹² in plain digits."""
    text = text.strip()
    return text.isascii() and text.isdigit() and len(text) <= 13 and 1 <= int(text) <= INT_MAX
