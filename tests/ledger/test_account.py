"""Figures in words."""

from __future__ import annotations

import pytest

from fuseledger.ledger.account import (
    format_bytes,
    format_count,
    format_flops,
    format_kib,
    format_time,
)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (8192, "8.2 kB"),
        (33_554_432, "33.6 MB"),
        (2_147_500_000, "2.1 GB"),
        (3e12, "3.0 TB"),
        (-67_108_864, "-67.1 MB"),
    ],
)
def test_bytes_are_decimal(count: float, words: str):
    """Traffic is quoted in powers of ten, as datasheets quote bandwidth."""
    assert format_bytes(count) == words


@pytest.mark.parametrize(
    ("count", "words"), [(131_072, "128 KB"), (65_792, "64.2 KB"), (0, "0 KB")]
)
def test_on_chip_bytes_are_binary(count: float, words: str):
    """Shared memory is quoted in powers of two, as its limits are."""
    assert format_kib(count) == words


@pytest.mark.parametrize(
    ("time_us", "words"),
    [
        (1.234, "1.23 µs"),
        (14.906, "14.9 µs"),
        (999.9, "999.9 µs"),
        (3450.0, "3.45 ms"),
        (2.5e6, "2.5 s"),
    ],
)
def test_times_have_three_digits(time_us: float, words: str):
    """Microseconds become milliseconds at a thousand, seconds at a million."""
    assert format_time(time_us) == words


@pytest.mark.parametrize(
    ("flops", "words"),
    [(8.81e8, "0.881 GFLOP"), (9.994e11, "999 GFLOP"), (9.996e11, "1 TFLOP"), (1.8e16, "18 PFLOP")],
)
def test_work_has_three_digits(flops: float, words: str):
    """The next unit where three digits would round to a thousand."""
    assert format_flops(flops) == words


def test_counts_have_separators():
    """A grid of 163,840 blocks is readable."""
    assert format_count(163_840) == "163,840"
