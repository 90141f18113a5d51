"""Matrix products, and sums of products that are rescaled while their softmax is still running."""

from __future__ import annotations

from math import prod

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call, Read
from fuseledger.graph.tensor import DTYPE_BITS
from fuseledger.ledger.online import only_rounds
from fuseledger.triton.dependence import above, siblings
from fuseledger.triton.emit_body import Writer, identity
from fuseledger.triton.emit_statistic import Merge, Statistic, start
from fuseledger.triton.lanes import MATRIX_LEAST
from fuseledger.triton.scope import Frame, Text
from fuseledger.triton.walk import Walk, shape_of, walking, walking_apart

DOT_TYPES: dict[str, str] = {
    "fp32": "tl.float32", "fp16": "tl.float16", "bf16": "tl.bfloat16",
    "fp8_e4m3": "tl.float8e4nv", "fp8_e5m2": "tl.float8e5",
}  # fmt: skip
"""Dtypes of matrix operands."""


def is_matrix(w: Writer, op: Op, frame: Frame) -> bool:
    """Whether every lane axis belongs to one operand, rows and columns apart."""
    if set(frame.values()) != {0, 1}:
        return False
    return _sides(w, op, frame) is not None


def _sides(w: Writer, op: Op, frame: Frame) -> tuple[int, int] | None:
    """Slots of the operands that have the rows and the columns."""
    body = op.body
    assert isinstance(body, Call)
    slots = [argument.slot for argument in body.args if isinstance(argument, Read)]
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


class _Product(Struct):
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

    def store_on_the_way(self, walk: Walk) -> None:
        """Store what was made for the operands of this step, where other kernels read it too."""
        w, op = self.w, self.w.nest.ops[self.position]
        for side in (0, 1):
            maker = w.makers.get(op.reads[self.sides[side]].tensor)
            if maker is not None and w.store_on_the_way is not None:
                w.store_on_the_way(w, above(w, maker), walk.axes, walk.frame(self.frame, 1 - side))


def _product_of(w: Writer, i: int, frame: Frame) -> _Product:
    op = w.nest.ops[i]
    sides = _sides(w, op, frame)
    assert sides is not None
    name = w.names.new(f"{op.name}_acc".lower())
    w.line(f"# {op.title}: sum over {', '.join(n.lower() for n in op.sizes if n in op.reduces)}")
    shape = shape_of(w, {place: w.groups[group] for group, place in frame.items()})
    for group in frame:
        if w.groups[group].lanes < MATRIX_LEAST:
            raise CannotEmit(f"{op.name}: a side of {w.groups[group].lanes} is no matrix tile")
    w.line(f"{name} = tl.zeros({shape}, tl.float32)")
    return _Product(w, i, frame, name, sides)


def contract(w: Writer, i: int, frame: Frame) -> None:
    """Emit matrix products over the same axes: their accumulators, and steps that feed them all."""
    ops = w.nest.ops
    axes = tuple(name for name in ops[i].sizes if name in ops[i].reduces)
    together = siblings(
        w, i, frame,
        lambda j: ops[j].is_contraction and j not in w.online and is_matrix(w, ops[j], frame),
    )  # fmt: skip
    products = [_product_of(w, j, frame) for j in together]
    bits = max(8, *(DTYPE_BITS[product.dtype] for product in products))
    step = w.step_points or max(MATRIX_LEAST, w.step_bytes * 8 // bits)
    taps = set[str]().union(*(_taps(w, j) for j in together))
    alone = tuple(name for name in axes if name in taps)
    deep = tuple(name for name in axes if name not in taps)
    total = prod(w.extent(name) for name in deep)
    if w.depth > 0 and total <= w.whole_depth:
        step = max(step, 1 << (total - 1).bit_length())
    outer = w.depth
    widest = max(w.groups[name].lanes for name in frame)
    streams = w.streams(i, deep, total * widest, is_product=True)
    with walking_apart(w, alone, deep, block=step, least=MATRIX_LEAST, streams=streams) as walk:
        w.groups[walk.group.name] = walk.group
        for product in products:
            product.step(walk, product.accumulator)
            if walk.looped:
                product.store_on_the_way(walk)
    for product in products:
        key = w.result_key(product.position, ops[product.position].writes[0].tensor, frame)
        w.scopes[outer].known[key] = Text(product.accumulator, outer, frozenset({0, 1}))


def _taps(w: Writer, i: int) -> set[str]:
    """Axes of windows on what a reduction of this kernel makes: each tap has a tile of its own."""
    op = w.nest.ops[i]
    found: set[str] = set()
    for access in op.reads:
        maker = w.makers.get(access.tensor)
        if maker is None or all(w.nest.ops[j].combine is None for j in above(w, maker)):
            continue
        for index in access.index:
            if len(index.terms) > 1:
                found |= {name for name, _ in index.terms if name in op.reduces}
    return found if found < op.reduces else set()


def online_statistic(w: Writer, i: int) -> tuple[int, int] | None:
    """(statistic, apply) of the operand that a rescaled sum reads."""
    for read in w.nest.ops[i].reads:
        apply = w.makers.get(read.tensor)
        while apply is not None and only_rounds(w.nest.ops[apply]):
            apply = w.makers.get(w.nest.ops[apply].reads[0].tensor)
        if apply is None:
            continue
        for inner in w.nest.ops[apply].reads:
            statistic = w.makers.get(inner.tensor)
            if statistic is not None and w.nest.ops[statistic].combine == "max_sumexp":
                return statistic, apply
    return None


def rescale_online(w: Writer, i: int, made_by: tuple[int, int], frame: Frame) -> None:
    """One walk: a running maximum, and a sum rescaled whenever it rises."""
    statistic, apply = (w.nest.ops[k] for k in made_by)
    op = w.nest.ops[i]
    axes = tuple(name for name in op.sizes if name in op.reduces)
    rows: dict[str, int] = {name: place for name, place in frame.items() if place == 0}
    state = Statistic(statistic, made_by[0], rows, 1)
    stem = statistic.label or statistic.name
    w.line(f"# {stem} online: when its maximum rises, sums are rescaled")
    start(w, state)
    product = _product_of(w, i, frame)
    outer = w.depth
    tops = [w.result_key(made_by[0], write.tensor, rows) for write in statistic.writes]
    with walking(w, axes, block=max(w.loop_points, MATRIX_LEAST), least=MATRIX_LEAST) as walk:
        w.groups[walk.group.name] = walk.group
        inner = walk.frame(rows, 1)
        x = bare = w.body(made_by[0], inner)
        overrun = w.overrun(set(axes), inner)
        if overrun is not None:
            masked = f'tl.where({overrun.text}, {x.number}, float("-inf"))'
            stem = statistic.name.replace(".statistic", "")
            x = w.bind(f"{stem}_in", Text(masked, w.depth, x.places))
        m = Merge(w, state, walk, inner)
        new = m.local("new_max", f"tl.maximum({m.old(0)}, {m.along('tl.max', x.number)})")
        shift = m.local("shift", f"rising({new})")
        rescale = m.local("rescale", f"tl.exp({m.old(0)} - {shift})")
        weight = w.bind(
            apply.writes[0].tensor.lower(),
            Text(f"tl.exp({x.number} - {shift})", w.depth, x.places),
        )
        m.set(1, f"{m.old(1)} * {rescale} + {m.along('tl.sum', weight.text)}")
        known = w.scopes[-1].known
        known[f"tl.exp({bare.number} - {shift})"] = weight
        known[tops[0]] = Text(shift, w.depth, frozenset({0}))
        known[tops[1]] = Text("1.0", 0)
        product.step(walk, f"{product.accumulator} * {rescale}")
        product.store_on_the_way(walk)
        m.set(0, new)
    for key, name in zip(tops, state.names, strict=True):
        w.scopes[outer].known[key] = Text(name, outer, frozenset({0}))
    text = product.accumulator
    if isinstance(apply.body, Call) and apply.body.function == "div":
        text = w.names.new(op.writes[0].tensor.lower())
        w.line(f"{text} = {product.accumulator} / {state.names[1]}")
    key = w.result_key(i, op.writes[0].tensor, frame)
    w.scopes[outer].known[key] = Text(text, outer, frozenset({0, 1}))
