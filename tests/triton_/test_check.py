from __future__ import annotations

from pathlib import Path

import pytest
from planned import CHAIN, CONV, FAMILIES, planned

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.scalar import Read, call
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.planner.plan import plan_of_groups
from fuseledger.triton import check, emit
from fuseledger.triton.check import Checked, check_graphs, check_kernels
from fuseledger.triton.shrink import POINTS_MAX, shrink

pytestmark = pytest.mark.torch


def _checked(source: str, dtype: str = "fp16") -> list[Checked]:
    plan = planned(source, dtype=dtype)
    return check_kernels(plan.graph, [(k.name, k.kernel) for k in plan.kernels])


def _all_checked(sources: list[str], dtype: str) -> dict[str, list[Checked]]:
    """Every kernel of every source, in one interpreter."""
    plans = [planned(source, dtype=dtype) for source in sources]
    pairs = [(plan.graph, [(k.name, k.kernel) for k in plan.kernels]) for plan in plans]
    return dict(zip(sources, check_graphs(pairs), strict=True))


CHAIN_OF_THREE = (
    load("relu(gelu(tanh(x[64,64])))", dtype="fp16", dims={}),
    load_device("h100-sxm"),
)
STRUCTURES = [
    "x[64,100] * y[100] + z[64,1] | tanh",
    "max(x[300,70], axis=0)",
    "argmax(x[40,300])",
    "std(x[33,700], axis=0)",
    "max_pool(x[4,8,30,30], 3, stride=2, padding=1)",
    "conv(x[4,32,20,20],w[32,1,3,3],padding=1,groups=32) | silu",
    "conv_transpose(x[4,16,9,9],w[16,24,3,3],stride=2,padding=1,output_padding=1)",
    "rope(x[2,4,64,32])",
    "gelu(x[512,256] @ w[256,128]) @ v[128,64]",
    "gemm(128,128,32768)",
    "sum(x[64,4096] @ w[4096,128], axis=0)",
    "max_pool(x[64,256] @ w[256,128] | reshape(1,64,128), 2, stride=2)",
    "dropout(x[100,40])",
    "embedding(i[100], w[1000,64])",
    "gather(log_softmax(x[512,1024]), i[512,1]) | mean",
    "gather(softmax(x[512,64] @ w[64,64]), i[512,2])",
    "gather(log_softmax(x[512,64] @ w[64,1000]), i[512,1])",
    "gather(x[512,64] @ w[64,64], i[512,2])",
    "gather(softmax(x[512,64]), argmax(x[512,64], -1, true))",
    "take(exp(x[512,64]) * y[64], i[100])",
    "rope(x[512,1024] @ w[1024,128])",
    "conv(relu(x[4,32,20,20]),w[32,32,3,3],padding=1)",
    "(x[256,512] @ w[512,256]) * (x[256,512] @ v[512,256])",
    "conv(conv(x[2,32,20,20],w[64,32,1,1]),v[32,64,3,3],padding=1)",
    "concat(x[40,300], y[40,20], z[40,1], axis=1) @ w[321,64]",
    "group_norm(x[512,256] @ w[256,512] | gelu, 8)",
    "mean(group_norm(x[64,16,5,7,3] | hardswish, 4), [2, 3, 4])",
    "gelu(mean(x[64,300], -1, true)) + y[64,4096]",
    "max(group_norm(x[128,16,14,30,30] * m[16,1,1,1], 16), axis=1)",
    "conv(relu(x[4,32,20,20]),w[32,32,3,3],padding=1) + x",
]


def test_planned_kernels_compute_what_the_graph_means() -> None:
    """Interpreted on small shapes, every kernel of seven plans is within its rounding bound of
    float64, and loads and stores the bytes that the traffic account says."""
    for source, found in _all_checked(FAMILIES, "fp16").items():
        assert {each.outcome for each in found} == {"pass"}, (source, found)
        assert all(each.traffic is not None and each.traffic.is_equal for each in found), source


def test_more_structures_compute_what_they_mean() -> None:
    """Broadcasts, columns, positions, windows, phases, halves, chained products, parts folded and
    combined, pools of products, random numbers, lookups of what is read and of what the kernel
    makes, flips of a product, padded values, products side by side in a loop, windows over
    products, seams, a maximum over what a norm's walk keeps, a halo beside its tile: all agree,
    bytes included."""
    for source, found in _all_checked(STRUCTURES, "fp32").items():
        assert {each.outcome for each in found} == {"pass"}, (source, found)
        assert all(each.traffic is not None and each.traffic.is_equal for each in found), source


def test_bytes_that_the_account_leaves_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that walks its input once more than planned differs by that tensor's bytes."""
    honest = emit.module_source

    def broken(kernels: list[emit.EmittedKernel], summary: str) -> str:
        text = honest(kernels, summary)
        again = "    for again in range(1):\n        unused = tl.load(x_ptr + tl.arange(0, 16))\n"
        return text.replace("    tl.store(", f"{again}    tl.store(")

    monkeypatch.setattr(check, "module_source", broken)
    (found,) = _checked("softmax(x[64,100])")
    assert found.outcome == "pass"
    assert found.traffic is not None
    assert not found.traffic.is_equal
    assert "of x, account" in found.traffic.differences[0]


def test_a_wrong_kernel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check notices a bias that is left out."""
    honest = emit.module_source

    def broken(kernels: list[emit.EmittedKernel], summary: str) -> str:
        return honest(kernels, summary).replace("gemm_acc + bias_n", "gemm_acc + 0.0 * bias_n")

    monkeypatch.setattr(check, "module_source", broken)
    (found,) = _checked(CHAIN)
    assert found.outcome == "fail"
    assert found.error is not None
    assert found.error > 1


def test_an_element_that_is_never_written_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are NaN before the kernel runs, so that a store too few shows."""
    honest = emit.module_source

    def broken(kernels: list[emit.EmittedKernel], summary: str) -> str:
        return honest(kernels, summary).replace("(m[:, None] < M)", "(m[:, None] < M - 1)")

    monkeypatch.setattr(check, "module_source", broken)
    (found,) = _checked(CHAIN)
    assert found.outcome == "fail"
    assert "is nan" in found.reason


def test_a_crash_fails_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that raises is one failed row, and the next kernel is still checked."""
    honest = emit.module_source

    def broken(kernels: list[emit.EmittedKernel], summary: str) -> str:
        text = honest(kernels, summary)
        return text.replace("tl.store(gelu", "tl.no_such_thing(gelu")

    monkeypatch.setattr(check, "module_source", broken)
    plan = plan_of_groups(*CHAIN_OF_THREE, [(0,), (1,), (2,)])
    found = check_kernels(plan.graph, [(k.name, k.kernel) for k in plan.kernels])
    assert [each.outcome for each in found] == ["pass", "fail", "pass"]


def test_small_shapes_keep_windows() -> None:
    """A shrunk convolution keeps its taps and padding, and its input follows from its output."""
    plan = planned(CONV)
    small, _ = shrink(plan.graph, plan.kernels[0].kernel)
    sizes = small.ops[0].sizes
    assert (sizes["r"], sizes["s"]) == (3, 3)
    shape = small.tensors["x"].shape
    assert shape[2:] == (sizes["y"], sizes["x"])  # padding 1 around a kernel of 3
    assert max(shape) < 56


def test_bfloat16_products_are_checked() -> None:
    """The interpreter multiplies bfloat16 numbers, not the integers that hold their bits."""
    (found,) = _checked("gemm(128,128,256) + bias", dtype="bf16")
    assert found.outcome == "pass"


def test_sums_of_narrow_whole_numbers_have_room() -> None:
    """The low four bits of a byte less 8 are -8 to 7, not 248 to 7: bytes are widened, and the mask
    is a whole number."""
    b = GraphBuilder("packed")
    packed = b.input("packed", (64, 64), "uint8")
    low = call("sub", call("bitwise_and", Read(0), 15), 8)
    b.output(b.map("unpack", [packed], body=low, dtype="int32"), "low")
    graph = b.finish()
    plan = plan_of_groups(graph, load_device("h100-sxm"), [(0,)])
    (found,) = check_kernels(plan.graph, [("k1", plan.kernels[0].kernel)])
    assert found.outcome == "pass", found


def test_parts_side_by_side_keep_their_own_tiles() -> None:
    """Two products of one input with axes of their own run as ranges of one grid; each is emitted
    as it was priced, with its own tiles, and stores what is its own."""
    b = GraphBuilder("side by side")
    x = b.input("x", (512, 256), "fp16")
    for name, letter, size in (("w", "n", 512), ("v", "j", 48)):
        weight = b.weight(name, (256, size), "fp16")
        b.output(b.contract("gemm", f"mk,k{letter}->m{letter}", [x, weight]), f"x_{name}")
    graph = b.finish()
    plan = plan_of_groups(graph, load_device("h100-sxm"), [(0, 1)])
    (ledger,) = plan.kernels
    first, second = ledger.kernel.parts
    assert first.ops != second.ops
    (found,) = check_kernels(plan.graph, [("k1", ledger.kernel)])
    assert found.outcome == "pass", found
    assert found.traffic is not None
    assert found.traffic.is_equal, found.traffic


def test_what_an_online_attention_stores_on_the_way_is_made_once() -> None:
    """A bias made in the loop over keys, wanted by another kernel, is stored in that loop: its
    input is loaded as often as the account says."""
    bias = "bias = tanh(x[2048,2048])"
    shape = "[1,16,2048,64]"
    source = f"{bias}; attention(q{shape},k{shape},v{shape},mask=bias) + mean(bias)"
    graph = load(source, dtype="fp16", dims={})
    (mean,) = (i for i, op in enumerate(graph.ops) if op.name == "mean")
    attention = tuple(range(mean))
    groups = [attention, *((i,) for i in range(mean, len(graph.ops)))]
    ledger = plan_of_groups(graph, load_device("h100-sxm"), groups).kernels[0]
    assert ledger.kernel.schedule.online
    (found,) = check_kernels(graph, [("k1", ledger.kernel)])
    assert found.outcome == "pass", found
    assert found.traffic is not None
    assert found.traffic.is_equal, found.traffic


def test_a_sum_over_both_sides_of_a_product_makes_its_tile_once() -> None:
    """Decoding's attention and its output projection in one kernel: queries of a head group are
    rows of one online product, not of a product for each of its columns, and keys, values and
    queries are loaded once a block."""
    attention = "p = attention(q[8,4,1,64],k[8,1,512,64],v[8,1,512,64])"
    graph = load(f"{attention}; einsum('bcmk,nbck->mn',p,w[512,8,4,64])", dtype="fp16", dims={})
    b, c, k = (a.name for a in graph.ops[-1].axes if a.name in graph.ops[-1].reduces)
    (n,) = (a.name for a in graph.ops[-1].axes if a.size == 512)
    axes = {axis.name: AxisSchedule("loop", 64) for op in graph.ops for axis in op.axes}
    axes |= {b: AxisSchedule("split", 8), k: AxisSchedule("split", 2), n: AxisSchedule("grid", 128)}
    schedule = Schedule(axes=tuple(axes.items()), online=True, merge="launch")
    kernel = Kernel(ops=tuple(range(len(graph.ops))), schedule=schedule)
    source = emit.emit_kernel(graph, kernel).source
    assert source.count("tl.dot(") == 2
    assert f"for {c}_2 in range(" in source
    (found,) = check_kernels(graph, [("k1", kernel)])
    assert found.outcome == "pass", found
    assert found.traffic is not None
    assert found.traffic.is_equal, found.traffic
    assert found.traffic.requested == found.traffic.interpreted


def test_many_tiled_axes_have_small_tiles() -> None:
    """Sixteen points of four axes and a window over 64 channels are 7 million; with smaller tiles
    every axis still has two blocks, and few enough points for the interpreter."""
    plan = planned("conv_transpose(x[16,64,32,32,32], w[64,128,3,3,3])", dtype="fp32")
    (ledger,) = plan.kernels
    tiles = dict.fromkeys((op := plan.graph.ops[0]).sizes, AxisSchedule("loop", 64))
    tiles |= {name: AxisSchedule("grid", 16) for name in op.kept}
    schedule = Schedule(axes=tuple(tiles.items()))
    small, kernel = shrink(plan.graph, Kernel(ops=ledger.kernel.ops, schedule=schedule))
    assert max(each.points for each in small.ops) <= POINTS_MAX
    sizes = {axis.name: axis.size for axis in small.ops[0].axes}
    tiled = {n: axis.tile for n, axis in kernel.schedule.axes if axis.treatment == "grid"}
    assert all(1 < tile < sizes[name] for name, tile in tiled.items())


def test_axes_of_one_dimension_shrink_together() -> None:
    """Keys and queries made of one tensor keep one length, and a residual that another kernel
    wrote under other names shrinks with what reads it."""
    plan = planned("x = x[64,256]; h = x @ w[256,256]; softmax(h @ transpose(h)) @ h")
    for ledger in plan.kernels:
        small, _ = shrink(plan.graph, ledger.kernel)
        for op in small.ops:
            for access in (*op.reads, *op.writes):
                for index, axis in zip(
                    access.index, small.tensors[access.tensor].axes, strict=True
                ):
                    assert index.axis is None or op.sizes[index.axis] == axis.size
                    assert axis.size < 256


def test_seams_move_with_the_sizes() -> None:
    """A concatenation of 300, 20 and 1 columns keeps three parts on small shapes."""
    plan = planned("concat(x[40,300], y[40,20], z[40,1], axis=1)")
    small, _ = shrink(plan.graph, plan.kernels[0].kernel)
    columns = [small.tensors[name].shape[1] for name in ("x", "y", "z")]
    assert min(columns) == 1
    assert columns[0] > columns[1]
    assert sum(columns) == small.tensors["out"].shape[1] < 321


def test_level_2_sample(corpus: Path) -> None:
    """Kernels of a few real chains emit and agree."""
    from fuseledger.devices import load as load_device
    from fuseledger.frontends import aten_json
    from fuseledger.planner.plan import PlanOptions, make_plan

    for name in ("009_*",):
        (path,) = corpus.glob(f"kernelbench/v0/level2/{name}")
        plan = make_plan(aten_json.load(path), load_device("h100-sxm"), PlanOptions(tf32=True))
        found = check_kernels(plan.graph, [(k.name, k.kernel) for k in plan.kernels])
        assert {each.outcome for each in found} == {"pass"}, found
