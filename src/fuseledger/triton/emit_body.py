"""Values, loads and stores: the part of a kernel's code that follows from its ops' bodies.

Values are asked for, never scheduled: `value` of a tensor at given coordinates is a load where the
tensor lies outside the kernel, the op's own body where it is pointwise, and a reduction's result
(see `emit_reduce.py`) otherwise. A line goes into the outermost block where all it needs is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.graph.axis import Index
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Read
from fuseledger.graph.tensor import DTYPE_BITS, Tensor, is_float
from fuseledger.ledger.kernel import SHALLOW
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.matrix_units import WHOLE_DEPTH
from fuseledger.ledger.nest import Nest
from fuseledger.triton.emit_expression import expression
from fuseledger.triton.emit_fold import fold
from fuseledger.triton.emit_moved import moved_result
from fuseledger.triton.lanes import Group, Layout
from fuseledger.triton.partials import Partial
from fuseledger.triton.scope import (
    POINTER_TYPES,
    Coords,
    Frame,
    Names,
    Range,
    Scope,
    Text,
    Variable,
    all_of,
    literal,
    scaled,
    unwrapped,
)

HELD_MAX = 1 << 16
"""Elements along axes held whole that code makes at once: the registers of an SM. Beyond them the
axes are walked, and what the plan holds along them is made or loaded again."""
PRODUCTS_MAX = HELD_MAX // 2
"""The same where several tensors meet: one of them is what the plan holds."""
HELD_ELEMENTS = PRODUCTS_MAX // 2
"""Elements of a row that is held × the results that are made of it at a time."""

Crowded = Literal["in steps", "a few at a time"]
"""How a reduction over axes held whole is made that cannot be made at once: the axes are walked,
or its results are."""


class Writer(Struct):
    """Writes the code of one part of a kernel."""

    nest: Nest
    layout: Layout
    names: Names
    constants: dict[str, int]
    """Named sizes and tiles of the kernel → their values."""
    pointers: dict[str, str]
    """Tensor → the kernel's parameter."""
    reduce: Callable[[Writer, int, Frame], None] | None = None
    """Emits a reduction; its results are then known."""
    store_on_the_way: Callable[[Writer, set[int], tuple[str, ...], Frame], None] | None = None
    """Stores, inside a loop of reductions, what is made on the way to them."""
    scopes: list[Scope] = field(default_factory=list[Scope])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    lane_names: dict[str, str] = field(default_factory=dict[str, str])
    """Group → the vector of its lanes' numbers, over all its axes."""
    block_names: dict[str, str] = field(default_factory=dict[str, str])
    """Group → the constant that holds its lanes."""
    size_names: dict[str, str] = field(default_factory=dict[str, str])
    wide: bool = False
    """Whether offsets need 64 bits."""
    loop_points: int = LOOP_POINTS
    """Points of an in-block loop walked at once."""
    step_bytes: int = SHALLOW.step_bytes
    """Bytes along the reduced axis that one step of a matrix product loads of each row."""
    step_points: int | None = None
    """Points of such a step, whatever their bytes."""
    block_elements: int = 1024
    """Elements of a tile that a walk makes in a kernel without matrix products."""
    whole_depth: int = WHOLE_DEPTH
    """Up to so many reduced points a matrix product inside a loop takes at once."""
    whole: frozenset[str] = frozenset()
    """Axes held whole in the block."""
    online: frozenset[int] = frozenset()
    """Sums that are rescaled while their operand's statistic is still being made."""
    vectors: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """(axis, lanes) → the vector's name, the same in every loop."""
    integers: set[str] = field(default_factory=set[str])
    """Names that hold positions."""
    makers: dict[str, int] = field(default_factory=dict[str, int])
    ranges: dict[str, Range] = field(default_factory=dict[str, Range])
    """Axes of which a block walks a part."""
    tiles: dict[str, Range] = field(default_factory=dict[str, Range])
    """Axes on lanes: the tile of the block, or of a loop's step, also where the axis ends in it."""
    positions: dict[str, str] = field(default_factory=dict[str, str])
    """Grid axis → the number of the block's tile along it."""
    parts: dict[str, str] = field(default_factory=dict[str, str])
    """Split axis → the number of the block's part of it."""
    partials: dict[int, Partial] = field(default_factory=dict[int, Partial])
    """Ops whose results leave this kernel as parts."""
    folded: Mapping[str, Partial] = field(default_factory=dict[str, Partial])
    """External tensors that arrive as parts."""
    in_flight: int | None = None
    """Blocks that run at once; None where no device is known."""
    is_alone: bool = True
    """Whether the whole grid is this part's."""
    notes: dict[str, None] = field(default_factory=dict[str, None])
    """Where the code departs from the schedule."""
    planned: Mapping[int, Crowded] | None = None
    """Where shapes are smaller than planned: the reductions that are crowded on planned ones."""
    crowded: dict[int, Crowded] = field(default_factory=dict[int, Crowded])
    """The reductions over axes held whole that are not made at once."""
    held_elements: int = HELD_ELEMENTS
    """Elements of a row that is held × results made at a time."""
    guards: tuple[Text, ...] = ()
    """Where the value at hand is used: elsewhere its reader puts a fill, and nothing is loaded."""
    pending: dict[int, None] = field(default_factory=dict[int, None])
    """Ops whose results are still to be stored."""

    @property
    def has_products(self) -> bool:
        """Whether tiles are sides of matrix products, which have a least size."""
        return any(op.is_contraction for op in self.nest.ops.values())

    def __post_init__(self) -> None:
        self.makers = {w.tensor: i for i, op in self.nest.ops.items() for w in op.writes}

    # -- lines -----------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Depth of the innermost open block."""
        return len(self.scopes) - 1

    def line(self, text: str, depth: int | None = None) -> None:
        """Append a line to the block of that depth, by default the innermost."""
        self.scopes[self.depth if depth is None else depth].lines.append(text)

    def bind(self, wanted: str, value: Text) -> Text:
        """The value as a variable; the same text in sight is computed once."""
        for scope in self.scopes:
            found = scope.known.get(value.text)
            if found is not None:
                return found
        name = self.names.new(wanted)
        self.line(f"{name} = {unwrapped(value.text)}", value.depth)
        bound = replace(value, text=name)
        self.scopes[value.depth].known[value.text] = bound
        return bound

    def known(self, key: object) -> Text | None:
        """A value that an open block has already."""
        for scope in reversed(self.scopes):
            if key in scope.known:
                return scope.known[key]
        return None

    def size_name(self, axis: str) -> str:
        """The constant that holds an axis's size."""
        if axis not in self.size_names:
            name = self.names.new(axis.upper())
            self.size_names[axis] = name
            self.constants[name] = self.nest.sizes[axis]
        return self.size_names[axis]

    def block_name(self, group: Group) -> str:
        """The constant that holds a group's lanes."""
        if group.name not in self.block_names:
            words = group.axes[0] if len(group.axes) == 1 else group.name
            name = self.names.new(f"BLOCK_{words.upper()}")
            self.block_names[group.name] = name
            self.constants[name] = group.lanes
        return self.block_names[group.name]

    def extent(self, axis: str) -> int:
        """The most points of an axis that a block walks, where it is not on lanes of the grid."""
        return self.ranges[axis].extent if axis in self.ranges else self.nest.sizes[axis]

    def extent_text(self, axis: str) -> str:
        """The points of an axis that a block walks."""
        return self.ranges[axis].count if axis in self.ranges else self.size_name(axis)

    def crowds(self, i: int, axes: tuple[str, ...], elements: int, *, is_product: bool) -> bool:
        """Whether a reduction over axes held whole has more elements than can be made at once."""
        if self.planned is not None:
            return i in self.planned
        most = PRODUCTS_MAX if is_product else HELD_MAX
        return bool(axes) and self.whole.issuperset(axes) and elements > most

    def streams(self, i: int, axes: tuple[str, ...], elements: int, *, is_product: bool) -> bool:
        """Whether axes are walked though the plan holds something whole along them; noted."""
        if not self.crowds(i, axes, elements, is_product=is_product):
            return False
        words = ", ".join(axis.lower() for axis in axes)
        note = f"{words}: walked, since {elements:,} elements at once fit no registers;"
        self.notes[f"{note} what is held along it is made again"] = None
        self.crowded[i] = "in steps"
        return True

    # -- lanes -----------------------------------------------------------------------------

    def lanes(self, name: str, group: str, frame: Frame) -> tuple[str, frozenset[int]]:
        """A vector of lanes, turned to its place in the tile."""
        if group not in frame:
            raise CannotEmit(f"the lanes of {name} have no place here")
        place = frame[group]
        if self.layout.rank == 1:
            return name, frozenset({0})
        return f"{name}[:, None]" if place == 0 else f"{name}[None, :]", frozenset({place})

    def variable(self, axis: str, frame: Frame) -> Text:
        """A loop index as it stands in the tile at hand."""
        if axis not in self.variables:
            if self.nest.sizes.get(axis) == 1:
                return Text("0", kind="int")
            if axis in self.ranges and self.ranges[axis].extent == 1:
                return Text(self.ranges[axis].begin, kind="int")
            raise CannotEmit(f"axis {axis} is not walked where its value is needed")
        found = self.variables[axis]
        if found.group is None:
            return Text(found.name, found.depth, found.places, "int")
        text, places = self.lanes(found.name, found.group, frame)
        return Text(text, found.depth, places, "int")

    def overrun(self, axes: set[str], frame: Frame) -> Text | None:
        """The condition that the lanes of these axes are points of the tensor, where needed."""
        terms: dict[str, None] = {}
        depth, places = 0, frozenset[int]()
        for axis in sorted(axes, key=lambda a: list(self.variables).index(a)):
            found = self.variables[axis]
            for vector, limit in found.conditions:
                text, where = vector, frozenset[int]()
                if found.group is not None:
                    text, where = self.lanes(vector, found.group, frame)
                terms[f"({text} < {limit})"] = None
                depth, places = max(depth, found.depth), places | where
        return Text(" & ".join(terms), depth, places, "bool") if terms else None

    def coordinate(self, index: Index, frame: Frame) -> Text:
        """An affine coordinate as text."""
        parts: list[str] = []
        depth, places = 0, frozenset[int]()
        for axis, stride in index.terms:
            variable = self.variable(axis, frame)
            if variable.text != "0":
                parts.append(scaled(variable.text, stride))
                depth, places = max(depth, variable.depth), places | variable.places
        text = " + ".join(parts).replace("+ -", "- ")
        if not parts:
            return Text(str(index.offset), kind="int")
        if index.offset:
            text += f" {'+' if index.offset > 0 else '-'} {abs(index.offset)}"
        return Text(text, depth, places, "int")

    # -- reads -----------------------------------------------------------------------------

    def resolve(
        self, op: Op, access: Access, coords: Coords, frame: Frame
    ) -> tuple[list[Index], list[Text]]:
        """Where an access reads, over the variables in sight, and what says that it is inside."""
        tensor = self.nest.graph.tensors[access.tensor]
        found: list[Index] = []
        inside: list[Text] = []
        for position, (index, axis) in enumerate(zip(access.index, tensor.axes, strict=True)):
            moved = replace(index, lookup=None, divisor=1).substitute(dict(coords))
            if index.lookup is not None or index.divisor != 1:
                inside += self._points(op, index, coords, frame)
            if index.lookup is not None:
                moved = self._looked_up(op, index, moved, axis.size, coords, frame)
            if index.divisor != 1:
                moved, whole = self._divided(access, position, moved, index.divisor, frame)
                inside.append(whole)
            if access.fill is not None:
                inside += self._within(moved, axis.size, frame, strict=index.lookup is not None)
            found.append(moved)
        return found, inside

    def _points(self, op: Op, index: Index, coords: Coords, frame: Frame) -> list[Text]:
        """That the lanes are points, where a coordinate computed from them no longer shows it."""
        axes = [name for name, _ in index.terms]
        axes += op.reads[index.lookup].axes if index.lookup is not None else ()
        walked = {n for axis in axes for n, _ in coords.get(axis, Index.of(axis)).terms}
        found = self.overrun(walked & self.variables.keys(), frame)
        return [found] if found is not None else []

    def _looked_up(
        self, op: Op, index: Index, moved: Index, size: int, coords: Coords, frame: Frame
    ) -> Index:
        assert index.lookup is not None
        looked_up = self.read(op, index.lookup, coords, frame, raw=True)
        text = looked_up.text
        if looked_up.kind == "float":
            text = f"{text}.to(tl.int32)"
        wrapped = replace(
            looked_up, text=f"tl.where({text} < 0, {text} + {size}, {text})", kind="int"
        )
        bound = self.bind(f"{op.reads[index.lookup].tensor}_row", wrapped)
        self.variables[bound.text] = Variable(bound.text, bound.depth, places=bound.places)
        return Index((*moved.terms, (bound.text, 1)), moved.offset)

    def _divided(
        self, access: Access, position: int, moved: Index, divisor: int, frame: Frame
    ) -> tuple[Index, Text]:
        """A coordinate with a divisor: it is in the tensor only where it divides."""
        at = self.coordinate(moved, frame)
        tensor = self.nest.graph.tensors[access.tensor]
        stem = tensor.axis_names[position]
        raw = self.bind(f"{stem}_scaled", replace(at, text=f"({at.text})"))
        bound = self.bind(f"{stem}_at", replace(raw, text=f"{raw.text} // {divisor}"))
        self.variables[bound.text] = Variable(bound.text, bound.depth, places=bound.places)
        whole = replace(raw, text=f"({raw.text} >= 0) & ({raw.text} % {divisor} == 0)", kind="bool")
        return Index.of(bound.text), whole

    def _within(self, index: Index, size: int, frame: Frame, *, strict: bool) -> list[Text]:
        """Conditions for a coordinate to be inside, where its bounds do not say so already."""
        computed = any(name not in self.nest.sizes for name, _ in index.terms)
        known = self.nest.sizes | dict.fromkeys((n for n, _ in index.terms if computed), 1)
        low, high = index.bounds(known.__getitem__)
        at = self.coordinate(index, frame)
        conditions: list[Text] = []
        if low < 0 or strict:
            conditions.append(replace(at, text=f"({at.text} >= 0)", kind="bool"))
        if high >= size or computed:
            conditions.append(replace(at, text=f"({at.text} < {size})", kind="bool"))
        return conditions

    def read(self, op: Op, slot: int, coords: Coords, frame: Frame, *, raw: bool = False) -> Text:
        """The value of a read; `raw` keeps a loaded value's own dtype."""
        access = op.reads[slot]
        tensor = self.nest.graph.tensors[access.tensor]
        at, inside = self.resolve(op, access, coords, frame)
        producer = self.makers.get(access.tensor)
        if producer is None:
            return self._load(tensor, access, at, inside, frame, raw=raw)
        outside, self.guards = self.guards, (*self.guards, *inside)
        value = self.value(producer, access.tensor, at, frame)
        self.guards = outside
        within = all_of(inside)
        if within is None:
            return value
        filled = f"tl.where({within.text}, {value.number}, {literal(access.fill or 0.0)})"
        return self.bind(
            f"{tensor.name}_padded",
            Text(filled, max(value.depth, within.depth), value.places | within.places),
        )

    def _load(
        self, tensor: Tensor, access: Access, at: list[Index], inside: list[Text], frame: Frame,
        *, raw: bool,
    ) -> Text:  # fmt: skip
        if tensor.dtype not in POINTER_TYPES:
            raise CannotEmit(f"{tensor.name} is {tensor.dtype}, which Triton does not load")
        offset = self.offset(tensor, at, frame)
        axes = {name for index in at for name, _ in index.terms if name in self.variables}
        guards = [guard for guard in self.guards if guard.places <= offset.places]
        overrun = self.overrun(axes, frame)
        mask = all_of([*inside, *([overrun] if overrun is not None else []), *guards])
        if tensor.name in self.folded:
            return fold(self, tensor.name, offset, mask)
        text = f"tl.load({self.pointers[tensor.name]} + {offset.text}"
        depth, places = offset.depth, offset.places
        if mask is not None:
            if mask.places - offset.places:
                raise CannotEmit(f"{tensor.name} is read at fewer points than its mask has")
            depth = max(depth, mask.depth)
            mask_text = mask.text
            other = (
                literal(access.fill or 0.0)
                if is_float(tensor.dtype)
                else str(int(access.fill or 0))
            )
            text += f", mask={mask_text}, other={other}"
        kind = "float" if is_float(tensor.dtype) else "bool" if tensor.dtype == "bool" else "int"
        narrow = kind == "int" and DTYPE_BITS[tensor.dtype] < 32
        shown = [name for index in at for name, _ in index.terms]
        loaded = self.bind(
            self._tile_name(tensor.name, shown), Text(f"{text})", depth, places, kind, narrow)
        )
        if raw or kind != "float" or tensor.dtype == "fp32":
            return loaded
        cast = f"{loaded.text}.to(tl.float32)"
        return self.known(cast) or replace(loaded, text=cast)

    def _tile_name(self, stem: str, axes: list[str]) -> str:
        """A value's name with the axes it has: `x_mk`."""
        known = dict.fromkeys(n for n in axes if n in self.variables and n in self.nest.sizes)
        suffix = "".join(known)
        return f"{stem}_{suffix}".lower() if suffix and len(suffix) <= 8 else f"{stem}_tile".lower()

    def offset(self, tensor: Tensor, at: list[Index], frame: Frame) -> Text:
        """The row-major offset of coordinates in a tensor."""
        parts: list[str] = []
        depth, places = 0, frozenset[int]()
        constant = 0
        for position, index in enumerate(at):
            inner = tensor.axes[position + 1 :]
            stride = prod(axis.size for axis in inner)
            constant += index.offset * stride
            for name, factor in index.terms:
                variable = self.variable(name, frame)
                if variable.text == "0":
                    continue
                step = stride * factor
                words = str(abs(step))
                named = [a.name for a in inner if a.size > 1]
                if factor == 1 and named and self.nest.sizes.keys() >= set(named):
                    words = " * ".join(self.size_name(name) for name in named)
                    words = f"({words})" if len(named) > 1 else words
                parts.append(scaled(variable.text, step, words))
                depth, places = max(depth, variable.depth), places | variable.places
        if constant or not parts:
            parts.append(str(constant))
        text = " + ".join(parts).replace("+ -", "- ")
        return Text(text if len(parts) == 1 else f"({text})", depth, places, "int")

    # -- values ----------------------------------------------------------------------------

    def value(self, i: int, tensor: str, at: list[Index], frame: Frame) -> Text:
        """The value of a tensor made in this kernel."""
        op = self.nest.ops[i]
        write = next(w for w in op.writes if w.tensor == tensor)
        coords: dict[str, Index] = {}
        for mine, index in zip(write.plain, at, strict=True):
            if mine is None:
                raise CannotEmit(f"{op.name} reorders {tensor} inside the kernel")
            coords[mine] = index
        if op.combine is not None:
            return moved_result(self, i, tensor, coords, frame)
        return self.pointwise(i, coords, frame)

    def result(self, i: int, tensor: str, frame: Frame) -> Text:
        """The result of a reduction, computed where it is not known yet."""
        key = self.result_key(i, tensor, frame)
        found = self.known(key)
        if found is None:
            assert self.reduce is not None
            outside, self.guards = self.guards, ()
            self.reduce(self, i, frame)
            self.guards = outside
            found = self.known(key)
            assert found is not None
        return found

    def result_key(self, i: int, tensor: str, frame: Frame) -> object:
        """What a reduction's result is known by: the tensor, where, and how its tile lies."""
        kept = [
            (name, self.variables[name].name, frame.get(self.variables[name].group or ""))
            for name in self.nest.ops[i].kept
            if name in self.variables
        ]
        return ("result", tensor, tuple(kept))

    def pointwise(self, i: int, coords: Coords, frame: Frame) -> Text:
        """The body of a pointwise op at given coordinates, bound to a name."""
        op = self.nest.ops[i]
        value = expression(self, op, op.body, coords, frame)
        if isinstance(op.body, Read) or value.text.isidentifier():
            return value
        shown = [n for n in op.kept if n in self.variables]
        return self.bind(self._tile_name(op.writes[0].tensor, shown), value)

    def body(self, i: int, frame: Frame) -> Text:
        """The body of a reduction at the loop indices in sight."""
        op = self.nest.ops[i]
        return expression(self, op, op.body, identity(op), frame)

    def part_text(self, partial: Partial) -> str:
        """The number of the block's part of a split result."""
        text = ""
        for name, size, tile in partial.axes:
            digit = self.parts[name]
            count = -(-size // tile)
            outer = f"({text})" if " " in text else text
            text = f"{outer} * {count} + {digit}" if text else digit
        return text


def identity(op: Op) -> dict[str, Index]:
    """Every axis of an op where it is."""
    return {axis.name: Index.of(axis.name) for axis in op.axes}
