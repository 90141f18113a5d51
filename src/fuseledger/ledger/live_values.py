"""What is live in a block: values of a nest's kernels as tiles, and what each is to a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache
from math import prod, sqrt
from typing import Protocol

from msgspec import Struct

from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import BRANCHES, DIVIDES, SPECIAL, Call, walk, work
from fuseledger.graph.tensor import DTYPE_BITS
from fuseledger.ledger.matrix_units import SIDE
from fuseledger.ledger.nest import Nest

VECTOR_BITS = 128
"""The widest load of a thread."""
LOOP_POINTS = 64
"""Points of the in-block loops that a block works on at once, where nothing must be whole and no
product takes fewer."""
LOOP_LANES = 1024
"""Elements that a loop of a kernel without products walks at once, where there are so many."""
TAPS = 64
"""Up to so many reduced points that no tensor holds side by side are walked one by one."""
LOOP_INSTRUCTIONS = 16
"""Instructions of a loop beside those of its elements: addresses, the test of its end, a reduction
over the threads of a row."""
UNROLLED_WHOLE, UNROLLED_PARTLY = 300, 150
"""Most instructions to which a loop is unrolled for its whole length, and in part (LLVM's
`UnrollThreshold` at O3 and `UnrollPartialThreshold`)."""
UNROLLED_STEPS, LEAST_ROOM = 4, 3
"""Steps of a loop that is unrolled in part, and for how many there must be room. ptxas, which does
it on NVIDIA, publishes no rule: so it is in its listings."""


class Part(Protocol):
    """A part of a tensor in a block: see `footprint.py`."""

    @property
    def position(self) -> int:
        """Of the op that works on it."""
        ...

    @property
    def looped(self) -> tuple[str, ...]:
        """Axes along which it is walked in a loop."""
        ...

    def elements(self, region: Mapping[str, int], points: int = ...) -> int:
        """Elements of it in a block, where its loops together hold so many points at once."""
        ...

    def lanes(self, region: Mapping[str, int], points: int = ...) -> int:
        """The same as compilers of tiles round it up to powers of two: what is reduced, and the
        rest."""
        ...


class Parts(Protocol):
    """Makes parts of the tensors of one nest."""

    def part(self, position: int, axes: tuple[str, ...], whole: frozenset[str]) -> Part:
        """The part along `axes` of what an op works on, held whole along `whole`."""
        ...


class Load(Struct, frozen=True):
    """One read of an external tensor: what an element of it takes in a thread's registers."""

    part: int
    words: float
    """32-bit registers of its value: packed where neighbours are loaded together."""
    vectors: float
    """Loads, each of which has an address."""
    across: float
    """The words again, where they lie across the reduced axis: a thread sums several columns."""


class Loop(Struct, frozen=True):
    """The in-block loop of a kernel without products."""

    elements: int
    """Of a block in one step."""
    steps: float
    work: float
    """FLOPs of an element."""

    def unrolled(self, threads: int) -> float:
        """Steps that compilers compute at once in a block of so many threads."""
        size = max(1.0, self.elements / threads) * (self.work + 1) + LOOP_INSTRUCTIONS
        if size * self.steps <= UNROLLED_WHOLE:
            return self.steps
        room = min(UNROLLED_PARTLY / size, self.steps)
        return UNROLLED_STEPS if room >= LEAST_ROOM else 1.0


class Values:
    """The values of a nest's kernels as tiles: parts, and what each is to a thread."""

    def __init__(self, nest: Nest, parts: Parts, products: Set[int], *, owning: bool) -> None:
        self.products = products
        self.parts: list[Part] = []
        self._places: dict[Part, int] = {}
        self.held: list[int] = []
        """Accumulators but those of products, and tensors that are owned whole."""
        self.stored: list[tuple[int, float]] = []
        """Results that are written, with the words of an element."""
        self.loads: list[Load] = []
        self.together: tuple[tuple[int, ...], ...] = ()
        """Values that are live at once, for each op at which they might be the most."""
        ops = nest.ops.values()
        self.tensors = len(nest.external) + len(nest.outputs)
        self.shifted = sum(x.axis is None for op in ops for read in op.reads for x in read.index)
        self.reduces = any(op.combine is not None and not op.is_contraction for op in ops)
        self.reduced = reduced = frozenset[str]().union(*(op.reduces for op in ops))
        tiles = any(
            op.combine is None and op.writes[0].tensor in nest.outputs and reduced & set(op.sizes)
            for op in ops
        )
        self.kind = ("norm" if tiles else "reduce") if self.reduces else "stream"
        """Without products: pointwise; results of reductions alone; or both."""
        self.divides = any(_calls(op, DIVIDES) for op in ops)
        """Whether a point takes a quotient: rounded correctly, it has a dozen temporaries."""
        self.branches = any(_calls(op, BRANCHES) for op in ops)
        """Whether a point's computation branches: all of a thread's points are live across it."""
        self.special = any(_calls(op, SPECIAL) for op in ops)
        """Whether a point takes a special function: its value is then kept in fp32."""
        self.heavy = sqrt(max([work(op.body)[0] for op in ops if op.body is not None], default=0))
        """√(FLOPs of a point's longest body): temporaries of elements that are computed at once."""
        self.wide = any(bits_of(nest, name) >= 32 for name in nest.external)
        """Whether something read fills registers as it is: nothing is packed by twos."""
        carried = nest.carried if owning else {}
        place: dict[str, int] = {}
        for i, op in nest.ops.items():
            accumulates = op.combine is not None and not op.scans
            for write in op.writes:
                whole = carried.get(write.tensor, _NONE)
                through = nest.held_through.get(write.tensor, _NONE)
                k = place[write.tensor] = self._add(parts.part(i, op.kept, whole | through))
                if (whole or through or accumulates) and i not in products:
                    self.held.append(k)
                if write.tensor in nest.outputs:
                    self.stored.append((k, bits_of(nest, write.tensor) / 32))
        for name, reads in nest.external.items():
            whole = carried.get(name, _NONE)
            seen: set[int] = set()
            for i, access in reads:
                if i in products and is_operand(nest, i, access):
                    continue
                op = nest.ops[i]
                k = self._add(self._loaded(parts, nest, i, access, whole))
                if k not in seen:
                    seen.add(k)
                    place.setdefault(name, k)
                    words, vectors = load_of(nest, access)
                    across = bool(op.reduces) and not op.reduces & set(access.axes[-1:])
                    self.loads.append(Load(k, words, vectors, words * across))
            if whole and seen:
                self.held.append(place[name])
        self._live(nest, products, place)
        walked = frozenset[str]().union(*(part.looped for part in self.parts))
        self.looped = [k for k, part in enumerate(self.parts) if part.looped and not products]
        self._loop_work = sum([_flops(op) for op in ops if not walked.isdisjoint(op.sizes)])

    def loop(self, regions: Mapping[int, Mapping[str, int]], sizes: list[int]) -> Loop | None:
        """The in-block loop of a kernel without products, if there is one."""
        if not self.looped:
            return None
        k = max(self.looped, key=sizes.__getitem__)
        part = self.parts[k]
        region = regions[part.position]
        points = prod([region[n] for n in part.looped])
        if not points:
            return None
        rows = part.elements(region) / min(LOOP_POINTS, points)
        return Loop(sizes[k], max(1.0, rows * points / sizes[k]), self._loop_work)

    def sizes(self, regions: Mapping[int, Mapping[str, int]], points: Sequence[int]) -> list[int]:
        """Elements of every part in a block, as compilers of tiles round them up. `points`: of the
        loop that each part is in, where that is a product's; otherwise loops fill the lanes."""
        found: list[int] = []
        for part, step in zip(self.parts, points, strict=True):
            region = regions[part.position]
            if part.looped and not self.products:
                rows = part.lanes(region, 1)
                step = max(LOOP_POINTS, LOOP_LANES // rows)
            found.append(part.lanes(region, step))
        return found

    def _loaded(
        self, parts: Parts, nest: Nest, position: int, access: Access, whole: frozenset[str]
    ) -> Part:
        """The part of a tensor that an op loads."""
        op = nest.ops[position]
        all_rows = [n for n in op.sizes if n not in self.reduced] if self.reduced else op.kept[:-1]
        rows = tuple(name for name in all_rows if name in access.axes)
        axes = tuple(name for name in op.sizes if name in all_rows or name in access.axes)
        own, of_all = parts.part(position, access.axes, whole), parts.part(position, axes, whole)
        if _walks_taps(nest, position):
            own, of_all = _taps(own, op, access.axes), _taps(of_all, op, axes)
        if self.products or not rows or own == of_all:
            return own
        return _Rows(own, of_all, rows, own.position, own.looped)

    def _add(self, part: Part) -> int:
        k = self._places.setdefault(part, len(self.parts))
        if k == len(self.parts):
            self.parts.append(part)
        return k

    def _live(self, nest: Nest, products: Set[int], place: dict[str, int]) -> None:
        last = {read.tensor: i for i, op in nest.ops.items() for read in op.reads}
        live: set[str] = set()
        found: dict[tuple[int, ...], None] = {}
        for i, op in nest.ops.items():
            turned: set[str] = set()
            """What is read at other places than it was made at: live beside what it was."""
            for read in op.reads:
                if i in products and is_operand(nest, i, read):
                    continue
                live.add(read.tensor)
                if op.combine is None and read.tensor not in nest.external and _is_moved(read):
                    turned.add(read.tensor)
            live.update([write.tensor for write in op.writes])
            left = {name for name in live if last.get(name, -1) > i}
            if turned or len(left) < len(live):  # else the next op has all of it, and more
                found[tuple(sorted([place[name] for name in (*live, *turned)]))] = None
            live = left
        self.together = tuple(found)


class _Taps(Struct, frozen=True):
    """What a reduction reads tap by tap: compilers unroll the taps and load them all at once."""

    kept: tuple[str, ...]
    taps: int
    position: int
    looped: tuple[str, ...] = ()

    def elements(self, region: Mapping[str, int], points: int = LOOP_POINTS) -> int:
        """Elements of it in a block."""
        return prod([region[name] for name in self.kept]) * self.taps

    def lanes(self, region: Mapping[str, int], points: int = LOOP_POINTS) -> int:
        """The same, of a tile a tap."""
        return power_of_two(prod([region[name] for name in self.kept])) * self.taps


class _Rows(Struct, frozen=True):
    """A read of a kernel without products. Its tile has the rows of the block's in one: what varies
    along one of their axes is loaded for every row."""

    own: Part
    of_all: Part
    axes: tuple[str, ...]
    position: int
    looped: tuple[str, ...]

    def elements(self, region: Mapping[str, int], points: int = LOOP_POINTS) -> int:
        """Elements of it in a block."""
        return self._of(region).elements(region, points)

    def lanes(self, region: Mapping[str, int], points: int = LOOP_POINTS) -> int:
        """The same, rounded up."""
        return self._of(region).lanes(region, points)

    def _of(self, region: Mapping[str, int]) -> Part:
        return self.of_all if any(region[name] > 1 for name in self.axes) else self.own


_NONE: frozenset[str] = frozenset()


def _taps(part: Part, op: Op, axes: tuple[str, ...]) -> _Taps:
    kept = tuple(name for name in axes if name not in op.reduces)
    return _Taps(kept, prod(op.sizes[name] for name in axes if name in op.reduces), part.position)


def _is_moved(access: Access) -> bool:
    """Whether a tensor is read at other places than it was made at."""
    return any(index.axis is None and index.terms for index in access.index)


def _walks_taps(nest: Nest, position: int) -> bool:
    op = nest.ops[position]
    if op.combine is None or op.is_contraction or op.scans:
        return False
    if prod(op.sizes[name] for name in op.reduces) > TAPS:
        return False
    for access in op.reads:
        if access.index and access.tensor in nest.external:
            terms = access.index[-1].terms
            if len(terms) == 1 and terms[0][0] in op.reduces:
                return False
    return True


def power_of_two(elements: int) -> int:
    """The least that is not less."""
    return 1 << (elements - 1).bit_length()


@cache
def side_of(elements: int) -> int:
    """One side of a product's tile, as compilers of tiles round it up."""
    return max(SIDE, power_of_two(elements))


def bits_of(nest: Nest, tensor: str) -> int:
    """Bits of an element of a tensor."""
    return DTYPE_BITS[nest.graph.tensors[tensor].dtype]


def is_operand(nest: Nest, position: int, access: Access) -> bool:
    """Whether a product loads the tensor step by step."""
    return access.tensor in nest.external and access in nest.ops[position].reads[:2]


def load_of(nest: Nest, access: Access) -> tuple[float, float]:
    """(words, vectors) of an element: neighbours in memory share a load, others have their own."""
    bits = bits_of(nest, access.tensor)
    if not access.index or (access.index[-1].axis is not None and access.fill is None):
        return bits / 32, bits / VECTOR_BITS
    return max(1.0, bits / 32), 1.0


def _flops(op: Op) -> float:
    """FLOPs of a point of an op."""
    return (work(op.body)[0] if op.body is not None else 0) + (op.combine is not None)


def _calls(op: Op, functions: Set[str]) -> bool:
    """Whether a point takes one of the functions."""
    return op.body is not None and any(
        isinstance(each, Call) and each.function in functions for each in walk(op.body)
    )
