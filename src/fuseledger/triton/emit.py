"""From a planned kernel to Triton source.

The loop nest is walked, never matched against patterns: grid axes become the block's position and
its lanes (`lanes.py`), what the outputs ask for becomes values (`emit_body.py`), reductions on the
way become loops or lanes (`emit_reduce.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import prod

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.graph.graph import Graph, Result
from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Read
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.view import View
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.matrix_units import WHOLE_DEPTH
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.planner.side_by_side import parts_of
from fuseledger.triton.dependence import above
from fuseledger.triton.emit_body import HELD_ELEMENTS, Crowded, Writer, identity
from fuseledger.triton.emit_grid import open_grid
from fuseledger.triton.emit_reduce import apart, reduce_op
from fuseledger.triton.emit_store import store
from fuseledger.triton.functions import helpers_used
from fuseledger.triton.lanes import MATRIX_LEAST, Layout, lay_out
from fuseledger.triton.partials import Partial, buffer_of, partials_of
from fuseledger.triton.scope import (
    BUILTINS,
    POINTER_TYPES,
    RESERVED,
    Frame,
    Names,
    Scope,
    identifier,
)
from fuseledger.triton.walk import walking, walking_apart

WIDE = 2**31
"""Elements from which offsets need 64 bits."""
NAME_LONGEST = 60
COMBINE_TILE = 1024
"""Elements that a block of a combine kernel merges."""


class EmitOptions(Struct, frozen=True, kw_only=True):
    """How to write code."""

    tf32: bool = False
    """Matrix products of fp32 in TF32."""
    loop_points: int = LOOP_POINTS
    """Points of an in-block loop walked at once."""
    step_points: int | None = None
    """Points of a matrix product's step, whatever their bytes."""
    block_elements: int = 1024
    """Elements of a tile that a walk makes in a kernel without matrix products."""
    whole_depth: int = WHOLE_DEPTH
    """Up to so many reduced points a matrix product inside a loop takes at once."""
    held_elements: int = HELD_ELEMENTS
    """Elements of a row that is held × the results that are made of it at a time."""


class EmittedKernel(Struct, frozen=True, kw_only=True):
    """A kernel as Triton source, and what it takes to launch and compile it."""

    name: str
    source: str
    """The decorated function alone; `module_source` adds imports and helpers."""
    parameters: tuple[tuple[str, str], ...]
    """(pointer parameter, tensor) in order: what is read, then what is written."""
    signature: dict[str, str]
    """Parameter → Triton type."""
    constants: dict[str, int | str]
    """Compile-time constants: sizes, tiles, the precision of fp32 products."""
    blocks: int
    warps: int
    stages: int
    outputs: tuple[str, ...]
    """Tensors that it writes, and buffers of parts."""
    spans: dict[str, int] = field(default_factory=dict[str, int])
    """Pointer parameter → bytes of its tensor, where they are known."""
    buffers: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Buffers of parts that it reads or writes, in fp32, and their shapes."""
    notes: tuple[str, ...] = ()
    """Where the code departs from the schedule."""
    crowded: dict[int, Crowded] = field(default_factory=dict[int, Crowded])
    """Position of a reduction over axes held whole that is not made at once → how it is."""


def emit_kernel(
    graph: Graph,
    kernel: Kernel,
    *,
    name: str | None = None,
    header: tuple[str, ...] = (),
    options: EmitOptions | None = None,
    folded: Mapping[str, Partial] | None = None,
    in_flight: int | None = None,
    planned: Mapping[int, Crowded] | None = None,
) -> EmittedKernel:
    """A kernel's Triton source; raises CannotEmit, saying why, for what has none.

    `folded` names the tensors that other kernels leave as parts, for this one to merge. `in_flight`
    is how many blocks the device runs at once, by which those of a matrix product are ordered.
    `planned` has what is crowded on the shapes that were planned, where these are smaller.
    """
    options = options or EmitOptions()
    nest = analyse(graph, kernel.ops)
    _refuse(nest)
    partials = partials_of(graph, kernel)
    arriving = {t: p for t, p in (folded or {}).items() if t in nest.external}
    buffers = _buffers(graph, partials, arriving)
    stored = dict.fromkeys(nest.external, "") | _merged(arriving) | dict.fromkeys(nest.outputs, "")
    stored = {tensor: place or tensor for tensor, place in stored.items()}
    for partial in partials.values():
        stored |= {tensor: buffer_of(tensor) for tensor in partial.results}
    names = Names()
    pointers = {t: names.new(f"{identifier(stored[t])}_ptr") for t in stored}
    sizes: dict[str, int] = {}
    parts = parts_of(graph, kernel)
    bodies: list[tuple[Scope, Layout, int]] = []
    stored_by = {tensor: _stored_by(graph, tensor, parts) for tensor in nest.outputs}
    notes: dict[str, None] = {}
    crowded: dict[int, Crowded] = {}
    for part in parts:
        piece = analyse(graph, part.ops) if len(parts) > 1 else nest
        if len(parts) > 1:
            piece.outputs = [t for t in nest.outputs if stored_by[t] is part]
        writer = _writer(piece, part, names, sizes, pointers, options)
        writer.partials, writer.folded, writer.in_flight = partials, arriving, in_flight
        writer.is_alone, writer.planned = len(parts) == 1, planned
        bodies.append(_part(writer))
        notes |= writer.notes
        crowded |= writer.crowded
    blocks = sum(count for _, _, count in bodies)
    name = name or kernel_name(graph, kernel)
    lines = list(_assemble(bodies))
    text = "\n".join(lines)
    constants: dict[str, int | str] = {**sizes}
    if "PRECISION" in text:
        constants["PRECISION"] = "tf32" if options.tf32 else "ieee"
    dtypes = {t: "fp32" if stored[t] in buffers else graph.tensors[t].dtype for t in pointers}
    signature = {pointers[t]: f"*{POINTER_TYPES[dtype]}" for t, dtype in dtypes.items()}
    spans = {
        pointers[t]: 4 * prod(buffers[place]) if place in buffers else graph.tensors[t].bytes
        for t, place in stored.items()
    }
    header = (*header, *notes)
    source = _function(name, header, [pointers[t] for t in pointers], list(constants), text)
    return EmittedKernel(
        name=name,
        source=source,
        parameters=tuple((pointer, stored[tensor]) for tensor, pointer in pointers.items()),
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constants=constants,
        spans=spans,
        blocks=blocks,
        warps=kernel.schedule.warps,
        stages=kernel.schedule.pipeline.stages,
        outputs=tuple(stored[tensor] for tensor in nest.outputs),
        buffers=buffers,
        notes=tuple(notes),
        crowded=crowded,
    )


def emit_combine(
    graph: Graph, kernel: Kernel, *, name: str, options: EmitOptions | None = None
) -> EmittedKernel:
    """The kernel that merges the parts which a kernel with split axes leaves."""
    partials = partials_of(graph, kernel)
    arriving = {buffer_of(t): p for p in partials.values() for t in p.results}
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for i in partials:
        kept = tuple(axis for axis in graph.ops[i].axes if axis.name not in graph.ops[i].reduces)
        for write in graph.ops[i].writes:
            tensor = graph.tensors[write.tensor]
            parts = buffer_of(tensor.name)
            tensors[tensor.name] = replace(tensor, role="output")
            tensors[parts] = replace(tensor, name=parts, role="input", dtype="fp32")
            read = replace(write, tensor=parts)
            ops.append(
                Op(
                    name=f"{tensor.name}_merged", function="combine", axes=kept, reads=(read,),
                    writes=(write,), body=Read(0),
                )
            )  # fmt: skip
    results = tuple(
        Result(op.writes[0].tensor, View.whole(t.name, t.shape, t.dtype))
        for op in ops
        for t in (tensors[op.writes[0].tensor],)
    )
    single = Graph(name=name, ops=tuple(ops), tensors=tensors, results=results)
    tiles: dict[str, AxisSchedule] = {}
    for op in ops:
        left = COMBINE_TILE
        for axis in reversed(op.axes):
            if axis.size > 1:
                tiles[axis.name] = AxisSchedule("grid", min(axis.size, left))
                left = max(1, left // axis.size)
    schedule = Schedule(axes=tuple(tiles.items()))
    merge = Kernel(ops=tuple(range(len(ops))), schedule=schedule)
    return emit_kernel(single, merge, name=name, options=options, folded=arriving)


def _merged(arriving: Mapping[str, Partial]) -> dict[str, str]:
    """Tensor → buffer, for what arrives as parts: all results of an op are merged together."""
    found: dict[str, str] = {}
    for name, partial in arriving.items():
        for result in partial.results:
            found[buffer_of(result) if name == buffer_of(name) else result] = buffer_of(result)
    return found


def _buffers(
    graph: Graph, partials: Mapping[int, Partial], arriving: Mapping[str, Partial]
) -> dict[str, tuple[int, ...]]:
    """Buffers of parts, and their shapes."""
    found: dict[str, tuple[int, ...]] = {}
    for partial in (*partials.values(), *arriving.values()):
        for result in partial.results:
            tensor = graph.tensors.get(result) or graph.tensors[buffer_of(result)]
            found[buffer_of(result)] = (partial.parts, *tensor.shape)
    return found


def kernel_name(graph: Graph, kernel: Kernel) -> str:
    """A kernel's name, after its ops: `gemm_bias_gelu_residual`."""
    words: list[str] = []
    for i in kernel.ops:
        op = graph.ops[i]
        word = identifier(op.label or op.function)
        if not words or words[-1] != word:
            words.append(word)
    name = "_".join(words)
    if name in RESERVED | BUILTINS:
        name = f"{name}_kernel"
    return name if len(name) <= NAME_LONGEST else f"{name[:NAME_LONGEST].rstrip('_')}_etc"


def module_source(kernels: list[EmittedKernel], summary: str) -> str:
    """A module of kernels, with the helpers that they call."""
    bodies = [kernel.source for kernel in kernels]
    helpers = helpers_used("\n".join(bodies))
    head = f'"""{summary}"""\n\nimport triton\nimport triton.language as tl\n'
    return "\n\n\n".join([head.rstrip("\n"), *helpers, *bodies]) + "\n"


def _refuse(nest: Nest) -> None:
    for op in nest.ops.values():
        if op.is_opaque:
            raise CannotEmit(f"{op.name} is a barrier: nothing is known of it but its tensors")
        if op.kind == "declared":
            raise CannotEmit(f"{op.name} brings declared figures and no loop nest")
        if 0 in op.sizes.values():
            raise CannotEmit(f"{op.name} has no points")
    for tensor in (*nest.external, *nest.outputs):
        if nest.graph.tensors[tensor].dtype not in POINTER_TYPES:
            raise CannotEmit(f"{tensor} is {nest.graph.tensors[tensor].dtype}")


def _stored_by(graph: Graph, tensor: str, parts: Sequence[Kernel]) -> Kernel:
    """Of the parts that make a tensor, the one whose blocks have the least of it each."""
    i = graph.producer[tensor]
    sizes = {axis.name: axis.size for axis in graph.ops[i].axes}

    def points(part: Kernel) -> int:
        tiles = {n: axis.tile for n, axis in part.schedule.axes if axis.treatment == "grid"}
        return prod(min(size, tiles.get(name, size)) for name, size in sizes.items())

    return min((part for part in parts if i in part.ops), key=points)


def _writer(
    nest: Nest, kernel: Kernel, names: Names, constants: dict[str, int],
    pointers: dict[str, str], options: EmitOptions,
) -> Writer:  # fmt: skip
    layout = lay_out(nest, kernel.schedule)
    online = online_variant(nest) if kernel.schedule.online else None
    tensors = [nest.graph.tensors[t] for t in (*nest.external, *nest.outputs)]
    return Writer(
        nest=nest, layout=layout, names=names, constants=constants, pointers=pointers,
        reduce=reduce_op,
        wide=any(tensor.elements >= WIDE for tensor in tensors),
        loop_points=options.loop_points, step_bytes=kernel.schedule.pipeline.step_bytes,
        step_points=options.step_points,
        block_elements=options.block_elements, whole_depth=options.whole_depth,
        held_elements=options.held_elements,
        whole=frozenset(n for n, axis in kernel.schedule.axes if axis.treatment == "whole"),
        online=online.rescaled if online is not None else frozenset(),
        store_on_the_way=_store_on_the_way,
    )  # fmt: skip


def _part(w: Writer) -> tuple[Scope, Layout, int]:
    """The body of one part of a kernel, its layout, and the blocks it takes."""
    nest, layout = w.nest, w.layout
    body = Scope(0)
    w.scopes.append(body)
    open_grid(w)
    stored = [
        i for i, op in nest.ops.items() if any(write.tensor in nest.outputs for write in op.writes)
    ]
    w.pending = dict.fromkeys(stored)
    with ExitStack() as loops:
        for axis in layout.batch:
            loops.enter_context(walking(w, (axis,), block=1, scalar=True))
        for i in _store_order(w, stored):
            if i in w.pending:
                _output(w, i)
    return body, layout, layout.blocks(nest.sizes)


def _store_order(w: Writer, stored: list[int]) -> list[int]:
    """Reductions first, and what is made of a stored tensor before it: their loops store it."""
    wanted = sorted(stored, key=lambda i: w.nest.ops[i].combine is None)
    made_of = {i: above(w, i) for i in stored}
    found: list[int] = []

    def take(i: int) -> None:
        for j in wanted:
            if j != i and i in made_of[j] and j not in found:
                take(j)
        if i not in found:
            found.append(i)

    for i in wanted:
        take(i)
    return found


def _store_on_the_way(w: Writer, on_the_way: set[int], axes: tuple[str, ...], frame: Frame) -> None:
    """Store, in the loop of some reductions, the tensors on their way that lie in its tile."""
    for i in [i for i in w.pending if i in on_the_way]:
        op = w.nest.ops[i]
        inner = {n for n in op.kept if w.extent(n) > 1 and _is_walked(w, n)}
        in_sight = all(n in w.variables for n in op.kept if w.extent(n) > 1)
        if inner == set(axes) and in_sight:
            used = {w.variables[n].group for n in op.kept if n in w.variables}
            _store(w, i, {name: place for name, place in frame.items() if name in used})


def _is_walked(w: Writer, axis: str) -> bool:
    """Whether an axis is neither on lanes of the grid nor a block's own position."""
    layout = w.layout
    return axis in layout.split or not (axis in layout.tiles or layout.has_lanes(axis))


def _output(w: Writer, i: int) -> None:
    """Compute and store what one op writes to memory."""
    op = w.nest.ops[i]
    layout = w.layout
    frame: dict[str, int] = {}
    if layout.rows is not None:
        frame[layout.rows.name] = 0
    if layout.columns is not None:
        frame[layout.columns.name] = 1
    kept = [name for name in op.kept if op.sizes[name] > 1]
    used = {w.variables[n].group for n in kept if n in w.variables}
    frame = {name: place for name, place in frame.items() if name in used}
    inner = tuple(name for name in kept if w.extent(name) > 1 and _is_walked(w, name))
    if not inner:
        _store(w, i, frame)
        return
    taken = set(frame.values())
    alone = apart(w, i, inner, frame)
    inner = tuple(name for name in inner if name not in alone)
    place = next((p for p in ((1, 0) if layout.rank == 2 else (0,)) if p not in taken), None)
    least = MATRIX_LEAST if w.has_products else 1
    points = prod(w.extent(name) for name in inner)
    rows = prod(w.groups[name].lanes for name in frame)
    most = w.block_elements // max(1, rows)
    block = max(w.loop_points, least, 1 << max(0, most.bit_length() - 1))
    if place is None and points > 1 << 16:
        raise CannotEmit(f"{op.name}: axes {', '.join(inner)} have no lanes")
    with walking_apart(
        w, alone, inner, block=block, least=least, scalar=place is None, beside=rows
    ) as walk:
        w.groups[walk.group.name] = walk.group
        _store(w, i, walk.frame(frame, place))


def _store(w: Writer, i: int, frame: dict[str, int]) -> None:
    op = w.nest.ops[i]
    w.pending.pop(i, None)
    for write in op.writes:
        if write.tensor not in w.nest.outputs:
            continue
        if op.combine is not None:
            value = w.result(i, write.tensor, frame)
        else:
            value = w.pointwise(i, identity(op), frame)
        store(w, i, write, value, frame)


def _assemble(bodies: list[tuple[Scope, Layout, int]]) -> list[str]:
    """The parts of a kernel, side by side in ranges of the grid where there are several."""
    lines: list[str] = []
    if len(bodies) == 1:
        return list(bodies[0][0].render())
    lines.append("    pid = tl.program_id(0)")
    first = 0
    for number, (body, _, count) in enumerate(bodies):
        last = number == len(bodies) - 1
        word = "else:" if last else f"{'if' if number == 0 else 'elif'} pid < {first + count}:"
        lines.append(f"    {word}")
        if first:
            lines.append(f"        pid -= {first}")
        lines += body.render(2)
        first += count
    return lines


def _function(
    name: str, header: tuple[str, ...], pointers: list[str], constants: list[str], body: str
) -> str:
    lines = [f"# {line}".rstrip() for line in header]
    lines += ["@triton.jit", f"def {name}("]
    lines += _wrapped(pointers)
    lines += _wrapped([f"{constant}: tl.constexpr" for constant in constants])
    lines += ["):", body]
    return "\n".join(lines)


def _wrapped(parameters: list[str]) -> list[str]:
    """Parameters in lines of at most 100 characters."""
    lines: list[str] = []
    current = "   "
    for parameter in parameters:
        if len(current) + len(parameter) + 2 > 100:
            lines.append(current)
            current = "   "
        current += f" {parameter},"
    return [*lines, current] if current.strip() else lines
