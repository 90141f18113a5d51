"""Candidate kernels: convex sets of ops that share tensors, grown one step at a time.

Two growths. By ops: every connected convex set, and siblings that share an input. By units: an op
and the pointwise ops that only continue it count as one, so that an epilogue of any length is
within reach, and so that wide graphs are covered with fewer steps. Where windows of ops repeat
(equal layers) candidates are grown once and shifted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, field

from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.planner.bits import bits
from fuseledger.planner.merging import merge_pairs
from fuseledger.planner.partition import Reach
from fuseledger.planner.repeats import (
    SIBLINGS,
    WINDOW,
    is_widely_read,
    joins_many,
    representatives,
)
from fuseledger.planner.starting import Starting

Cost = Callable[[tuple[int, ...], float], float | None]
"""Cost of a set of ops as one kernel, or None where it is not usable. The second argument is a cost
that is of no interest: where one kernel costs no less, any figure between the two will do."""

MAX_OPS = 10
MAX_CANDIDATES = 50_000
KERNEL_OPS = 256
"""Most ops of a kernel of several units, and of a unit: to explain a kernel, each of its cuts is
priced, which is work by the square of its ops."""
EXHAUSTIVE = 600
"""Distinct structures up to which every convex set is grown: all of them of any nine ops."""
PER_STEP = 60
"""Beyond, distinct structures that each step of the growth by units may add."""
HOPELESS = 1.5
"""Beyond, sets that as one kernel cost so many times what their parts do are grown no further: what
is better than its parts holds no set that is much worse, but for what that set alone writes."""


def neighbours(graph: Graph) -> list[int]:
    """For each op a mask of those it shares an intermediate or an activation with.

    Siblings are readers that follow each other. Of very many readers of a tensor, or parts that an
    op joins, any few would make a candidate: only the first reader, and the last part, count.
    """
    near = [0] * len(graph.ops)
    for i, before in enumerate(graph.predecessors):
        for j in before[-1:] if joins_many(graph, i) else before:
            between = [w.tensor for w in graph.ops[j].writes if w.tensor in graph.consumers]
            if all(
                is_widely_read(graph, name) and graph.consumers[name][0] != i for name in between
            ):
                continue
            near[i] |= 1 << j
            near[j] |= 1 << i
    for name, readers in graph.consumers.items():
        if graph.tensors[name].role == "weight" or len(readers) > SIBLINGS:
            continue
        for a, b in pairwise(readers):
            near[a] |= 1 << b
            near[b] |= 1 << a
    return near


def units(graph: Graph) -> list[int]:
    """Masks of the graph's units, in order: ops, with the pointwise ops that only continue them.

    `v` continues `u` where all that follows from `u` comes together in `v`, and from `u` to `v`
    there are only pointwise ops that read nothing else that the graph makes: a next op, or an
    activation that is spelled out (`x·σ(x)`). A cut between the two then moves no fewer bytes
    than one after `v`. A unit has up to `KERNEL_OPS` ops.
    """
    home = list(range(len(graph.ops)))
    length = [1] * len(home)
    joins = _joins(graph)
    for u in range(len(home)):
        root = home[u]
        more = [i for i in _continued(graph, u, joins[u]) if home[i] != root]
        if length[root] + len(more) <= KERNEL_OPS:
            length[root] += len(more)
            for i in more:
                home[i] = root
    masks: dict[int, int] = {}
    for i, root in enumerate(home):
        masks[root] = masks.get(root, 0) | 1 << i
    return list(masks.values())


def _joins(graph: Graph) -> list[int]:
    """For each op the first one through which all that follows from it goes, else past the end.

    Immediate post-dominators, as in Cooper, Harvey and Kennedy (2001): readers come later.
    """
    end = len(graph.ops)
    joins = [end] * end
    for i in range(end - 1, -1, -1):
        later = graph.successors[i]
        if not later or any(write.tensor in graph.outputs for write in graph.ops[i].writes):
            continue
        join = later[0]
        for other in later[1:]:
            while join != other:
                join, other = min(join, other), max(join, other)
                join = joins[join]
        joins[i] = join
    return joins


def _continued(graph: Graph, u: int, v: int) -> list[int]:
    """The ops from `u`, which is left out, to `v`; none where `v` does not continue `u`."""
    op = graph.ops[u]
    if v == len(graph.ops) or op.is_opaque or op.kind == "declared" or len(op.writes) != 1:
        return []
    made = graph.tensors[op.writes[0].tensor]
    if op.output_points != made.elements:
        return []
    between: set[int] = set()
    waiting = [v, *graph.successors[u]]
    while waiting:
        i = waiting.pop()
        if i in between:
            continue
        if not _is_pointwise(graph.ops[i], made.elements):
            return []
        between.add(i)
        if i != v:
            waiting.extend(graph.successors[i])
    if any(j != u and j not in between for i in between for j in graph.predecessors[i]):
        return []
    stored = [graph.tensors[graph.ops[i].writes[0].tensor].bytes for i in between - {v}]
    if u in graph.predecessors[v]:
        stored = []  # whatever is cut, v reads what u made
    result = graph.tensors[graph.ops[v].writes[0].tensor]
    return sorted(between) if result.bytes <= min([made.bytes, *stored]) else []


def _is_pointwise(op: Op, points: int) -> bool:
    """Whether an op makes one result, at every one of so many points by itself."""
    return (
        op.kind == "loop"
        and op.combine is None
        and not op.scans
        and len(op.writes) == 1
        and op.points == points
    )


class Candidates(Struct):
    """Usable candidates and their costs."""

    starting: Starting
    cut_short: list[str] = field(default_factory=list[str])
    """What was left out of the enumeration, in words."""

    @property
    def cost(self) -> dict[int, float]:
        """Mask → cost."""
        return dict(self.starting.items())


class Limits(Struct, frozen=True, kw_only=True):
    """How far candidates are grown."""

    max_ops: int = MAX_OPS
    """Most ops in one kernel, a unit counted as one."""
    candidates: int = MAX_CANDIDATES
    structures: int = EXHAUSTIVE
    per_step: int = PER_STEP


def enumerate_candidates(
    graph: Graph,
    cost: Cost,
    limits: Limits | None = None,
    *,
    distinct: Callable[[], int] | None = None,
    deadline: float = math.inf,
    moved: Callable[[int], object] | None = None,
) -> Candidates:
    """The convex connected sets of up to `max_ops` ops or units with a cost, smallest first.

    `distinct` tells how many structures have been priced so far: equal layers count once.
    `moved` hears how many candidates have been found. Past `deadline` (monotonic seconds) none
    are added.
    """
    limits = limits or Limits()
    grouped = units(graph)
    window = max(WINDOW, 2 * max(map(_span, grouped), default=0))
    firsts = representatives(graph, window)
    seen_once = _windows(firsts, window)
    barriers = sum(1 << i for i, op in enumerate(graph.ops) if op.is_opaque)
    growth = _Growth(graph, cost, limits, distinct, deadline, moved)
    whole = growth.run([1 << i for i in bits(seen_once)], barriers, stop=True)
    grouped = [mask for mask in grouped if not mask & ~seen_once]
    if time.monotonic() < deadline and (len(grouped) < seen_once.bit_count() or not whole):
        growth.run(grouped, barriers, stop=False)
    found = growth.found
    if growth.cut_short:
        _, merged = merge_pairs(
            graph, growth.near, cost, max_ops=limits.max_ops, among=seen_once, deadline=deadline
        )
        found = {mask: price for mask, price in merged.items() if mask & seen_once} | found
    return Candidates(_shifted(found, firsts, window), growth.cut_short)


class _Growth:
    """Sets found so far, and the growth of more of them."""

    def __init__(
        self,
        graph: Graph,
        cost: Cost,
        limits: Limits,
        distinct: Callable[[], int] | None,
        deadline: float,
        moved: Callable[[int], object] | None,
    ) -> None:
        self.cost, self.limits, self.deadline, self.moved = cost, limits, deadline, moved
        self.reach, self.near = Reach.of(graph), neighbours(graph)
        self.found: dict[int, float] = {}
        self.beaten: dict[int, float] = {}
        """What sets cost that are no cheaper than their parts, at least; 0 where not usable."""
        self.least: dict[int, float] = {}
        """Least cost known of each set, as one kernel or in the parts that it was grown from."""
        self.distinct = distinct or (lambda: len(self.found))
        self.cut_short: list[str] = []

    def run(self, pieces: Sequence[int], barriers: int, *, stop: bool) -> bool:
        """Grow sets of pieces, and tell whether all of them were grown.

        Past the limit on structures it stops, or goes on with the most promising sets.
        """
        piece_of = {i: mask for mask in pieces for i in bits(mask)}
        around = {mask: self._mark(mask) for mask in pieces}
        layer: dict[int, tuple[int, int, int]] = {}
        self.pairs: list[int] = []
        for mask in pieces:
            self._price(mask, sum(self.found.get(1 << i, math.inf) for i in bits(mask)))
            if not mask & barriers:
                layer[mask] = around[mask]
        inside = sum(pieces) & ~barriers
        for _ in range(self.limits.max_ops - 1):
            grown: dict[int, tuple[int, int, int]] = {}
            before = self.distinct()
            promising = before > self.limits.structures
            if promising:
                self._say(
                    f"beyond {self.limits.structures:,} structures only the most promising groups "
                    "were grown"
                )
                layer = {
                    mask: marks for mask, marks in layer.items() if not self._is_hopeless(mask)
                }
            wider = self._wider(layer, piece_of, inside, around)
            for mask, piece in self._promising(wider) if promising else wider:
                if mask | piece in grown:
                    continue
                if stop and self.distinct() > self.limits.structures:
                    return False
                if promising and self.pairs and self.distinct() - before > self.limits.per_step:
                    break  # pairs are the guide to everything larger: all of them are priced
                if time.monotonic() > self.deadline:
                    self._say("the time limit ended the search for candidates")
                    return False
                if len(self.found) >= self.limits.candidates:
                    self._say(f"candidates capped at {len(self.found):,}")
                    return False
                self._price(mask | piece, self.least[mask] + self.least[piece])
                if self.moved is not None and not len(self.found) % 64:
                    self.moved(len(self.found))
                one, two = layer[mask], around[piece]
                grown[mask | piece] = (one[0] | two[0], one[1] | two[1], one[2] | two[2])
            layer = grown
            self.pairs = self.pairs or list(grown)
            if not layer:
                break
        return True

    def _wider(
        self,
        layer: dict[int, tuple[int, int, int]],
        piece_of: dict[int, int],
        inside: int,
        around: dict[int, tuple[int, int, int]],
    ) -> Iterator[tuple[int, int]]:
        """(set, piece that may be added to it), where the two together are convex."""
        for mask, (above, below, near) in layer.items():
            for piece in _pieces(near & inside & ~mask, piece_of):
                if (mask | piece).bit_count() > KERNEL_OPS:
                    continue
                more_above, more_below, _ = around[piece]
                if not (above | more_above) & (below | more_below) & ~(mask | piece):
                    yield mask, piece

    def _mark(self, mask: int) -> tuple[int, int, int]:
        """Ancestors, descendants and neighbours of a piece."""
        above = below = near = 0
        for i in bits(mask):
            above |= self.reach.above[i]
            below |= self.reach.below[i]
            near |= self.near[i]
        return above, below, near

    def _price(self, mask: int, apart: float) -> None:
        """Price a set, whose parts cost `apart`. A plan needs none that costs no less: in its
        place the parts can run."""
        if mask not in self.least:
            price = self.cost(tuple(bits(mask)), HOPELESS * apart)
            if price is not None and (price < apart or not mask & mask - 1):
                self.found[mask] = price
            else:
                assert mask & mask - 1, "a single op is always a kernel"
                self.beaten[mask] = price or 0.0
            self.least[mask] = math.inf if price is None else price
        self.least[mask] = min(self.least[mask], apart)

    def _is_hopeless(self, mask: int) -> bool:
        return self.beaten.get(mask, 0.0) > HOPELESS * self.least[mask]

    def _promising(self, wider: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The sets likeliest to save most, each first op in turn.

        Before a set is priced it is taken to save what its smaller part does, and what the piece
        saves with the one piece of it that suits it best.
        """
        pairs: dict[int, list[int]] = {}
        for mask in self.pairs:
            for i in bits(mask):
                pairs.setdefault(i, []).append(mask)
        guessed: list[tuple[float, int, int]] = []
        seen: set[int] = set()
        for mask, piece in wider:
            if mask | piece in seen:
                continue
            seen.add(mask | piece)
            first = (piece & -piece).bit_length() - 1
            best = min(
                (self._saving(pair) for pair in pairs.get(first, ()) if not pair & ~(mask | piece)),
                default=0.0,
            )
            guessed.append((min(0.0, self._saving(mask)) + min(0.0, best), mask, piece))
        rank: dict[int, int] = {}
        ranked: list[tuple[int, float, int, int]] = []
        for saving, mask, piece in sorted(guessed):
            first = (mask | piece) & -(mask | piece)
            rank[first] = rank.get(first, -1) + 1
            ranked.append((rank[first], saving, mask, piece))
        return [(mask, piece) for _, _, mask, piece in sorted(ranked)]

    def _saving(self, mask: int) -> float:
        """Cost of a set beside its ops apart: negative where it saves."""
        apart = sum(self.found[1 << i] for i in bits(mask))
        return self.found.get(mask, float("inf")) - apart

    def _say(self, words: str) -> None:
        if words not in self.cut_short:
            self.cut_short.append(words)


def _pieces(mask: int, piece_of: dict[int, int]) -> Iterable[int]:
    """The pieces that a mask of ops touches, each once."""
    return dict.fromkeys(piece_of[i] for i in bits(mask) if i in piece_of)


def _span(mask: int) -> int:
    """Ops from the first of a set to its last."""
    return mask.bit_length() - (mask & -mask).bit_length() + 1


def _windows(firsts: list[int], window: int) -> int:
    """Mask of the ops that some first window covers."""
    mask = 0
    for i, first in enumerate(firsts):
        if first == i:
            mask |= (1 << window) - 1 << i
    return mask & (1 << len(firsts)) - 1


def _shifted(found: dict[int, float], firsts: list[int], window: int) -> Starting:
    """The candidates of every window: those of the first equal one that lie within it."""
    starting = Starting.of(len(firsts), found)
    within: dict[int, dict[int, float]] = {}
    for i, first in enumerate(firsts):
        if first != i:
            if first not in within:
                within[first] = {
                    mask: price
                    for mask, price in starting.sets[first].items()
                    if mask < 1 << window
                }
            starting.sets[i] = within[first]
    return starting
