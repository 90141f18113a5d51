"""What a block stages in shared memory for its products."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from nests import nest_of

from fuseledger.devices import load
from fuseledger.frontends.source import load as read_source
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution
from fuseledger.ledger.kernel import SHALLOW, Pipeline
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.products import loop_steps

ATTENTION = "attention(q[1,32,4096,128], k[1,32,4096,128], v[1,32,4096,128])"


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def priced(nest: Nest, device: str, tiles: Mapping[str, int], stages: int = 2) -> Price:
    """The price of some tiles on a device."""
    return Pricer(nest, load(device)).price(dict(tiles), pipeline=Pipeline(stages=stages))


def attention() -> Nest:
    """Attention as one kernel, with running sums."""
    graph = read_source(ATTENTION, dtype="fp16", dims={})
    nest = online_variant(analyse(graph, tuple(range(len(graph.ops)))))
    assert nest is not None
    return nest


@pytest.mark.parametrize(
    ("device", "stages", "buffers"),
    [("h100-sxm", 2, 2), ("h100-sxm", 4, 4), ("a100-sxm-80", 2, 1), ("a100-sxm-80", 4, 3)],
)
def test_units_that_read_shared_memory_need_a_buffer_a_stage(
    device: str, stages: int, buffers: int
) -> None:
    """32 fp16 along k of 128 rows and 128 columns are 16 KB; `wgmma` reads one buffer while the
    others fill, `mma` has the step at hand in registers."""
    nest = nest_of(gemm, (4096, 4096), (4096, 4096))
    price = priced(nest, device, {"m": 128, "n": 128}, stages)
    assert price.shared_bytes == buffers * (128 + 128) * 32 * 2


@pytest.mark.parametrize(("stages", "words"), [(1, 8), (2, 12), (3, 24)])
def test_where_a_step_is_in_registers_operands_follow_each_other(stages: int, words: int) -> None:
    """32 fp16 along k of 128 rows and 64 columns are 8 and 4 KB; with nothing loaded ahead the
    second takes the room of the first."""
    nest = nest_of(gemm, (4096, 4096), (4096, 4096))
    price = priced(nest, "mi300x", {"m": 128, "n": 64}, stages)
    assert price.staged_bytes == words * 1024


def test_what_is_kept_in_registers_leaves_shared_memory() -> None:
    """Queries of 64 rows × 128 are 16 KB, keys and values of a step 16 KB each: `mfma` has the
    queries in registers before the loop, `wgmma` reads them in every turn."""
    tiles = {"b": 1, "m": 64}
    assert priced(attention(), "mi300x", tiles).staged_bytes == 32 * 1024
    assert priced(attention(), "h100-sxm", tiles).staged_bytes == (2 * 32 + 16) * 1024


@pytest.mark.parametrize(("stages", "kilobytes"), [(1, 8), (2, 4 + 8), (4, 3 * (4 + 8))])
def test_a_chain_in_front_of_a_product_is_copied_ahead_on_amd_too(
    stages: int, kilobytes: int
) -> None:
    """Steps of 64 B: 64 columns of the weights and 128 rows of x, which is turned in registers."""
    graph = read_source("(x[4096,2048] | silu) @ w[2048,4096]", dtype="fp16", dims={})
    nest = analyse(graph, tuple(range(len(graph.ops))))
    rows, columns = next(op for op in nest.ops.values() if op.is_contraction).kept
    price = priced(nest, "mi300x", {rows: 128, columns: 64}, stages)
    assert price.staged_bytes == kilobytes * 1024


@pytest.mark.parametrize(
    ("source", "tiles", "stages", "kilobytes"),
    [
        ("(x[4096,2048] fp16 | silu) @ w[2048,4096] fp16", (128, 256), 3, 16 * 3 + 8 * 2),
        ("(x[4096,2048] fp32 | silu) @ w[2048,4096] fp32", (128, 128), 2, 8 + 8 + 8),
        ("rms_norm(x[2048,1024] bf16) @ w[1024,2048] bf16", (128, 256), 5, 16 * 5 + 8 * 4),
        ("rms_norm(x[2048,1024] bf16) @ w[1024,2048] bf16", (32, 256), 4, 16 * 3 + 2 * 3 + 2),
    ],
)
def test_what_an_operand_is_made_of_is_copied_ahead(
    source: str, tiles: tuple[int, int], stages: int, kilobytes: int
) -> None:
    """Steps of 64 B: the weights in a buffer a stage (one less in fp32, on the lanes), x in one
    less, and what is made of x in one, but for a chain in half precision on x alone, and rows that
    `wgmma` (of 64 and more) takes from registers."""
    graph = read_source(source, dtype="fp16", dims={})
    nest = analyse(graph, tuple(range(len(graph.ops))))
    op = next(op for op in nest.ops.values() if op.is_contraction)
    pricer = Pricer(nest, load("h100-sxm"))
    price = pricer.price(
        dict(zip(op.kept, tiles, strict=True)), walks=2, pipeline=Pipeline(stages=stages)
    )
    assert price.staged_bytes == kilobytes * 1024


def test_operands_that_are_made_of_what_is_loaded_count_their_rows() -> None:
    """Of 128 rows and 64 columns, each the relu of what is copied ahead, 192 pass."""
    graph = read_source("relu(x[4096,512]) @ relu(y[512,4096])", dtype="fp16", dims={})
    nest = analyse(graph, tuple(range(len(graph.ops))))
    rows, columns = next(op for op in nest.ops.values() if op.is_contraction).kept
    price = priced(nest, "h100-sxm", {rows: 128, columns: 64})
    assert price.staged is not None
    assert price.staged.rows == 128 + 64


def test_tiles_are_rounded_up_to_powers_of_two() -> None:
    """100 rows lie in a tile of 128, 8 columns in one of 16."""
    nest = nest_of(gemm, (4000, 4096), (4096, 4096))
    assert priced(nest, "h100-sxm", {"m": 100, "n": 8}).staged_bytes == 2 * (128 + 16) * 32 * 2


def test_attention_holds_its_queries_and_streams_keys_and_values() -> None:
    """128 queries of 128 once, 32 KB; 64 keys and 64 values of 128 a step, 16 KB each, twice."""
    price = priced(attention(), "h100-sxm", {"b": 1, "m": 128, "d1": 128})
    assert price.shared_bytes == 128 * 128 * 2 + 2 * (64 * 128 + 64 * 128) * 2


def test_a_product_inside_a_loop_takes_its_depth_at_once() -> None:
    """Attention walks 64 keys a step, and all 128 of a head for each."""
    assert loop_steps(attention(), {}, SHALLOW.step_bytes) == {"n": 64, "d": 128}


def test_a_step_counts_innermost_axes_first() -> None:
    """A 3×3 convolution of fp16 takes 32 points a step: 3·3 taps of 3 channels."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        return convolution(b, x, w, [Window(kernel=3, before=1, after=1)] * 2)

    nest = nest_of(build, (8, 64, 56, 56), (128, 64, 3, 3))
    reduced = {name: nest.sizes[name] for name in loop_steps(nest, {}, 64)}
    assert list(zip(loop_steps(nest, {}, 64).values(), reduced.values(), strict=True)) == [
        (3, 3), (3, 3), (3, 64),
    ]  # fmt: skip


def test_a_loop_without_products_fills_the_lanes() -> None:
    """A sum of rows, two at a time, walks 512 points of each: 1,024 lanes."""
    nest = nest_of(lambda b, x: b.reduce("sum", [x], [1], "sum")[0], (4096, 65536))
    rows, columns = nest.sizes
    assert loop_steps(nest, {rows: 2}, 64) == {columns: 512}


def test_scattered_halves_have_one_buffer() -> None:
    """The taps of a convolution are no runs of 4 bytes that could be copied ahead in fp16: one
    buffer of 64 channels and 64 places; in fp32 every element is."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        return convolution(b, x, w, [Window(kernel=3, before=1, after=1)] * 2)

    shapes = (8, 64, 56, 56), (128, 64, 3, 3)
    nest = nest_of(build, *shapes)
    b, o, y, x = nest.open_axes[:4]
    tiles = {b: 1, o: 64, y: 4, x: 16}
    one = (64 + 64) * 32 * 2
    assert [priced(nest, "h100-sxm", tiles, stages).staged_bytes for stages in (2, 4)] == [one, one]
    wide = nest_of(build, *shapes, dtype="fp32")
    assert priced(wide, "h100-sxm", tiles, 4).staged_bytes == 3 * (64 + 64) * 16 * 4


@pytest.mark.torch
@pytest.mark.parametrize("device", ["h100-sxm", "a100-sxm-80", "rtx-5090"])
def test_triton_allocates_what_the_account_says(device: str) -> None:
    """A GEMM with bias and ReLU compiles to the shared memory that was modelled."""
    from fuseledger.planner.plan import PlanOptions, make_plan
    from fuseledger.triton.compile import compile_kernels, target_of
    from fuseledger.triton.emit import emit_kernel

    graph = read_source("gemm(4096,4096,4096) + bias + relu", dtype="fp16", dims={})
    planned = make_plan(graph, load(device), PlanOptions())
    (ledger,) = planned.kernels
    (found,) = compile_kernels(
        [emit_kernel(graph, ledger.kernel)], target_of(load(device)), processes=1
    )
    assert found.shared_bytes == ledger.price.shared_bytes
