"""Statistics: the state of a reduction, and how a tile or a point is merged into it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.graph.op import COMBINES, Op
from fuseledger.triton.emit_body import Writer
from fuseledger.triton.scope import Frame
from fuseledger.triton.walk import Walk, shape_of

KEEP = ", keep_dims=True"


class InLanes(Struct, frozen=True, kw_only=True):
    """The axes of a reduction that lanes of the block's tile stand for.

    Where a group's lanes stand for others too, every one of them gets the result of its own part:
    the vector is taken apart, reduced along the axis, and spread again.
    """

    axes: tuple[str, ...] = ()
    frame: Frame = field(default_factory=dict[str, int])
    """Groups all of whose axes are reduced → their places."""
    parts: tuple[tuple[str, int, int], ...] = ()
    """(group, lanes of the axes, lanes between their neighbours) where others stay."""
    points: int = 1

    @staticmethod
    def of(w: Writer, axes: tuple[str, ...], frame: Frame) -> InLanes:
        """Those of `axes` that are in lanes; `frame` has the groups that the result keeps."""
        found = tuple(
            name
            for name in axes
            if w.layout.has_lanes(name) and name in w.variables and name not in w.layout.split
        )
        places = {
            group.name: place
            for place, group in enumerate((w.layout.rows, w.layout.columns))
            if group is not None
            and group.name not in frame
            and not set(found).isdisjoint(group.axes)
        }
        parts: dict[tuple[str, int, int], None] = {}
        for name in found:
            group = w.groups[w.variables[name].group or ""]
            part = group.part(name)
            if group.name in frame and part is not None:
                parts[group.name, group.span(part), group.part_stride(part)] = None
        points = prod(w.extent(name) for name in found)
        return InLanes(axes=found, frame=places, parts=tuple(parts), points=points)


class Statistic(Struct):
    """One reduction along the walk: its state, and how a tile is merged into it."""

    op: Op
    position: int
    frame: Frame
    place: int | None
    in_lanes: InLanes = field(default_factory=InLanes)
    names: list[str] = field(default_factory=list[str])


INITIAL: dict[str, tuple[str, ...]] = {
    "sum": ("0.0",),
    "prod": ("1.0",),
    "max": ('float("-inf")',),
    "min": ('float("inf")',),
    "any": ("0.0",),
    "all": ("1.0",),
    "argmax": ("0",),
    "argmin": ("0",),
    "max_index": ('float("-inf")', "0"),
    "min_index": ('float("inf")', "0"),
    "max_sumexp": ('float("-inf")', "0.0"),
    "moments": ("0.0", "0.0"),
}
"""Combine → the state before anything was seen; an integer is a position."""
NEUTRAL: dict[str, str] = {
    "sum": "0.0", "prod": "1.0", "any": "0.0", "all": "1.0", "moments": "0.0",
    "max": 'float("-inf")', "argmax": 'float("-inf")', "max_index": 'float("-inf")',
    "max_sumexp": 'float("-inf")',
    "min": 'float("inf")', "argmin": 'float("inf")', "min_index": 'float("inf")',
}  # fmt: skip
"""Combine → what a lane beyond the end counts as."""


def start(w: Writer, state: Statistic) -> None:
    """State before a loop."""
    combine = state.op.combine or "sum"
    shape = shape_of(w, {place: w.groups[name] for name, place in state.frame.items()})
    first = list(INITIAL[combine])
    words = result_words(state.op)
    if combine in ("argmax", "argmin"):
        first.append(NEUTRAL[combine])
        words.append(f"{words[0]}_best")
    if len(first) > len(words):
        words += [f"{words[0]}_{k}" for k in range(len(words), len(first))]
    for word, value in zip(words, first, strict=True):
        name = w.names.new(word.lower())
        is_integer = "." not in value and "inf" not in value
        if is_integer:
            w.integers.add(name)
        dtype = "tl.int32" if is_integer else "tl.float32"
        if w.layout.rank == 1 and not state.frame:
            w.line(f"{name} = tl.full([], {value}, {dtype})")
        else:
            w.line(f"{name} = tl.full({shape}, {value}, {dtype})")
        state.names.append(name)


def step(w: Writer, state: Statistic, walk: Walk, frame: Frame) -> None:
    """Merge one tile, or one point, into the state; without a loop, make the state."""
    x = term(w, state, walk, frame)
    _MERGES[state.op.combine or "sum"](Merge(w, state, walk, frame), x)


def term(w: Writer, state: Statistic, walk: Walk, frame: Frame) -> str:
    """The name of a tile, or a point, that is merged: lanes beyond the end are neutral."""
    op = state.op
    combine = op.combine or "sum"
    x = w.body(state.position, frame)
    x = replace(x, text=x.condition if combine in ("any", "all") else x.number)
    if combine in ("any", "all"):
        x = replace(x, text=f"{x.text}.to(tl.float32)")
    if not walk.is_scalar or state.in_lanes.axes:
        walked = {state.place} if not walk.is_scalar else set[int | None]()
        walked |= set(frame.values()) if state.in_lanes.axes else set()
        if not walked <= x.places:
            at = {place: w.groups[name] for name, place in frame.items()}
            text = f"tl.broadcast_to({x.text}, {shape_of(w, at)})"
            x = replace(x, text=text, places=frozenset(at))
        overrun = w.overrun({*walk.axes, *state.in_lanes.axes}, frame)
        if overrun is not None:
            x = replace(
                x,
                text=f"tl.where({overrun.text}, {x.text}, {NEUTRAL[combine]})",
                places=x.places | overrun.places,
            )
    if not x.text.isidentifier():
        source = x.text.removesuffix(".to(tl.float32)")
        stem = f"{source}_fp32" if source.isidentifier() else f"{op.name}_in"
        x = w.bind(stem.replace(".statistic", ""), replace(x, depth=w.depth))
    return x.text


def result_words(op: Op) -> list[str]:
    """Names for the results of a reduction: `softmax_max` for the first of `softmax.statistic`."""
    words: list[str] = []
    for k, write in enumerate(op.writes):
        stem = op.name.removesuffix(".statistic")
        results = COMBINES[op.combine or "sum"].results
        is_statistic = stem != op.name and k < len(results)
        words.append(f"{stem}_{results[k]}" if is_statistic else write.tensor)
    return words


class Merge(Struct):
    """Writes the lines that merge a value into a statistic's state."""

    w: Writer
    state: Statistic
    walk: Walk
    frame: Frame

    def along(self, function: str, text: str) -> str:
        """A reduction over the lanes of the walk and of the tile; the value itself where it is one
        point."""
        return self._over_places(text, function + "({0}, axis={1}{2})")

    def merged(self, merge: str, text: str) -> str:
        """The same by a merge of two, which `tl` has no function for or one that drops NaN."""
        return self._over_places(text, "tl.reduce({0}, {1}, " + merge + "{2})")

    @property
    def points(self) -> int:
        """Points of the tile's lanes that one step reduces, beside the walk's own."""
        return self.state.in_lanes.points

    @property
    def is_point(self) -> bool:
        """Whether a step has one value a result."""
        return self.walk.is_scalar and not self.state.in_lanes.axes

    def _over_places(self, text: str, call: str) -> str:
        in_lanes = self.state.in_lanes
        keep = KEEP if self.w.layout.rank == 2 else ""
        if not self.walk.is_scalar:
            text = call.format(text, self.state.place or 0, keep)
        for place in in_lanes.frame.values():
            text = call.format(text, place, keep)
        for group, points, stride in in_lanes.parts:
            text = self._in_part(text, group, points, stride, call)
        return text

    def _in_part(self, text: str, group: str, points: int, stride: int, call: str) -> str:
        """Every lane's part of the vector reduced, and spread over the part."""
        frame, w = self.state.frame, self.w
        lanes = [1] * w.layout.rank
        for name, place in frame.items():
            lanes[place] = w.groups[name].lanes
        after = stride * prod(lanes[frame[group] + 1 :])
        shape = f"[{prod(lanes) // (points * after)}, {points}, {after}]"
        apart = self.local("parts", f"tl.reshape({text}, {shape})")
        total = self.local("part", call.format(apart, 1, KEEP))
        whole = shape_of(w, {place: w.groups[name] for name, place in frame.items()})
        return f"tl.reshape(tl.broadcast_to({total}, {shape}), {whole})"

    def set(self, k: int, text: str) -> str:
        """Assign result `k`."""
        if k == len(self.state.names):
            words = result_words(self.state.op)
            word = words[k] if k < len(words) else f"{words[0]}_{k}"
            self.state.names.append(self.w.names.new(word.lower()))
        self.w.line(f"{self.state.names[k]} = {text}")
        return self.state.names[k]

    def local(self, word: str, text: str) -> str:
        """Assign an intermediate."""
        stem = self.state.op.name.removesuffix(".statistic")
        name = self.w.names.new(f"{stem}_{word}".lower())
        self.w.line(f"{name} = {text}")
        return name

    def old(self, k: int) -> str:
        """Result `k` so far."""
        return self.state.names[k]


def _simple(tile: str, merged: str) -> Callable[[Merge, str], None]:
    def merge(m: Merge, x: str) -> None:
        text = m.along(tile, x) if tile.startswith("tl.") else m.merged(tile, x)
        m.set(0, merged.format(m.old(0), text) if m.walk.looped else text)

    return merge


def _max_sumexp(m: Merge, x: str) -> None:
    if not m.walk.looped:
        top = m.set(0, m.along("tl.max", x))
        m.set(1, m.along("tl.sum", f"tl.exp({x} - rising({top}))"))
        return
    new = m.local("new_max", f"tl.maximum({m.old(0)}, {m.along('tl.max', x)})")
    shift = m.local("shift", f"rising({new})")
    total = m.along("tl.sum", f"tl.exp({x} - {shift})")
    m.set(1, f"{m.old(1)} * tl.exp({m.old(0)} - {shift}) + {total}")
    m.set(0, new)


def _moments(m: Merge, x: str) -> None:
    """(mean, M2), merged as Chan et al. (1979)."""
    w, walk, points = m.w, m.walk, m.points
    beside = f" * {points}" if points > 1 else ""
    axes = {*walk.axes, *m.state.in_lanes.axes}
    overrun = w.overrun(axes, m.frame) if not m.is_point else None

    def centred_on(mean: str) -> str:
        text = f"{x} - {mean}"
        if overrun is not None:
            text = f"tl.where({overrun.text}, {text}, 0.0)"
        return m.local("centred", text)

    if not walk.looped:
        total = f"{walk.total * points}.0"
        if not walk.is_even:
            total = f"({walk.count}{beside}).to(tl.float32)"
        mean = m.set(0, f"{m.along('tl.sum', x)} / {total}")
        centred = centred_on(mean)
        m.set(1, m.along("tl.sum", f"{centred} * {centred}"))
        return
    lanes = 1 if walk.is_scalar else walk.group.lanes
    count = f"{lanes * points}.0"
    if not walk.is_scalar and w.overrun(set(walk.axes), m.frame) is not None:
        count = m.local("count", f"(tl.minimum({walk.left}, {lanes}){beside}).to(tl.float32)")
    if m.is_point:
        mean, spread = x, ""
    else:
        mean = m.local("mean", f"{m.along('tl.sum', x)} / {count}")
        centred = centred_on(mean)
        spread = f" + {m.along('tl.sum', f'{centred} * {centred}')}"
    seen = f"({walk.seen}{beside})" if beside else walk.seen
    delta = m.local("delta", f"{mean} - {m.old(0)}")
    share = m.local("share", f"{count} / ({seen} + {count})")
    m.set(1, f"{m.old(1)}{spread} + {delta} * {delta} * {seen} * {share}")
    m.set(0, f"{m.old(0)} + {delta} * {share}")


def _position(which: str, sign: str, *, value_first: bool) -> Callable[[Merge, str], None]:
    def merge(m: Merge, x: str) -> None:
        value, index = (0, 1) if value_first else (1, 0)
        best = m.along(f"tl.{which}", x)
        at = m.walk.first if m.walk.is_scalar else m.along(f"tl.arg{which}", x)
        if m.walk.looped:
            best = m.local("best", best)
            at = at if m.walk.is_scalar else f"{m.walk.first} + {at}"
            better = m.local("better", f"{best} {sign} {m.old(value)}")
            m.set(index, f"tl.where({better}, {at}, {m.old(index)})")
            m.set(value, f"tl.where({better}, {best}, {m.old(value)})")
        elif value_first:
            m.set(0, best)
            m.w.integers.add(m.set(1, at))
        else:
            m.w.integers.add(m.set(0, at))

    return merge


_MERGES: dict[str, Callable[[Merge, str], None]] = {
    "sum": _simple("tl.sum", "{0} + {1}"),
    "max": _simple("larger_of", "larger_of({0}, {1})"),
    "min": _simple("smaller_of", "smaller_of({0}, {1})"),
    "any": _simple("tl.max", "tl.maximum({0}, {1})"),
    "all": _simple("tl.min", "tl.minimum({0}, {1})"),
    "prod": _simple("product_of", "{0} * {1}"),
    "max_sumexp": _max_sumexp,
    "moments": _moments,
    "argmax": _position("max", ">", value_first=False),
    "argmin": _position("min", "<", value_first=False),
    "max_index": _position("max", ">", value_first=True),
    "min_index": _position("min", "<", value_first=True),
}
