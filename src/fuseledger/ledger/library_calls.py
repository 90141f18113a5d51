"""Which kernels a vendor's library has: a product with the epilogues of a table.

A kernel is realised by a library call or by generated code. What a library computes is data here:
a core (matrix product, convolution, attention) and the pointwise steps that may follow it, in the
order in which the library applies them. Ops are recognised by what they compute, not by a name.

Sources: cuBLASLt, `cublasLtEpilogue_t` and `D = epilogue(alpha·A·B + beta·C)` (CUDA toolkit
documentation, cublasLtMatmul); cuDNN, `cudnnConvolutionBiasActivationForward` and the attention
forward operation of its graph API; hipBLASLt, `hipblasLtEpilogue_t`; MIOpen's fusion plans
(convolution, bias, activation). GELU is the tanh form in all of them. No SiLU, norm or softmax.
"""

from __future__ import annotations

from functools import cached_property
from itertools import permutations
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call, Const, Expr, Read
from fuseledger.ledger.convolution import Convolution, convolution_of, is_windowed, slides
from fuseledger.ledger.kernel import Merge
from fuseledger.ledger.masks import unmasked_share
from fuseledger.ledger.nest import Nest

Core = Literal["gemm", "conv", "attention"]
"""Class of a kernel with a product of two tensors."""

LIBRARIES: dict[str, dict[Core, str]] = {
    "nvidia": {"gemm": "cuBLAS", "conv": "cuDNN", "attention": "cuDNN"},
    "amd": {"gemm": "hipBLASLt", "conv": "MIOpen", "attention": "CK"},
}
"""Vendor → core → the library that has it."""

EPILOGUES: dict[tuple[str, ...], str] = {
    (): "",
    ("bias",): "BIAS",
    ("relu",): "RELU",
    ("bias", "relu"): "RELU_BIAS",
    ("gelu_tanh",): "GELU",
    ("bias", "gelu_tanh"): "GELU_BIAS",
}
"""Steps after alpha·A·B + beta·C → cuBLASLt's name, without its prefix."""

CORES_WITH: dict[Core, frozenset[str]] = {
    "gemm": frozenset(("BIAS", "RELU", "RELU_BIAS", "GELU", "GELU_BIAS", "")),
    "conv": frozenset(("BIAS", "RELU", "RELU_BIAS", "")),
    "attention": frozenset(("",)),
}
"""Epilogues that the library of a core has; cuDNN's convolution has no GELU."""

MERGES_OF: dict[Core, tuple[Merge, ...]] = {
    "gemm": ("launch", "last block"),
    "conv": ("launch",),
    "attention": ("launch",),
}
"""Who merges the parts of a library's split: cuBLASLt either way (`cublasLtReductionScheme_t`:
INPLACE adds parts in the kernel, by counters; COMPUTE_TYPE in a step of its own); FlashAttention in
a kernel of its own (csrc/flash_attn/src/flash_fwd_launch_template.h, hopper/flash_fwd_combine.h).
Of convolutions nothing is known, so that a kernel of its own is taken."""

ADDENDS = frozenset(("bias", "residual"))
"""Steps that are sums: they commute until the first step that is not."""
PRODUCTS = frozenset(("fp64", "fp32", "fp16", "bf16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp4", "int8"))
"""Dtypes of the operands of cuBLAS's products (cublasLtMatmul, table of data types): of integers
those of 8 bits alone."""
HALF = frozenset(("fp16", "bf16", "fp8", "fp8_e4m3", "fp8_e5m2"))
"""Dtypes of the libraries' attention."""


class LibraryCall(Struct, frozen=True, dict=True):
    """A call that computes a kernel's ops, and nothing else."""

    library: str
    core: Core
    epilogue: str = ""
    residual: bool = False
    """Whether it adds a tensor of the result's shape before the activation: beta·C."""

    def __str__(self) -> str:
        return self.name

    @property
    def merges(self) -> tuple[Merge, ...]:
        """Who may merge the parts of its split axes."""
        return MERGES_OF[self.core]

    @cached_property
    def name(self) -> str:
        """The library and what its epilogue adds: `cuBLAS + beta·C + RELU_BIAS`."""
        parts = [self.library, *(["beta·C"] if self.residual else []), self.epilogue]
        return " + ".join(part for part in parts if part)


class Calls(Struct, frozen=True):
    """What kernel class some ops are, and the library call that computes them or why none does."""

    core: Core | None
    call: LibraryCall | None
    reason: str = ""
    """Why no library has it, where it holds a product of tensors."""
    rows: tuple[str, ...] = ()
    """Axes of an attention's queries: what a block has of them fills the rows of its tile."""
    unmasked: float = 1.0
    """Share of an attention's points that a library computes: it leaves out tiles that a mask by
    position hides (FlashAttention, hopper/block.h, `get_n_block_min_max`)."""
    convolution: Convolution | None = None
    """Its shape, where a convolution is the only product and has more than one channel a group."""

    @property
    def why_generated(self) -> str:
        """No library has it, or the one that has is slower; empty without a product."""
        if self.reason or self.call is None:
            return self.reason
        return f"{self.call.library} is slower with these tiles"


NO_PRODUCT = Calls(None, None)
"""Of ops without a product of tensors: generated."""
GROUPED = Calls("gemm", LibraryCall("PyTorch", "gemm"))
"""Of a barrier that tells its work: the operator's own kernel, as fast as a library's product."""


def library_calls(nest: Nest, vendor: str) -> Calls:
    """The library call of a kernel's ops; `core` is None where they hold no product of tensors."""
    products = [i for i, op in nest.ops.items() if is_product(op)]
    if not products:
        return GROUPED if any(op.is_opaque and op.flops for op in nest.ops.values()) else NO_PRODUCT
    core = _core(nest, products)
    calls = _calls(nest, vendor, core, products)
    if core != "conv" or len(products) > 1:
        return calls
    op = nest.ops[products[0]]
    x = next(read for read in op.reads if is_windowed(read))
    shape = convolution_of(
        op, nest.graph.tensors[x.tensor], nest.graph.tensors[op.writes[0].tensor]
    )
    return calls if shape.depthwise else replace(calls, convolution=shape)


def _calls(nest: Nest, vendor: str, core: Core, products: list[int]) -> Calls:
    libraries = LIBRARIES.get(vendor)
    if libraries is None:
        return Calls(core, None, f"no library of {vendor} is known")
    dtype = nest.graph.tensors[nest.ops[products[0]].reads[0].tensor].dtype
    if core == "gemm" and dtype not in PRODUCTS:
        return Calls(core, None, f"{libraries[core]} has no product of {dtype}")
    if core != "attention" and len(products) > 1:
        return Calls(core, None, "a library computes one product a call")
    steps = _steps(nest, products[0])
    if isinstance(steps, str):
        return Calls(core, None, steps)
    if core == "attention":
        return _attention(nest, libraries[core], steps, products)
    return _with_epilogue(libraries[core], core, steps)


def _with_epilogue(library: str, core: Core, steps: list[str]) -> Calls:
    if steps[:1] == ["alpha"] or (core == "gemm" and steps[:1] == ["scales"]):
        steps = steps[1:]
    known = {epilogue: name for epilogue, name in EPILOGUES.items() if name in CORES_WITH[core]}
    for order in _orders(steps):
        residual = order[:1] == ("residual",)
        name = known.get(order[1:] if residual else order)
        if name is not None:
            return Calls(core, LibraryCall(library, core, name, residual))
    return Calls(core, None, f"{library} {_miss(steps, known)}")


def _miss(steps: list[str], known: dict[tuple[str, ...], str]) -> str:
    has = {"residual", *(step for epilogue in known for step in epilogue)}
    missing = next((step for step in steps if step not in has), None)
    if missing == "gelu" and "gelu_tanh" in has:
        return "has GELU in its tanh form only"
    if missing == "mask":
        return "adds a bias or a whole tensor only"
    if missing is not None:
        return f"has no epilogue {missing}"
    return f"cannot apply {', '.join(steps)} in this order"


def _orders(steps: list[str]) -> list[tuple[str, ...]]:
    """The steps in every order that computes the same: leading sums commute."""
    sums = 0
    while sums < len(steps) and steps[sums] in ADDENDS:
        sums += 1
    if sums > 3:
        return [tuple(steps)]
    return [(*head, *steps[sums:]) for head in permutations(steps[:sums])]


def _attention(nest: Nest, library: str, steps: list[str], products: list[int]) -> Calls:
    left, right = (read.axes for read in nest.ops[products[0]].reads)
    rows = tuple(name for name in left if name not in right)
    dtype = nest.graph.tensors[nest.ops[products[0]].reads[0].tensor].dtype
    call, reason = LibraryCall(library, "attention"), ""
    if len(products) != 2 or [step for step in steps if step not in _INSIDE] != _SOFTMAX:
        call, reason = None, f"{library}'s attention is QKᵀ, scale, mask, softmax, V"
    elif dtype not in HALF:
        call, reason = None, f"{library} has no attention in {dtype}"
    return Calls("attention", call, reason, rows, unmasked_share(nest, ATTENTION_TILE))


ATTENTION_TILE = 128
"""Rows of a tile in the libraries' attention, and columns that it takes at a time: a block with
fewer queries computes them all the same (FlashAttention, hopper/tile_size.h and
csrc/flash_attn/src/flash_fwd_launch_template.h: 128 rows for heads of 64 and more)."""
_SOFTMAX = ["softmax.statistic", "softmax.apply", "product"]
_INSIDE = ("alpha", "mask", "identity")
"""Steps between its products that a library's attention takes in: scale, mask, casts."""


def is_product(op: Op) -> bool:
    """Σ of a product of two tensors, or of two parts of one (a packed projection's queries and
    keys): a contraction, a GEMV, a convolution; not of squares."""
    if op.combine != "sum" or not op.reduces or not isinstance(op.body, Call):
        return False
    if op.body.function != "mul" or len(op.reads) != 2:
        return False
    first, second = op.body.args
    if not (isinstance(first, Read) and isinstance(second, Read)):
        return False
    left, right = op.reads[first.slot], op.reads[second.slot]
    if left == right:
        return False
    return bool(set(left.axes) & set(right.axes) & op.reduces)


def _core(nest: Nest, products: list[int]) -> Core:
    if any(op.combine == "max_sumexp" for op in nest.ops.values()) and len(products) > 1:
        return "attention"
    windowed = any(slides(nest.ops[i], read) for i in products for read in nest.ops[i].reads)
    return "conv" if windowed else "gemm"


def _steps(nest: Nest, product: int) -> list[str] | str:
    """What follows the product, op by op, or why it is no chain that a library could run."""
    head = nest.ops[product]
    before = _before(nest, product)
    if before is not None:
        return f"a library has no {before.function} before the product"
    steps: list[str] = []
    current = head.writes[0].tensor
    statistic: list[str] = []
    for i in nest.positions:
        op = nest.ops[i]
        if op is head:
            continue
        follows = not {current, *statistic}.isdisjoint(read.tensor for read in op.reads)
        step = _step(op, current, head, statistic) if follows else None
        if follows and step is None and _scales_sides(nest, op, current, head):
            step = "scales"
        if step is None:
            return f"a library has no epilogue {op.function}"
        if op.combine == "max_sumexp":
            statistic = [write.tensor for write in op.writes]
        else:
            current = op.writes[0].tensor
        steps.append(step)
    return steps if nest.outputs == [current] else "a library call has one result"


def _before(nest: Nest, product: int) -> Op | None:
    """The first op of the nest whose result goes into the product."""
    wanted = {read.tensor for read in nest.ops[product].reads}
    first: Op | None = None
    for i in reversed(nest.positions):
        op = nest.ops[i]
        if i < product and any(write.tensor in wanted for write in op.writes):
            wanted.update(read.tensor for read in op.reads)
            first = op
    return first


def _step(op: Op, current: str, head: Op, statistic: list[str]) -> str | None:
    if is_product(op):
        return "product"
    if op.combine == "max_sumexp":
        return "softmax.statistic"
    if op.combine is not None or op.kind != "loop" or not isinstance(op.body, Call):
        return None
    if statistic and any(access.tensor in statistic for access in op.reads):
        return "softmax.apply"
    body = op.body
    slots = [arg.slot if isinstance(arg, Read) else None for arg in body.args]
    others = [slot for slot in slots if slot is not None and op.reads[slot].tensor != current]
    if body.function in ("mul", "div") and _scales(body):
        return "alpha"
    if body.function == "add" and None not in slots and len(slots) == 2 and len(others) == 1:
        return _sum(op, op.reads[others[0]].tensor, current, head)
    if body.function == "max" and not others and Const(0.0) in body.args:
        return "relu"
    if body.function == "where":
        return "mask"
    return body.function if len(body.args) == 1 else None


def _scales(body: Call) -> bool:
    kinds: list[type[Expr]] = [type(arg) for arg in body.args]
    return kinds == [Read, Const] or (body.function == "mul" and kinds == [Const, Read])


def _scales_sides(nest: Nest, op: Op, current: str, head: Op) -> bool:
    """Whether a product of fp8 is multiplied by what its operands were scaled by: a number each, or
    one a row and a column (cublasLtMatmulMatrixScale_t, SCALAR_32F and OUTER_VEC_32F; hipBLASLt's
    A_SCALE_POINTER_VEC and B_SCALE_POINTER_VEC)."""
    dtypes = {nest.graph.tensors[read.tensor].dtype for read in head.reads}
    others = [read for read in op.reads if read.tensor != current]
    if not all(dtype.startswith("fp8") for dtype in dtypes) or op.combine is not None:
        return False
    sides = [set(read.axes) - head.reduces for read in head.reads]
    alone = (sides[0] - sides[1], sides[1] - sides[0])
    axes = [{name for name in read.axes if op.sizes.get(name, 1) > 1} for read in others]
    return _only_multiplies(op.body) and all(any(a <= side for side in alone) for a in axes)


def _only_multiplies(body: Expr | None) -> bool:
    if isinstance(body, Call):
        return body.function == "mul" and all(map(_only_multiplies, body.args))
    return isinstance(body, Read)


def _sum(op: Op, added: str, current: str, head: Op) -> str:
    """A bias along the columns (the channels), a tensor of the result's shape, or a mask."""
    access = next(read for read in op.reads if read.tensor == added)
    axes = {name for name in access.axes if op.sizes.get(name, 1) > 1}
    result = next(read for read in op.reads if read.tensor == current)
    whole = {name for name in result.axes if op.sizes.get(name, 1) > 1}
    if axes == whole:
        return "residual"
    sides = [set(read.axes) - head.reduces for read in head.reads]
    alone = (sides[0] - sides[1], sides[1] - sides[0])
    windowed = [slides(head, read) for read in head.reads]
    if any(windowed):  # a convolution's channels are those of its weight, wherever they are stored
        columns = alone[windowed.index(False)] if False in windowed else set[str]()
    else:
        columns = alone[0] if result.axes and result.axes[-1] in alone[0] else alone[1]
    return "bias" if axes and axes <= columns else "mask"
