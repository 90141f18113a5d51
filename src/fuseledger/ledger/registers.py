"""Registers per thread: what is live in a thread at once, and what compilers make of it.

A block's tiles lie in the registers of its threads, each tile rounded up to powers of two as
compilers of tiles hold it. The amounts below are mechanisms: accumulators, values in flight,
loads and their addresses, operands on their way to the matrix unit. What a register of each costs
is fitted per kind of compiler on the sweep of `benchmarks/register_sweep.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from math import prod, sqrt
from pathlib import Path

import msgspec
from msgspec import Struct

from fuseledger.devices import Device
from fuseledger.graph.op import Access, Op
from fuseledger.ledger.kernel import Pipeline
from fuseledger.ledger.live_values import (
    Loop,
    Part,
    Parts,
    Values,
    bits_of,
    load_of,
    side_of,
)
from fuseledger.ledger.matrix_units import Chain, Share, product_unit, share_of_warp
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import WARP_THREADS
from fuseledger.ledger.products import Products, Regions

FIT = Path(__file__).parent / "register_fit.json"
LEAST = 4
"""Fewest registers a kernel is given."""

AMOUNTS = (
    "base", "tensors", "shifted", "reduces", "special", "axes",
    "held", "stored", "words", "words_special", "words_across", "vectors",
    "unrolled", "live", "live_special", "tile", "root", "root_work", "heavy",
    "few", "few_special", "few_work", "divides", "branches", "branched",
    "products", "fragments", "operand_words", "operand_vectors", "ahead", "fed",
    "made", "made_whole", "sides", "accumulators", "wide",
    "beyond_held", "beyond_live", "beyond_live_special", "beyond_heavy",
)  # fmt: skip
"""What the model adds up, in this order; see `_Weights` and `RegisterModel`."""
LOOPS = (
    "fragments", "sides", "made", "made_whole", "operand_words", "operand_vectors", "ahead", "fed",
)  # fmt: skip
"""Amounts of products' loops, of which one is at work at a time. `fragments`, `sides`: √(rows ×
columns) of what a warp has of a tile, and rows + columns. `made`: words of operands that the kernel
makes, step by step or held whole. `operand_words`, `operand_vectors`: what a thread loads of a
step, and in how many loads; `ahead`: the words again where those of the next step are on their way
(through registers on AMD). `fed`: words at the matrix unit: every warp has all of its rows and
columns."""
FULL = 32.0
"""Registers of a thread where an SM keeps all the threads it can (65,536 of 2,048 threads): up to
there values hide behind what a thread needs anyway, beyond they add to it."""
FEW = 8.0
"""Elements of a thread up to which every one of them costs what the first ones do."""
FEW_AT_ONCE = 4.0
"""Elements of a thread of which all temporaries are live at once."""
PAIR = 2.0
"""Elements of a thread whose temporaries of a function of many steps are live at once."""


class Block(Struct):
    """What a block holds under one schedule, before it is dealt to threads."""

    sizes: list[int]
    """Elements of each distinct part, as compilers round them up."""
    sides: list[tuple[int, int]]
    """Per product: rows and columns of its tile."""
    together: list[tuple[int, ...]]
    """Products whose accumulators live at once."""
    operands: list[tuple[int, int]]
    """Per operand that a product loads: elements of one step, and its place among the nest's."""
    made: list[tuple[int, int, bool, float]]
    """Per operand that is made in the kernel: its product, its side there (0: rows), whether it is
    held whole, and the 32-bit words of what the matrix unit is given at once."""
    axes: int
    """Axes that are tiled by more than one element."""
    loop: Loop | None
    """Where there are no products."""
    is_piped: bool
    """Whether operands of the next step are loaded while one is multiplied."""


class _Operand(Struct, frozen=True):
    """One read of an external tensor by a product, step by step."""

    product: int
    side: int
    """0: its rows, 1: its columns."""
    words: float
    vectors: float


class RegisterModel:
    """The registers of one nest's kernels on one device."""

    def __init__(self, nest: Nest, device: Device, products: Products, parts: Parts) -> None:
        self._nest = nest
        self._arch = device.arch
        self._products = products
        self._tiled = [name for name in nest.open_axes if name not in nest.split_axes]
        positions = [each.position for each in products.each]
        self._operands = [
            _operand(nest, nest.ops[i], access, k, side)
            for k, i in enumerate(positions)
            for side, access in enumerate(nest.ops[i].reads[:2])
            if access.tensor in nest.external
        ]
        self._made = [self._made_operands(parts, owning=owning) for owning in (False, True)]
        self._batch = frozenset(
            name
            for i in positions
            for left, right in [nest.ops[i].reads[:2]]
            for name in nest.ops[i].kept
            if name in left.axes and name in right.axes
        )
        """Axes of both operands of a product: a block takes its tile of them one by one."""
        self._parts = parts
        self._values = Values(nest, parts, frozenset(positions), owning=True)
        self._fits = _fits(fitted_arch(device.arch))
        self._weights: dict[tuple[str, bool], _Weights] = {}
        self._points: dict[tuple[bool, int], list[int]] = {}
        """Of the loop that each of the values is in, by the bytes of a step."""

    def _made_operands(
        self, parts: Parts, *, owning: bool
    ) -> list[tuple[int, int, bool, Part, float]]:
        """(product, side, whether it is held whole, its tile without the steps along the reduced
        axes, words of an element) of operands that the kernel makes."""
        nest = self._nest
        carried = nest.carried.values() if owning else ()
        whole = frozenset[str]().union(*carried)  # a product takes at once what is held whole
        found: list[tuple[int, int, bool, Part, float]] = []
        for k, product in enumerate(self._products.each):
            op = nest.ops[product.position]
            left, right = op.reads[:2]
            for access, other, side in ((left, right, 0), (right, left, 1)):
                if access.tensor in nest.external:
                    continue
                own = [n for n in op.kept if n in access.axes and n not in other.axes]
                is_whole = not whole.isdisjoint(op.reduces)
                depth = [name for name in op.sizes if name in op.reduces] if is_whole else []
                part = parts.part(product.position, (*own, *depth), whole)
                found.append((k, side, is_whole, part, bits_of(nest, access.tensor) / 32))
        return found

    @cached_property
    def _walking(self) -> Values:
        """The values where carried tensors are walked twice and not held."""
        if not self._nest.carried:
            return self._values
        return Values(self._nest, self._parts, self._values.products, owning=False)

    def block(
        self, regions: Regions, tiles: Mapping[str, int], *, owning: bool, pipeline: Pipeline
    ) -> Block:
        """What a block holds; `owning`, where carried tensors are held and not walked twice."""
        if any(tiles.get(name, 1) > 1 for name in self._batch):
            ones = dict.fromkeys(self._batch, 1)
            regions = {i: {**region, **ones} for i, region in regions.items()}
        values, products = self._values if owning else self._walking, self._products
        step_bytes = pipeline.step_bytes
        points = self._points.get((owning, step_bytes))
        if points is None:
            points = [products.points(part, step_bytes) for part in values.parts]
            self._points[owning, step_bytes] = points
        sizes = values.sizes(regions, points)
        sides = [
            (side_of(rows), side_of(columns))
            for rows, columns in products.sides(regions, step_bytes)
        ]
        operands: list[tuple[int, int]] = []
        for k, each in enumerate(self._operands):
            step = products.each[each.product].steps[step_bytes]
            operands.append((sides[each.product][each.side] * step, k))
        made: list[tuple[int, int, bool, float]] = []
        for k, side, is_whole, part, words in self._made[owning]:
            step = 1 if is_whole else products.each[k].steps[step_bytes]
            held = products.points(part, step_bytes)
            elements = part.elements(regions[part.position], held)
            made.append((k, side, is_whole, words * step * elements))
        axes = 0
        for name in self._tiled:
            axes += tiles.get(name, 1) > 1
        return Block(
            sizes, sides, products.together[step_bytes], operands, made, axes,
            values.loop(regions, sizes), pipeline.stages > 1,
        )  # fmt: skip

    def needed(self, block: Block, warps: int, *, owning: bool) -> int:
        """Registers that a thread would use if there were no limit."""
        unit = self.unit(block, warps)
        weights = self._weights.get((unit, owning))
        if weights is None:
            weights = self._weights[unit, owning] = self.weights(self._fits[unit], owning=owning)
        return max(LEAST, round(self.total(weights, block, warps)))

    def amounts(self, block: Block, warps: int, *, owning: bool) -> list[float]:
        """The figures of `AMOUNTS`, for one thread of so many warps."""
        ones = [[float(i == k) for i in range(len(AMOUNTS))] for k in range(len(AMOUNTS))]
        return [self.total(self.weights(one, owning=owning), block, warps) for one in ones]

    def weights(self, fit: Sequence[float], *, owning: bool) -> _Weights:
        """What the fit makes of every part of this nest."""
        return _Weights.of(self._values if owning else self._walking, fit)

    def total(self, weights: _Weights, block: Block, warps: int) -> float:
        """What the amounts of a thread add up to."""
        threads = warps * WARP_THREADS
        each = [size / threads if size > threads else 1.0 for size in block.sizes]
        tile = max(each)
        dealt = self._dealt(block, warps)
        own = [share.rows * share.columns / share.lanes for share in dealt]
        accumulators = max([sum([own[k] for k in alive]) for alive in block.together], default=0.0)
        found = weights.fixed + weights.axes * block.axes + weights.tile * tile
        found += weights.accumulators * accumulators
        if block.loop is not None and weights.unrolled:
            more = block.loop.unrolled(threads) - 1
            found += more * sum([words * each[k] for k, words in weights.unrolled])
        found += weights.root * sqrt(tile) + weights.few * (tile if tile < FEW else FEW)
        found += weights.few_work * (tile if tile < FEW_AT_ONCE else FEW_AT_ONCE)
        found += weights.pair * (tile if tile < PAIR else PAIR)
        for weight, elements in zip(weights.parts, each, strict=True):
            found += weight * elements
        if weights.live or weights.beyond_live:
            live = max([sum([each[k] for k in together]) for together in weights.together])
            found += weights.live * live
            free = FULL + accumulators
            if live > free:
                found += weights.beyond_live * (live - free)
        if weights.beyond_held:
            held = sum([each[k] for k in weights.held])
            if held > FULL:
                found += weights.beyond_held * (held - FULL)
        if weights.heavy * tile > FULL:
            found += weights.beyond_heavy * (weights.heavy * tile - FULL)
        for weight, amount in zip(weights.loops, self._loops(block, dealt, threads), strict=True):
            found += weight * amount
        return found

    def _dealt(self, block: Block, warps: int) -> list[Share]:
        """What a warp has of each product's tile."""
        found: list[Share] = []
        for k, (rows, columns) in enumerate(block.sides):
            tail, chain = self._products.tails[k], None
            if tail is not None:
                chain = Chain(*block.sides[tail], is_last=tail == k)
            unit = product_unit(self._arch, self._products.each[k].dtype, rows, columns, warps)
            found.append(share_of_warp(unit, rows, columns, warps, chain))
        return found

    def _loops(self, block: Block, dealt: list[Share], threads: int) -> list[float]:
        """The amounts of `LOOPS`, of the loop that has most of each."""
        found = [dict.fromkeys(LOOPS, 0.0) for _ in dealt]
        tails = self._products.tails
        loop = [found[k if tail is None else tail] for k, tail in enumerate(tails)]
        per_lane: list[tuple[float, float]] = []
        """Of a product's rows and columns, the share that a lane has."""
        for (rows, columns), share, own in zip(block.sides, dealt, loop, strict=True):
            own["fragments"] += sqrt(share.rows * share.columns)
            own["sides"] += share.rows + share.columns
            lanes = share.lanes
            per_lane.append((share.rows / rows / lanes, share.columns / columns / lanes))
        for k, side, is_whole, words in block.made:
            loop[k]["made_whole" if is_whole else "made"] += words * per_lane[k][side]
        for elements, number in block.operands:
            operand = self._operands[number]
            own = loop[operand.product]
            each = elements / threads if elements > threads else 1.0
            own["operand_words"] += operand.words * each
            own["operand_vectors"] += operand.vectors * each
            own["ahead"] += operand.words * each * block.is_piped
            own["fed"] += operand.words * elements * per_lane[operand.product][operand.side]
        return [max([own[name] for own in found], default=0.0) for name in LOOPS]

    def unit(self, block: Block, warps: int) -> str:
        """What the fit is of: the largest product's unit, else `stream`, `reduce`, `norm`, or
        `unrolled`: compilers fill registers with further steps of a short loop."""
        if not block.sides:
            loop = block.loop
            is_unrolled = loop is not None and loop.unrolled(warps * WARP_THREADS) > 1
            return "unrolled" if is_unrolled else self._values.kind
        k = max(range(len(block.sides)), key=lambda k: prod(block.sides[k]))
        return product_unit(self._arch, self._products.each[k].dtype, *block.sides[k], warps)


class _Weights(Struct, frozen=True):
    """A fit, added up for each part of one nest."""

    fixed: float
    axes: float
    tile: float
    """Of the largest tile's elements in a thread."""
    root: float
    """Of its square root: how far ahead a compiler schedules grows more slowly than the tile."""
    few: float
    """Of the same elements, up to `FEW`."""
    few_work: float
    """Of the FLOPs of their points, up to `FEW_AT_ONCE`."""
    pair: float
    """Of points that take a quotient or branch, up to `PAIR`."""
    parts: tuple[float, ...]
    unrolled: tuple[tuple[int, float], ...]
    """Of loads of the in-block loop, for each further step that is computed at once."""
    live: float
    """Of the values that are live at once."""
    beyond_live: float
    """Of those beyond `FULL` and what the accumulators take in the loop before."""
    together: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    beyond_held: float
    """Of accumulators and owned tensors beyond `FULL`."""
    heavy: float
    """√(FLOPs) of a point of the largest tile, and what its temporaries beyond `FULL` cost."""
    beyond_heavy: float
    loops: tuple[float, ...]
    """Of `LOOPS`."""
    accumulators: float
    """Of all that are alive in a product's loop."""

    @staticmethod
    def of(values: Values, fit: Sequence[float]) -> _Weights:
        """The weights of a nest's values."""
        cost = dict(zip(AMOUNTS, fit, strict=True))
        reduces, special = values.reduces, values.special
        parts = [0.0] * len(values.parts)
        for k in values.held:
            parts[k] += cost["held"]
        for k, words in values.stored:
            parts[k] += cost["stored"] * words
        word = cost["words_special" if special else "words"]
        for load in values.loads:
            parts[load.part] += word * load.words + cost["vectors"] * load.vectors
            parts[load.part] += cost["words_across"] * load.across
        return _Weights(
            fixed=cost["base"]
            + cost["tensors"] * values.tensors
            + cost["shifted"] * values.shifted
            + cost["reduces"] * reduces
            + cost["special"] * special
            + cost["products"] * len(values.products),
            axes=cost["axes"],
            tile=cost["tile"]
            + cost["heavy"] * values.heavy
            + cost["wide"] * values.wide
            + cost["branched"] * values.branches,
            pair=cost["divides"] * values.divides + cost["branches"] * values.branches,
            root=cost["root"] + cost["root_work"] * values.heavy**2,
            few_work=cost["few_work"] * values.heavy**2,
            few=cost["few_special" if special else "few"],
            parts=tuple(parts),
            unrolled=tuple(
                (load.part, cost["unrolled"] * load.words)
                for load in values.loads
                if cost["unrolled"] and load.part in values.looped
            ),
            live=cost["live_special" if special else "live"],
            beyond_live=cost["beyond_live_special" if special else "beyond_live"],
            together=values.together,
            held=tuple(values.held),
            beyond_held=cost["beyond_held"],
            heavy=values.heavy,
            beyond_heavy=cost["beyond_heavy"],
            loops=tuple(cost[name] for name in LOOPS),
            accumulators=cost["accumulators"],
        )


_NONE: frozenset[str] = frozenset()


def _operand(nest: Nest, op: Op, access: Access, product: int, side: int) -> _Operand:
    words, vectors = load_of(nest, access)
    if access.index[-1].axis in op.reduces and len(op.reduces) > 1:  # flattened: short runs
        words, vectors = max(1.0, words), 1.0
    return _Operand(product, side, words, vectors)


def fitted_arch(arch: str) -> str:
    """The architecture of the sweep that is nearest: the newest one that is not newer."""
    if arch.startswith("gfx"):
        return "gfx942"
    number = int("".join(c for c in arch if c.isdigit()) or 80)
    return f"sm_{max([n for n in (80, 90, 100, 120) if n <= number], default=80)}"


@cache
def _fits(arch: str) -> dict[str, tuple[float, ...]]:
    """Unit → what a register of each of `AMOUNTS` costs."""
    table: dict[str, dict[str, float]] = msgspec.json.decode(FIT.read_bytes())["fits"][arch]
    return {unit: tuple(fit.get(name, 0.0) for name in AMOUNTS) for unit, fit in table.items()}
