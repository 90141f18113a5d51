"""Stores: where a value goes, which lanes store it, and which block does for all that make it."""

from __future__ import annotations

from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.graph.op import Access, Op
from fuseledger.triton.emit_body import Writer, identity
from fuseledger.triton.scope import POINTER_TYPES, Frame, Text, all_of, unwrapped


def store(w: Writer, i: int, access: Access, value: Text, frame: Frame) -> None:
    """Store a value at the op's own coordinates."""
    op = w.nest.ops[i]
    tensor = w.nest.graph.tensors[access.tensor]
    if tensor.dtype not in POINTER_TYPES:
        raise CannotEmit(f"{tensor.name} is {tensor.dtype}, which Triton does not store")
    at, _ = w.resolve(op, access, identity(op), frame)
    offset = w.offset(tensor, at, frame)
    axes = {name for index in at for name, _ in index.terms if name in w.variables}
    masks = (w.overrun(axes, frame), *_first_lanes(w, op, frame), _first_block(w, op))
    mask = all_of([m for m in masks if m is not None])
    if i in w.partials:
        part = w.part_text(w.partials[i])
        words = part if tensor.elements == 1 else f"({part}) * {tensor.elements}"
        words = words if tensor.elements == 1 or " " in part else f"{part} * {tensor.elements}"
        terms = [words] if offset.text == "0" else [words, unwrapped(offset.text)]
        offset = replace(offset, text=f"({' + '.join(terms)})")
    text = value.number if value.kind == "bool" and tensor.dtype != "bool" else value.text
    text = f"{text} != 0" if tensor.dtype == "bool" and value.kind != "bool" else text
    pointer = f"{w.pointers[tensor.name]} + {offset.text}"
    if w.layout.rank == 2 and not offset.places:
        shape = ", ".join("1" for _ in range(w.layout.rank))
        pointer += f" + tl.zeros([{shape}], tl.int32)"
    masked = f", mask={mask.text}" if mask is not None else ""
    w.line(f"tl.store({pointer}, {unwrapped(text)}{masked})")


def _first_lanes(w: Writer, op: Op, frame: Frame) -> list[Text]:
    """That a lane is the first of those that hold the same value along a reduced axis."""
    found: list[Text] = []
    for group in [w.groups[name] for name in frame]:
        for axis in (axis for part in group.held for axis in part if axis not in op.kept):
            at = w.variable(axis, frame)
            found.append(replace(at, text=f"({at.text} == 0)", kind="bool"))
    return found


def _first_block(w: Writer, op: Op) -> Text | None:
    """That this block is the first of those that make the same value: it stores for them."""
    own = {*op.kept, *(op.reduces & set(w.layout.split))}
    others = [name for axis, name in w.positions.items() if axis not in own]
    return all_of([Text(f"({name} == 0)", kind="bool") for name in others])
