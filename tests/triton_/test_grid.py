from __future__ import annotations

import re
from typing import Any

import pytest
from planned import planned

from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.triton.emit import emit_kernel

ROWS = re.compile(r"^    # gemm|^    # conv|^    (rows|m|n) = ", re.MULTILINE)


class _Language:
    """What the first lines of a kernel need of `triton.language`."""

    def __init__(self, number: int) -> None:
        self.number = number

    def program_id(self, axis: int) -> int:
        return self.number

    def cdiv(self, size: int, tile: int) -> int:
        return -(-size // tile)

    def swizzle2d(self, i: int, j: int, rows: int, columns: int, group: int) -> tuple[int, int]:
        """As Triton's, written anew: groups of rows, each column by column."""
        number = i * columns + j
        first = number // (group * columns) * group
        high = min(group, rows - first)
        number -= first * columns
        return first + number % high, number // high


def _positions(
    source: str, tiles: dict[str, int], in_flight: int | None
) -> list[tuple[dict[str, int], int]]:
    """Where each block of a kernel's grid is, by the lines that say so, and its part."""
    plan = planned(source)
    (ledger,) = plan.kernels
    axes = tuple((name, AxisSchedule("grid", tile)) for name, tile in tiles.items())
    kernel = Kernel(ops=ledger.kernel.ops, schedule=Schedule(axes=axes))
    emitted = emit_kernel(plan.graph, kernel, in_flight=in_flight)
    lines = emitted.source[emitted.source.index("):\n") + 3 :]
    lines = re.sub(r"^    ", "", lines[: ROWS.search(lines).start()], flags=re.MULTILINE)  # type: ignore[union-attr]
    found: list[Any] = []
    for number in range(emitted.blocks):
        scope: dict[str, Any] = {**emitted.constants, "tl": _Language(number)}
        exec(lines, scope)
        found.append({n: scope.get(f"pid_{n}", scope.get(n)) for n in tiles})
    return found


def _distinct(blocks: list[Any], names: tuple[str, ...]) -> int:
    return len({tuple(block[name] for name in names) for block in blocks})


@pytest.mark.parametrize(
    ("source", "tiles", "rows", "columns"),
    [
        ("gemm(1300,3000,64)", {"m": 32, "n": 32}, ("m",), ("n",)),
        ("gemm(96,8192,64)", {"m": 32, "n": 32}, ("m",), ("n",)),
        ("gemm(8192,96,64)", {"m": 32, "n": 32}, ("m",), ("n",)),
        ("conv(x[4,64,20,20],w[640,64,3,3],padding=1)", {"b": 1, "o": 16, "y": 2, "x": 16},
         ("b", "y", "x"), ("o",)),
        ("conv(x[4,64,80,80],w[64,64,3,3],padding=1)", {"b": 1, "o": 16, "y": 2, "x": 16},
         ("b", "y", "x"), ("o",)),
        ("x[3,1000,64] @ w[3,64,1000]", {"a": 1, "m": 16, "n": 16}, ("m",), ("n",)),
    ],
)  # fmt: skip
def test_blocks_that_run_at_once_fill_a_square(
    source: str, tiles: dict[str, int], rows: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    """Any 100 blocks in a row of a product's grid touch, on average, no more than 25 rows and
    columns of tiles together (a square has 10 + 10, and one that starts amid a group a few more),
    or a strip's 100 / its width where a side is shorter; and every block has a place of its own."""
    blocks = _positions(source, tiles, 100)
    assert _distinct(blocks, tuple(tiles)) == len(blocks)
    high, wide = _distinct(blocks, rows), _distinct(blocks, columns)
    side = min(10, high, wide)
    waves = [blocks[i : i + 100] for i in range(0, len(blocks) - 99, 100)]
    touched = [_distinct(wave, rows) + _distinct(wave, columns) for wave in waves]
    assert sum(touched) / len(touched) <= 1.25 * (side + 100 / side)
