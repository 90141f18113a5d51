"""Loops of a block: in which of them an op is made, and what they load apart.

A value is made where it is asked for, outside of every loop whose index its coordinates lack. A
reduction asked for there opens a loop over the axes that it reduces. What it is made of is asked
for inside, at coordinates that follow these axes. So an op is made in each loop of its readers: of
two products that reduce other axes, of a window and of what reads the tile itself.

Reductions over the same axes that keep the same ones, but for those along which a result is held
for all of the loop, and of which none needs another, share a loop; so do a statistic and the sums
that are rescaled by it. No loop opens over so few points that they are made at once, or over an
axis of what is carried, which is held whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from math import prod
from typing import NamedTuple

from msgspec import Struct, field

from fuseledger.graph.op import Access, Op
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.nest import Nest


class Made(NamedTuple):
    """An op in one of the loops that it is made in, by number; without one, wherever it is made."""

    op: int
    loop: int | None = None


Read = tuple[Made, Access]
Depths = dict[str, int]
"""Axis of an op → number of loops that it follows the index of, or that are around that one."""


class _Loop(Struct):
    """A loop; the first stands for the block itself."""

    number: int
    outer: tuple[_Loop, ...]
    inner: dict[object, _Loop] = field(default_factory=dict[object, "_Loop"])
    reductions: list[int] = field(default_factory=list[int])

    @property
    def chain(self) -> tuple[_Loop, ...]:
        """The loops around it, outermost first, and itself."""
        return (*self.outer, self)


class Loops:
    """The loops of a nest. With `ops`, those that run when what is carried is walked again, which
    is not held then. `at_once` is the most points that open no loop."""

    def __init__(self, nest: Nest, ops: Set[int] | None = None, at_once: int = LOOP_POINTS) -> None:
        self._nest, self._ops, self._at_once = nest, ops, at_once
        self._all = [_Loop(0, ())]
        self._held = frozenset[str]()
        if ops is None:
            self._held = self._held.union(*nest.carried.values())
        self._readers: dict[Made, dict[Made, None]] = {}

    def apart(self, reads: list[tuple[int, Access]]) -> list[list[Read]]:
        """Reads of a tensor in groups that load it each for itself: those in one outermost loop, or
        in one of several side by side in it, and those in none."""
        found: dict[int, list[Read]] = {}
        if len(reads) > 1 or reads[0][0] in self._shared:
            for i, access in reads:
                behind = self._nest.ops[i].axes_behind(access)
                for number, depths in self._made[i].items():
                    depth = max([depths.get(axis, 0) for axis in behind], default=0)
                    loop = _loading(self._all[number].chain[: depth + 1])
                    found.setdefault(loop, []).append((Made(i, number), access))
        if len(found) > 1:
            return list(found.values())
        return [[(Made(i), access) for i, access in reads]]

    def readers(self, made: Made, consumer: int) -> list[Made]:
        """Where a reader of an op is made that asks for it there."""
        readers = self._readers[made] if made.loop is not None else ()
        if not readers:  # wherever it is made, or for later walks
            return [Made(consumer)]
        return [reader for reader in readers if reader.op == consumer]

    @cached_property
    def _edges(self) -> dict[int, list[tuple[int, list[tuple[str, list[str]]]]]]:
        """Consumer → (producer, (its axis, the consumer's axes that this follows) …) …"""
        found: dict[int, list[tuple[int, list[tuple[str, list[str]]]]]] = {}
        for edge in self._nest.edges:
            if self._ops is None or edge.consumer in self._ops:
                follows = [
                    (axis.name, [name for name, _ in index.terms])
                    for axis, index in zip(edge.tensor.axes, edge.access.index, strict=True)
                ]
                found.setdefault(edge.consumer, []).append((edge.producer, follows))
        return found

    @cached_property
    def _shared(self) -> frozenset[int]:
        """Ops that two loops may ask for: more than one reader follows from them."""
        read: set[int] = set()
        found: set[int] = set()
        for i in reversed(self._nest.positions):
            for producer, _ in self._edges.get(i, ()):
                if producer in read or i in found:
                    found.add(producer)
                read.add(producer)
        return frozenset(found)

    @cached_property
    def _made(self) -> dict[int, dict[int, Depths]]:
        """Op → number of a loop that it is made in → depths of its axes there."""
        nest, edges = self._nest, self._edges
        found: dict[int, dict[int, Depths]] = {}
        asked: dict[int, dict[int, tuple[Depths, dict[Made, None]]]] = {}
        for i in reversed(nest.positions):
            if self._ops is not None and i not in self._ops:
                continue
            made = found[i] = {}
            wanted = asked.get(i) or {0: (Depths(), dict[Made, None]())}
            for number, (depths, readers) in wanted.items():
                loop, depths = self._opened(i, self._all[number], depths)
                _deepen(made.setdefault(loop.number, {}), depths)
                self._readers.setdefault(Made(i, loop.number), {}).update(readers)
            for producer, follows in edges.get(i, ()):
                for number, depths in made.items():
                    deep = dict(_followed(follows, depths)) if depths else {}
                    at = self._all[number].chain[max(deep.values(), default=0)].number
                    before, readers = asked.setdefault(producer, {}).setdefault(at, ({}, {}))
                    _deepen(before, deep)
                    readers[Made(i, number)] = None
        return found

    def _opened(self, i: int, loop: _Loop, depths: Depths) -> tuple[_Loop, Depths]:
        """The loop that the body of an op is in, which is asked for in another loop."""
        op, sizes = self._nest.ops[i], self._nest.sizes
        if not op.reduces:
            return loop, depths
        axes = frozenset(n for n in op.reduces if sizes[n] > 1 and n not in self._held)
        if not axes or self._is_at_once(op, axes):
            return loop, depths
        rescaled = any(self._nest.ops[j].reduces == op.reduces for j in self._nest.rescaled)
        through = frozenset[str]() if op.is_contraction else self._through(op)
        kept = None if rescaled else frozenset(n for n in op.kept if sizes[n] > 1) - through
        alike = (axes, kept, rescaled or op.is_contraction)
        turn = 0
        while (inner := loop.inner.get((alike, turn))) is not None:
            if rescaled or all(self._is_independent(i, j) for j in inner.reductions):
                break
            turn += 1
        if inner is None:
            inner = loop.inner[alike, turn] = _Loop(len(self._all), loop.chain)
            self._all.append(inner)
        inner.reductions.append(i)
        return inner, depths | dict.fromkeys(axes, len(inner.outer))

    def _through(self, op: Op) -> frozenset[str]:
        """Axes along which a result is held for all of its loop."""
        return self._nest.held_through.get(op.writes[0].tensor, frozenset[str]())

    def _is_at_once(self, op: Op, axes: frozenset[str]) -> bool:
        """Whether a reduction over these axes is made at once: over few points, but for the taps of
        a window. These are taken one by one on what a reduction made here, and by what is no
        matrix product where no tensor has them side by side."""
        if prod([op.sizes[name] for name in axes]) > self._at_once:
            return False
        if op.is_contraction:
            return not any(self._is_reduced(r.tensor) for r in op.reads if _is_window(op, r))
        return any(r.tensor in self._nest.external and _is_fast(op, r) for r in op.reads)

    def _is_reduced(self, tensor: str) -> bool:
        """Whether a tensor is made here, of reductions."""
        ops = self._nest.ops
        makers = {edge.producer for edge in self._nest.edges if edge.tensor.name == tensor}
        return any(ops[j].combine is not None for i in makers for j in (i, *self._needed[i]))

    def _is_independent(self, i: int, j: int) -> bool:
        return i not in self._needed[j] and j not in self._needed[i]

    @cached_property
    def _needed(self) -> dict[int, set[int]]:
        """Op → all that it is made of."""
        found: dict[int, set[int]] = {i: set() for i in self._nest.positions}
        for edge in self._nest.edges:  # producers first
            found[edge.consumer] |= {edge.producer} | found[edge.producer]
        return found


def _loading(chain: tuple[_Loop, ...]) -> int:
    """The loop of a chain in which what it loads is loaded once."""
    found, *loops = chain
    for loop in loops:
        if found.outer and len(found.inner) < 2:
            break
        found = loop
    return found.number


def _followed(
    follows: list[tuple[str, list[str]]], depths: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """Axes of a producer that follow loops, by those of its reader."""
    for name, behind in follows:
        depth = max([depths.get(axis, 0) for axis in behind], default=0)
        if depth:
            yield name, depth


def _deepen(known: Depths, depths: Mapping[str, int]) -> None:
    for axis, depth in depths.items():
        known[axis] = max(depth, known.get(axis, 0))


def _is_window(op: Op, read: Access) -> bool:
    """Whether a reduced axis is one of several that make a coordinate."""
    several = [index.terms for index in read.index if len(index.terms) > 1]
    return any(name in op.reduces for terms in several for name, _ in terms)


def _is_fast(op: Op, read: Access) -> bool:
    """Whether a tensor has neighbours along a reduced axis side by side."""
    terms = read.index[-1].terms if read.index else ()
    return len(terms) == 1 and terms[0][0] in op.reduces
