"""The ledger of six decisions: each option from the shapes that the exercise states.

The exercise prints bytes, grids and bytes on chip without their derivations. Those here are the
simplest that reproduce every figure; what they assume is in their words. Traffic that both options
of a decision share (a GEMM's operands) is left out, as in the exercise.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from fuseledger.devices import Device, load, replace_figures
from fuseledger.verdict.options import Decision, DeclaredOption, Part, decide_declared, product

BANDWIDTH_GBS = 4502.4
SM_COUNT = 132
BASE_DEVICE = "h100-sxm"

SHARED_BUDGET = 228 * 1024
REGISTER_BUDGET = 192 * 1024

TILE = 128
"""Rows and columns of a GEMM tile; the exercise's grids are those of 128×128."""
KEYS_PER_TILE = 128
"""Keys and values that a block of decode attention holds of one pipeline stage."""
STAGES = 2
BLOCK_ELEMENTS = 1024
"""Elements of a block of a pointwise kernel."""
HALF, FLOAT = 2, 4
"""Bytes of an fp16 and an fp32 element or register."""
WARP = 32


def ledger_device(bandwidth_gbs: float = BANDWIDTH_GBS, sm_count: int = SM_COUNT) -> Device:
    """The exercise's machine: an H100 with these two figures set."""
    figures: dict[str, float] = {"dram_bandwidth_gbs": bandwidth_gbs, "sm_count": sm_count}
    return replace_figures(load(BASE_DEVICE), **figures)


def elementwise_chain(elements: int = 1 << 24) -> list[DeclaredOption]:
    """Two pointwise ops on fp16: two kernels, or one."""
    blocks = -(-elements // BLOCK_ELEMENTS)
    held = product(BLOCK_ELEMENTS, HALF, of="elements of a block × fp16")
    x, y, z = (Part(name, elements, "fp16") for name in "xyz")
    return [
        DeclaredOption(
            name="2 kernels", reads=(x, _again(y)), writes=(y, z), choice="split", launches=2,
            grid=product(2, blocks, of="kernels × blocks of 1,024 (both counted: assumed)"),
            on_chip=held, budget_bytes=SHARED_BUDGET,
        ),
        DeclaredOption(
            name="1 fused", reads=(x,), writes=(z,), choice="fuse", budget_bytes=SHARED_BUDGET,
            grid=product(blocks, of="blocks of 1,024 elements"), on_chip=held,
        ),
    ]  # fmt: skip


def qk_norm_rope_quant(
    tokens: int = 4096, heads: int = 32, kv_heads: int = 8, head: int = 128
) -> list[DeclaredOption]:
    """QK-norm and RoPE, then quantisation to fp8: two kernels, or one."""
    rows = tokens * (heads + kv_heads)
    x, y = (Part(name, rows * head, "fp16") for name in ("qk", "rotated"))
    tables = Part("cos and sin", 2 * tokens * head, "fp32")
    gains = Part("norm weights", 2 * head, "fp16")
    quantised = (Part("fp8", rows * head, "fp8_e4m3"), Part("scale per row", rows, "fp32"))
    warps = 8
    return [
        DeclaredOption(
            name="2 kernels", reads=(x, tables, gains, _again(y)), writes=(y, *quantised),
            grid=product(tokens, heads + kv_heads, of="tokens × heads, a block a row"),
            on_chip=product(head, 32, FLOAT, of="threads × registers (32 assumed) × B"),
            budget_bytes=REGISTER_BUDGET, launches=2, choice="split",
        ),
        DeclaredOption(
            name="1 fused", reads=(x, tables, gains), writes=quantised,
            grid=product(-(-rows // warps), of=f"tokens × heads / {warps}, a warp a row"),
            on_chip=product(warps * WARP, 104, FLOAT, of="threads × registers (104 assumed) × B"),
            budget_bytes=REGISTER_BUDGET, choice="fuse",
        ),
    ]  # fmt: skip


def gemm_bias_gelu(M: int = 4096, N: int = 4096) -> list[DeclaredOption]:
    """GEMM, bias and GELU: the GEMM and a pointwise kernel, or a fused epilogue."""
    c, y, bias = Part("c", M * N, "fp16"), Part("y", M * N, "fp16"), Part("bias", N, "fp16")
    grid = product(_tiles(M), _tiles(N), of="128×128 tiles of the GEMM")
    accumulators = product(TILE, TILE, FLOAT, of="fp32 accumulators of a tile")
    return [
        DeclaredOption(
            name="2 kernels", reads=(_again(c), bias), writes=(c, y), grid=grid, launches=2,
            on_chip=accumulators, budget_bytes=SHARED_BUDGET, choice="split",
        ),
        DeclaredOption(
            name="fused epilogue", reads=(bias,), writes=(y,), grid=grid, choice="fuse",
            on_chip=accumulators + product(TILE, HALF, of="bias of a tile's columns"),
            budget_bytes=SHARED_BUDGET,
        ),
    ]  # fmt: skip


def skinny_gemm(
    M: int = 1024, N: int = 1024, K: int = 16384, split: int = 8
) -> list[DeclaredOption]:
    """A GEMM with few tiles and much to reduce: one block a tile, or split-K.

    The result is fp32; the operands, read once by both, are left out.
    """
    c = Part("c", M * N, "fp32")
    partials = Part("partials", split * M * N, "fp32")
    tiles = (_tiles(M), _tiles(N))
    held = product(TILE, TILE, FLOAT, of="fp32 accumulators of a tile")
    flops = 2.0 * M * N * K
    return [
        DeclaredOption(
            name="no split", writes=(c,), grid=product(*tiles, of="128×128 tiles"), on_chip=held,
            budget_bytes=SHARED_BUDGET, flops=flops,
        ),
        DeclaredOption(
            name=f"split-K={split}", reads=(_again(partials),), writes=(partials, c),
            grid=product(*tiles, split, of="128×128 tiles × parts"), on_chip=held, launches=2,
            budget_bytes=SHARED_BUDGET, flops=flops, choice="split",
        ),
    ]  # fmt: skip


def decode_attention(
    heads: int = 32, kv: int = 1 << 17, d: int = 128, split: int = 64
) -> list[DeclaredOption]:
    """One query per head against its keys and values: a block a head, or split-KV.

    A part leaves its unnormalised result and its (max, Σexp) in fp32; a second kernel reads and
    combines them.
    """
    q, k, v, out = (
        Part(name, heads * rows * d, "fp16")
        for name, rows in (("q", 1), ("k", kv), ("v", kv), ("out", 1))
    )
    partials = Part("partials", heads * split * d, "fp32")
    statistics = Part("statistics", heads * split * 2, "fp32")
    held = product(2, STAGES, KEYS_PER_TILE, d, HALF, of="k and v × stages × keys × d × fp16")
    flops = 4.0 * heads * kv * d
    return [
        DeclaredOption(
            name="one block a head", reads=(q, k, v), writes=(out,), flops=flops, on_chip=held,
            grid=product(heads, of="heads"), budget_bytes=SHARED_BUDGET,
        ),
        DeclaredOption(
            name=f"split-KV={split}", reads=(q, k, v, _again(partials), _again(statistics)),
            writes=(partials, statistics, out), flops=flops, on_chip=held, launches=2,
            choice="split", grid=product(heads, split, of="heads × parts"),
            budget_bytes=SHARED_BUDGET,
        ),
    ]  # fmt: skip


def norm_into_projection(
    tokens: int = 4096, heads: int = 32, head: int = 128
) -> list[DeclaredOption]:
    """The norm of Q per head: a kernel after the projection, or the GEMM's epilogue.

    The projection's own traffic, equal in both, is left out: the epilogue adds nothing.
    """
    width = heads * head
    q, normed = (Part(name, tokens * width, "fp16") for name in ("q", "normed q"))
    rows = 8
    return [
        DeclaredOption(
            name="2 kernels", reads=(q,), writes=(normed,), launches=2, choice="split",
            grid=product(-(-tokens * heads // rows), of=f"tokens × heads / {rows}, a warp a row"),
            on_chip=product(rows * WARP, 16, FLOAT, of="threads × registers (16 assumed) × B"),
            budget_bytes=SHARED_BUDGET,
        ),
        DeclaredOption(
            name="GEMM epilogue", choice="fuse", budget_bytes=SHARED_BUDGET,
            grid=product(_tiles(tokens), _tiles(width), of="128×128 tiles"),
            on_chip=product(TILE, TILE, FLOAT, of="fp32 accumulators")
            + product(TILE, TILE, HALF, of="fp16 copy of the tile (assumed)"),
        ),
    ]  # fmt: skip


class Exercise(Struct, frozen=True):
    """One of the six: its title and how its options come about."""

    title: str
    options: Callable[[], list[DeclaredOption]]
    shapes: str


EXERCISES = (
    Exercise("elementwise chain, 2 ops", elementwise_chain, "16 Mi elements, fp16"),
    Exercise("QK-norm+RoPE then fp8 quant", qk_norm_rope_quant, "4096 tokens, 32+8 heads, dh 128"),
    Exercise("GEMM + bias + GELU", gemm_bias_gelu, "4096³"),
    Exercise("skinny GEMM", skinny_gemm, "1024×1024×16384"),
    Exercise("decode attention", decode_attention, "32 heads, kv 128 Ki, d 128"),
    Exercise(
        "norm into the Q projection's output", norm_into_projection, "4096 tokens, 32 heads, dh 128"
    ),
)


def six_decisions(device: Device | None = None) -> list[Decision]:
    """The verdicts of the rule on the six, on the exercise's machine unless another is given."""
    device = device or ledger_device()
    return [
        decide_declared(f"{e.title} ({e.shapes})", e.options(), device, notes=(_LEFT_OUT,))
        for e in EXERCISES
    ]


_LEFT_OUT = "what both options move alike is left out"


def _again(part: Part) -> Part:
    """A tensor read back after the option itself wrote it."""
    return Part(f"{part.name} again", part.elements, part.dtype)


def _tiles(size: int) -> int:
    return -(-size // TILE)
