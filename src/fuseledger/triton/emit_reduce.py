"""Reductions: statistics along lanes or in loops, matrix products, and online rescaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

from fuseledger.errors import CannotEmit
from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call
from fuseledger.graph.tensor import DTYPE_BITS
from fuseledger.triton.emit_body import Frame, Writer, identity
from fuseledger.triton.lanes import MATRIX_LEAST
from fuseledger.triton.scope import Text
from fuseledger.triton.walk import Walk, hoisted, shape_of, walking

TAPS = 64
"""Up to so many reduced points that no tensor holds side by side are walked one by one."""
WHOLE_DEPTH = 128
"""Up to so many reduced points a matrix product inside a loop takes at once."""
DOT_TYPES: dict[str, str] = {
    "fp32": "tl.float32", "fp16": "tl.float16", "bf16": "tl.bfloat16",
    "fp8_e4m3": "tl.float8e4nv", "fp8_e5m2": "tl.float8e5",
}  # fmt: skip
"""Dtypes of matrix operands."""


@dataclass(slots=True)
class Statistic:
    """One reduction along the walk: its state, and how a tile is merged into it."""

    op: Op
    position: int
    frame: Frame
    place: int | None
    names: list[str] = field(default_factory=list[str])


def reduce_op(w: Writer, i: int, frame: Frame) -> None:
    """Emit the reduction at position `i` so that its results are known in this frame."""
    op = w.nest.ops[i]
    depth = max((w.variables[n].depth for n in op.kept if n in w.variables), default=0)
    missing = [n for n in op.kept if n not in w.variables and w.nest.sizes[n] > 1]
    if missing:
        raise CannotEmit(f"{op.name} keeps axis {missing[0]}, which is not walked outside it")
    kept = _kept_groups(w, op)
    frame = {name: place for name, place in frame.items() if name in kept}
    if len(set(frame.values())) < len(frame) or not kept <= frame.keys():
        raise CannotEmit(f"{op.name}: its lanes have no place in the tile that reads it")
    with hoisted(w, depth):
        if op.is_contraction and _is_matrix(w, op, frame):
            statistic = _online_statistic(w, i) if i in w.online else None
            if statistic is not None and _loops(w, op):
                _online(w, i, statistic, frame)
            else:
                _contract(w, i, frame)
        else:
            _statistics(w, i, frame)


def _kept_groups(w: Writer, op: Op) -> set[str]:
    found = (w.variables[n].group for n in op.kept if n in w.variables)
    return {group for group in found if group is not None}


def _loops(w: Writer, op: Op) -> bool:
    return prod(op.sizes[n] for n in op.reduces) > w.loop_points


# -- statistics --------------------------------------------------------------------------------


def _statistics(w: Writer, i: int, frame: Frame) -> None:
    """Reductions over the same axes that need nothing of each other, in one walk."""
    op = w.nest.ops[i]
    axes = tuple(name for name in op.sizes if name in op.reduces and op.sizes[name] > 1)
    together = _siblings(w, i, frame)
    place = _free_place(w, frame)
    total = prod(op.sizes[name] for name in axes)
    scalar = place is None or (
        total <= TAPS and not w.whole.issuperset(axes) and bool(frame) and not _is_fast(w, op)
    )
    group_lanes = prod(w.groups[name].lanes for name in frame)
    least = MATRIX_LEAST if w.has_products else 1
    block = max(w.loop_points, least, _power_below(1024 // max(1, group_lanes)))
    states = [Statistic(w.nest.ops[j], j, frame, None if scalar else place) for j in together]
    outer = w.depth
    if _will_loop(w, axes, block, scalar=scalar):
        for state in states:
            _start(w, state)
    with walking(w, axes, block=block, least=least, scalar=scalar) as walk:
        inner = walk.frame(frame, place)
        if not walk.is_scalar:
            w.groups[walk.group.name] = walk.group
        for state in states:
            _step(w, state, walk, inner)
    places = frozenset(frame.values())
    for state in states:
        for write, name in zip(state.op.writes, state.names, strict=False):
            kind = "int" if name in w.integers else "float"
            w.scopes[outer].known[w.result_key(state.position, write.tensor, frame)] = Text(
                name, outer, places, kind
            )


def _siblings(w: Writer, i: int, frame: Frame) -> list[int]:
    op = w.nest.ops[i]
    before: dict[int, set[int]] = {}
    for j in w.nest.positions:
        before[j] = set()
        for edge in w.nest.edges:
            if edge.consumer == j:
                before[j] |= {edge.producer} | before[edge.producer]
    found = [i]
    for j, other in w.nest.ops.items():
        independent = all(j not in before[k] and k not in before[j] for k in found)
        if (
            j not in found
            and independent
            and other.combine is not None
            and not other.scans
            and not other.is_contraction
            and other.reduces == op.reduces
            and set(other.kept) == set(op.kept)
            and w.known(w.result_key(j, other.writes[0].tensor, frame)) is None
        ):
            found.append(j)
    return sorted(found)


def _free_place(w: Writer, frame: Frame) -> int | None:
    taken = set(frame.values())
    if w.layout.rank == 1:
        return None if taken else 0
    return next((place for place in (1, 0) if place not in taken), None)


def _is_fast(w: Writer, op: Op) -> bool:
    """Whether some external tensor holds neighbours along a reduced axis side by side."""
    for access in op.reads:
        if access.index and access.tensor not in w.makers:
            terms = access.index[-1].terms
            if any(name in op.reduces for name, _ in terms) and len(terms) == 1:
                return True
    return False


def _power_below(count: int) -> int:
    return 1 << max(0, count.bit_length() - 1)


def _will_loop(w: Writer, axes: tuple[str, ...], block: int, *, scalar: bool) -> bool:
    total = prod(w.nest.sizes[name] for name in axes)
    lanes = 1 << (total - 1).bit_length()
    return bool(axes) and (scalar or not (lanes <= block or w.whole.issuperset(axes)))


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


def _start(w: Writer, state: Statistic) -> None:
    """State before a loop."""
    combine = state.op.combine or "sum"
    shape = shape_of(w, {place: w.groups[name] for name, place in state.frame.items()})
    first = list(INITIAL[combine])
    words = [write.tensor for write in state.op.writes]
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


def _step(w: Writer, state: Statistic, walk: Walk, frame: Frame) -> None:
    """Merge one tile, or one point, into the state; without a loop, make the state."""
    op = state.op
    combine = op.combine or "sum"
    x = w.body(state.position, frame)
    x = replace(x, text=x.condition if combine in ("any", "all") else x.number)
    if combine in ("any", "all"):
        x = replace(x, text=f"{x.text}.to(tl.float32)")
    if not walk.is_scalar:
        if state.place not in x.places:
            at = {place: w.groups[name] for name, place in frame.items()}
            text = f"tl.broadcast_to({x.text}, {shape_of(w, at)})"
            x = replace(x, text=text, places=frozenset(at))
        overrun = w.overrun(set(walk.axes), frame)
        if overrun is not None:
            x = replace(
                x,
                text=f"tl.where({overrun.text}, {x.text}, {NEUTRAL[combine]})",
                places=x.places | overrun.places,
            )
    x = w.bind(f"{op.name}_in", replace(x, depth=w.depth)) if not x.text.isidentifier() else x
    _MERGES[combine](_Merge(w, state, walk, frame), x.text)


@dataclass(slots=True)
class _Merge:
    w: Writer
    state: Statistic
    walk: Walk
    frame: Frame

    def along(self, function: str, text: str) -> str:
        """A reduction over the lanes of the walk; the value itself where it is one point."""
        if self.walk.is_scalar:
            return text
        if self.w.layout.rank == 1:
            return f"{function}({text}, axis=0)"
        return f"{function}({text}, axis={self.state.place}, keep_dims=True)"

    def set(self, k: int, text: str) -> str:
        """Assign result `k`."""
        if k == len(self.state.names):
            words = [write.tensor for write in self.state.op.writes]
            word = words[k] if k < len(words) else f"{words[0]}_{k}"
            self.state.names.append(self.w.names.new(word.lower()))
        self.w.line(f"{self.state.names[k]} = {text}")
        return self.state.names[k]

    def local(self, word: str, text: str) -> str:
        """Assign an intermediate."""
        name = self.w.names.new(f"{self.state.op.name}_{word}".lower())
        self.w.line(f"{name} = {text}")
        return name

    def old(self, k: int) -> str:
        """Result `k` so far."""
        return self.state.names[k]


def _simple(tile: str, merged: str) -> Callable[[_Merge, str], None]:
    def merge(m: _Merge, x: str) -> None:
        if tile.startswith("tl.reduce"):
            text = x if m.walk.is_scalar else _product(m, x)
        else:
            text = m.along(tile, x)
        m.set(0, merged.format(m.old(0), text) if m.walk.looped else text)

    return merge


def _product(m: _Merge, x: str) -> str:
    place = 0 if m.w.layout.rank == 1 else m.state.place
    keep = "" if m.w.layout.rank == 1 else ", keep_dims=True"
    return f"tl.reduce({x}, {place}, product_of{keep})"


def _max_sumexp(m: _Merge, x: str) -> None:
    if not m.walk.looped:
        top = m.set(0, m.along("tl.max", x))
        m.set(1, m.along("tl.sum", f"tl.exp({x} - rising({top}))"))
        return
    new = m.local("new_max", f"tl.maximum({m.old(0)}, {m.along('tl.max', x)})")
    shift = m.local("shift", f"rising({new})")
    total = m.along("tl.sum", f"tl.exp({x} - {shift})")
    m.set(1, f"{m.old(1)} * tl.exp({m.old(0)} - {shift}) + {total}")
    m.set(0, new)


def _moments(m: _Merge, x: str) -> None:
    """(mean, M2), merged as Chan et al. (1979)."""
    w, walk = m.w, m.walk
    total, lanes = walk.total, 1 if walk.is_scalar else walk.group.lanes
    overrun = w.overrun(set(walk.axes), m.frame) if not walk.is_scalar else None
    if not walk.looped:
        mean = m.set(0, f"{m.along('tl.sum', x)} / {total}.0")
        centred = f"{x} - {mean}"
        if overrun is not None:
            centred = f"tl.where({overrun.text}, {centred}, 0.0)"
        centred = m.local("centred", centred)
        m.set(1, m.along("tl.sum", f"{centred} * {centred}"))
        return
    count = f"{lanes}.0"
    if overrun is not None:
        count = m.local("count", f"tl.minimum({total} - {walk.first}, {lanes}).to(tl.float32)")
    mean = x if walk.is_scalar else m.local("mean", f"{m.along('tl.sum', x)} / {count}")
    spread = "0.0"
    if not walk.is_scalar:
        centred = f"{x} - {mean}"
        if overrun is not None:
            centred = f"tl.where({overrun.text}, {centred}, 0.0)"
        centred = m.local("centred", centred)
        spread = m.along("tl.sum", f"{centred} * {centred}")
    delta = m.local("delta", f"{mean} - {m.old(0)}")
    share = m.local("share", f"{count} / ({walk.first} + {count})")
    m.set(1, f"{m.old(1)} + {spread} + {delta} * {delta} * {walk.first} * {share}")
    m.set(0, f"{m.old(0)} + {delta} * {share}")


def _position(which: str, sign: str, *, value_first: bool) -> Callable[[_Merge, str], None]:
    def merge(m: _Merge, x: str) -> None:
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


_MERGES: dict[str, Callable[[_Merge, str], None]] = {
    "sum": _simple("tl.sum", "{0} + {1}"),
    "max": _simple("tl.max", "tl.maximum({0}, {1})"),
    "min": _simple("tl.min", "tl.minimum({0}, {1})"),
    "any": _simple("tl.max", "tl.maximum({0}, {1})"),
    "all": _simple("tl.min", "tl.minimum({0}, {1})"),
    "prod": _simple("tl.reduce", "{0} * {1}"),
    "max_sumexp": _max_sumexp,
    "moments": _moments,
    "argmax": _position("max", ">", value_first=False),
    "argmin": _position("min", "<", value_first=False),
    "max_index": _position("max", ">", value_first=True),
    "min_index": _position("min", "<", value_first=True),
}


# -- matrix products ---------------------------------------------------------------------------


def _is_matrix(w: Writer, op: Op, frame: Frame) -> bool:
    """Whether every lane axis belongs to one operand, rows and columns apart."""
    if set(frame.values()) != {0, 1}:
        return False
    return _sides(w, op, frame) is not None


def _sides(w: Writer, op: Op, frame: Frame) -> tuple[int, int] | None:
    """Slots of the operands that have the rows and the columns."""
    body = op.body
    assert isinstance(body, Call)
    slots = [argument.slot for argument in body.args]  # pyright: ignore[reportAttributeAccessIssue]
    for rows, columns in (slots, slots[::-1]):
        fits = True
        for name in op.kept:
            group = w.variables[name].group if name in w.variables else None
            if group is None:
                continue
            mine, other = (rows, columns) if frame[group] == 0 else (columns, rows)
            fits &= name in op.reads[mine].axes and name not in op.reads[other].axes
        if fits:
            return rows, columns
    return None


@dataclass(slots=True)
class _Product:
    """A matrix product in the making."""

    w: Writer
    position: int
    frame: Frame
    accumulator: str
    sides: tuple[int, int]

    def operand(self, walk: Walk, side: int) -> str:
        """One operand's tile: rows × depth, or depth × columns."""
        w, op = self.w, self.w.nest.ops[self.position]
        frame = walk.frame(self.frame, 1 - side)
        access = op.reads[self.sides[side]]
        tensor = w.nest.graph.tensors[access.tensor]
        is_direct = access.tensor not in w.makers
        value = w.read(op, self.sides[side], identity(op), frame, raw=True)
        target = DOT_TYPES[self.dtype]
        text = value.text
        if not is_direct or access.fill:
            overrun = w.overrun(set(walk.axes), frame)
            if overrun is not None:
                text = f"tl.where({overrun.text}, {value.number}, 0.0)"
                value = replace(value, kind="float", places=value.places | overrun.places)
        if not is_direct or tensor.dtype != self.dtype:
            text = f"{text}.to({target})" if not is_direct or value.kind != "bool" else value.number
        if len(value.places) < 2:
            at = {place: w.groups[name] for name, place in frame.items()}
            text = f"tl.broadcast_to({text}, {shape_of(w, at)})"
        if text == value.text:
            return text
        bound = w.bind(f"{tensor.name}_tile".lower(), Text(text, w.depth, value.places))
        return bound.text

    @property
    def dtype(self) -> str:
        """What both operands are multiplied in."""
        op = self.w.nest.ops[self.position]
        found = {self.w.nest.graph.tensors[op.reads[s].tensor].dtype for s in self.sides}
        if len(found) == 1:
            (only,) = found
            if only in DOT_TYPES:
                return only
        return "fp32"

    def step(self, walk: Walk, before: str) -> None:
        """Add one step along the reduced axes."""
        left, right = self.operand(walk, 0), self.operand(walk, 1)
        precision = ", input_precision=PRECISION" if self.dtype == "fp32" else ""
        self.w.line(f"{self.accumulator} = tl.dot({left}, {right}, {before}{precision})")


def _product_of(w: Writer, i: int, frame: Frame) -> _Product:
    op = w.nest.ops[i]
    sides = _sides(w, op, frame)
    assert sides is not None
    name = w.names.new(f"{op.name}_acc".lower())
    shape = shape_of(w, {place: w.groups[group] for group, place in frame.items()})
    for group in frame:
        if w.groups[group].lanes < MATRIX_LEAST:
            raise CannotEmit(f"{op.name}: a side of {w.groups[group].lanes} is no matrix tile")
    w.line(f"{name} = tl.zeros({shape}, tl.float32)")
    return _Product(w, i, frame, name, sides)


def _contract(w: Writer, i: int, frame: Frame) -> None:
    op = w.nest.ops[i]
    axes = tuple(name for name in op.sizes if name in op.reduces)
    product = _product_of(w, i, frame)
    bits = max(DTYPE_BITS[product.dtype], 8)
    step = max(MATRIX_LEAST, w.step_bytes * 8 // bits)
    total = prod(op.sizes[name] for name in axes)
    if w.depth > 0 and total <= WHOLE_DEPTH:
        step = max(step, 1 << (total - 1).bit_length())
    outer = w.depth
    with walking(w, axes, block=step, least=MATRIX_LEAST) as walk:
        w.groups[walk.group.name] = walk.group
        product.step(walk, product.accumulator)
    key = w.result_key(i, op.writes[0].tensor, frame)
    w.scopes[outer].known[key] = Text(product.accumulator, outer, frozenset({0, 1}))


# -- online ------------------------------------------------------------------------------------


def _online_statistic(w: Writer, i: int) -> tuple[int, int] | None:
    """(statistic, apply) of the operand that a rescaled sum reads."""
    for read in w.nest.ops[i].reads:
        apply = w.makers.get(read.tensor)
        if apply is None:
            continue
        for inner in w.nest.ops[apply].reads:
            statistic = w.makers.get(inner.tensor)
            if statistic is not None and w.nest.ops[statistic].combine == "max_sumexp":
                return statistic, apply
    return None


def _online(w: Writer, i: int, made_by: tuple[int, int], frame: Frame) -> None:
    """One walk: a running maximum, and a sum rescaled whenever it rises."""
    statistic, apply = (w.nest.ops[k] for k in made_by)
    op = w.nest.ops[i]
    axes = tuple(name for name in op.sizes if name in op.reduces)
    rows: dict[str, int] = {name: place for name, place in frame.items() if place == 0}
    state = Statistic(statistic, made_by[0], rows, 1)
    _start(w, state)
    product = _product_of(w, i, frame)
    outer = w.depth
    tops = [w.result_key(made_by[0], write.tensor, rows) for write in statistic.writes]
    with walking(w, axes, block=max(w.loop_points, MATRIX_LEAST), least=MATRIX_LEAST) as walk:
        w.groups[walk.group.name] = walk.group
        inner = walk.frame(rows, 1)
        x = w.body(made_by[0], inner)
        overrun = w.overrun(set(axes), inner)
        if overrun is not None:
            masked = f'tl.where({overrun.text}, {x.number}, float("-inf"))'
            x = w.bind(f"{statistic.name}_in", Text(masked, w.depth, x.places))
        m = _Merge(w, state, walk, inner)
        new = m.local("new_max", f"tl.maximum({m.old(0)}, {m.along('tl.max', x.number)})")
        shift = m.local("shift", f"rising({new})")
        rescale = m.local("rescale", f"tl.exp({m.old(0)} - {shift})")
        weight = w.bind(
            apply.writes[0].tensor.lower(),
            Text(f"tl.exp(({x.number} - {shift}))", w.depth, x.places),
        )
        m.set(1, f"{m.old(1)} * {rescale} + {m.along('tl.sum', weight.text)}")
        known = w.scopes[-1].known
        known[tops[0]] = Text(shift, w.depth, frozenset({0}))
        known[tops[1]] = Text("1.0", 0)
        product.step(walk, f"{product.accumulator} * {rescale}")
        m.set(0, new)
    for key, name in zip(tops, state.names, strict=True):
        w.scopes[outer].known[key] = Text(name, outer, frozenset({0}))
    text = product.accumulator
    if isinstance(apply.body, Call) and apply.body.function == "div":
        text = w.names.new(op.writes[0].tensor.lower())
        w.line(f"{text} = {product.accumulator} / {state.names[1]}")
    key = w.result_key(i, op.writes[0].tensor, frame)
    w.scopes[outer].known[key] = Text(text, outer, frozenset({0, 1}))
