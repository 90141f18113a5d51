from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from planned import (
    ATTENTION,
    CAST_ATTENTION,
    CHAIN,
    CONV,
    LAYER_NORM,
    RMS_NORM_GEMM,
    SOFTMAX,
    planned,
)

from fuseledger.errors import CannotEmit
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Pipeline, Schedule
from fuseledger.triton.emit import emit_kernel, module_source
from fuseledger.triton.package import emit_plan, package_files
from fuseledger.triton.scope import literal


def _without_ledger(source: str) -> str:
    """A kernel's code without the accounts above it."""
    return source[source.index("@triton.jit") :]


@pytest.mark.parametrize("source", [CHAIN, SOFTMAX, ATTENTION, RMS_NORM_GEMM, CONV])
def test_emitted_code_reads_as_recorded(source: str, snapshot: Any) -> None:
    """The code of a plan is what a reader approved."""
    plan = planned(source)
    emissions = emit_plan(plan.graph, plan.kernels, plan.device)
    kernels = [kernel for emission in emissions for kernel in emission.code]
    kernels = [replace(kernel, source=_without_ledger(kernel.source)) for kernel in kernels]
    assert module_source(kernels, source) == snapshot


def test_even_sizes_need_no_masks() -> None:
    """Tiles that divide 4,096 load and store without a mask."""
    plan = planned(CHAIN)
    source = emit_kernel(plan.graph, plan.kernels[0].kernel).source
    assert "mask" not in source


def test_odd_sizes_are_masked() -> None:
    """A side of 100 under tiles that do not divide it has a mask on its loads and its store."""
    plan = planned("gemm(100,4096,4096)")
    (ledger,) = plan.kernels
    tiles = dict(ledger.kernel.schedule.axes)
    tiles["m"] = AxisSchedule("grid", 16)
    tiles.update(k=AxisSchedule("loop", 64))
    schedule = Schedule(axes=tuple(tiles.items()))
    source = emit_kernel(plan.graph, Kernel(ops=ledger.kernel.ops, schedule=schedule)).source
    assert source.count("m[:, None] < M") == 2


@pytest.mark.parametrize(("step_bytes", "points"), [(64, 32), (128, 64), (256, 128)])
def test_a_loop_takes_the_steps_of_its_pipeline(step_bytes: int, points: int) -> None:
    """Bytes of a row in fp16 are half as many points; stages go to the launch."""
    plan = planned(CHAIN)
    kernel = plan.kernels[0].kernel
    pipeline = Pipeline(step_bytes=step_bytes, stages=3)
    schedule = replace(kernel.schedule, pipeline=pipeline)
    emitted = emit_kernel(plan.graph, replace(kernel, schedule=schedule))
    assert emitted.constants["BLOCK_K"] == points
    assert emitted.stages == 3


def test_an_owned_row_is_loaded_once() -> None:
    """A softmax whose rows are held whole reads its input in one place."""
    plan = planned(SOFTMAX)
    assert emit_kernel(plan.graph, plan.kernels[0].kernel).source.count("tl.load(") == 1


def test_an_online_attention_walks_once() -> None:
    """Online softmax needs one loop over the keys, which loads k and v once each."""
    plan = planned(ATTENTION)
    source = emit_kernel(plan.graph, plan.kernels[0].kernel).source
    assert source.count("_start in ") == 1
    assert source.count("tl.load(") == 3


def test_a_cast_does_not_hinder_an_online_attention() -> None:
    """Softmax in fp32 of fp16 scores, cast back, as eager attention spells it: still one walk."""
    plan = planned(CAST_ATTENTION)
    (ledger,) = plan.kernels
    assert ledger.kernel.schedule.online
    source = emit_kernel(plan.graph, ledger.kernel).source
    assert source.count("_start in ") == 1
    assert source.count("tl.load(") == 3


def test_a_group_norm_of_a_product_makes_it_once() -> None:
    """Channels of a group, held whole, are lanes of the product's tile: one product, and a
    statistic over parts of its columns."""
    plan = planned("group_norm(x[32768,1024] @ w[1024,4096], 64)")
    (ledger,) = plan.kernels
    whole = [name for name, axis in ledger.kernel.schedule.axes if axis.treatment == "whole"]
    assert len(whole) == 1
    kernel = emit_kernel(plan.graph, ledger.kernel)
    assert kernel.source.count("tl.dot(") == 1
    assert "tl.reshape(" in kernel.source
    assert not kernel.notes


def test_what_one_reduction_keeps_and_another_reduces_is_loaded_once() -> None:
    """A group's channels, means of which are kept: statistic and means share one tile."""
    plan = planned("mean(group_norm(x[512,16,16,16] | hardswish, 4), [2, 3])")
    ops = tuple(range(len(plan.graph.ops)))
    axes = {axis.name: axis.size for op in plan.graph.ops for axis in op.axes}
    whole = {name for op in plan.graph.ops for name in op.reduces}
    schedule = Schedule(
        axes=tuple(
            (name, AxisSchedule("whole", size) if name in whole else AxisSchedule("grid", 1))
            for name, size in axes.items()
        )
    )
    source = emit_kernel(plan.graph, Kernel(ops=ops, schedule=schedule)).source
    assert source.count(" x_ptr + ") == 1
    assert "for " not in source


def test_lanes_beside_a_reduction_are_across() -> None:
    """A mean of rows added to other columns: no lanes of those columns walk the mean's loop."""
    plan = planned("gelu(mean(x[2048,8192], -1, true)) + y[2048,8192]")
    graph = plan.graph
    m, n = graph.ops[0].axes
    (k,) = (axis for axis in graph.ops[-1].axes if axis != m)
    tiles = ((m.name, 8), (k.name, 2048))
    schedule = Schedule(
        axes=(*((name, AxisSchedule("grid", tile)) for name, tile in tiles),
              (n.name, AxisSchedule("loop", 64)))
    )  # fmt: skip
    ops = tuple(range(len(graph.ops)))
    constants = emit_kernel(graph, Kernel(ops=ops, schedule=schedule)).constants
    assert constants[f"BLOCK_{m.name.upper()}"] == 8
    assert constants[f"BLOCK_{k.name.upper()}"] == 2048


def test_numbers_are_as_short_as_fp32_has_them() -> None:
    """The fp32 nearest to 1e-5, read as a double, is written as 1e-05 again."""
    assert literal(9.999999747378752e-06) == "1e-05"
    assert literal(0.7071067811865476) == "0.7071067811865476"


def test_the_grid_is_the_ledgers() -> None:
    """The blocks that the launcher starts are those of the parallelism account."""
    for source in (CHAIN, SOFTMAX, LAYER_NORM, ATTENTION):
        plan = planned(source)
        for ledger in plan.kernels:
            blocks = emit_kernel(plan.graph, ledger.kernel).blocks
            assert blocks == ledger.accounts["parallelism"].value


def test_a_position_over_a_split_axis_cannot_be_emitted() -> None:
    """Parts of an argmax lack the values that would merge them."""
    plan = planned("argmax(x[40,4096], axis=1)")
    (ledger,) = plan.kernels
    (axis,) = plan.graph.ops[0].reduces
    schedule = Schedule(axes=((axis, AxisSchedule("split", 4)),))
    with pytest.raises(CannotEmit, match="parts of argmax cannot be merged"):
        emit_kernel(plan.graph, Kernel(ops=ledger.kernel.ops, schedule=schedule))


def test_lanes_that_repeat_a_point_are_no_sum() -> None:
    """A mean over a batch that is held whole beside a tile of a convolution's points would add each
    image once a point: such a kernel is refused, not emitted wrong."""
    plan = planned("conv(relu(x[2,16,7,7] - mean(x, [0,2,3], true)), w[16,16,3,3], padding=1)")
    graph = plan.graph
    conv = graph.ops[-1]
    (statistic,) = (op for op in graph.ops if op.combine == "sum" and op is not conv)
    axes = {axis.name: AxisSchedule("whole", axis.size) for op in graph.ops for axis in op.axes}
    axes |= {n: AxisSchedule("loop", conv.sizes[n]) for n in conv.reduces}
    axes |= {n: AxisSchedule("grid", 7) for n in conv.kept if n not in statistic.reduces}
    kernel = Kernel(ops=tuple(range(len(graph.ops))), schedule=Schedule(axes=tuple(axes.items())))
    with pytest.raises(CannotEmit, match="lanes stand for"):
        emit_kernel(graph, kernel)


def test_a_missing_kernel_is_named_in_the_package() -> None:
    """The launcher of a plan with a kernel that has no code lists it and refuses to run."""
    plan = planned("sort(x[64,128])")
    emissions = emit_plan(plan.graph, plan.kernels, plan.device)
    files = package_files(
        plan.graph, emissions, source="sort(x[64,128])", dtype="fp16", dims={}, ledger_json="{}"
    )
    scope: dict[str, Any] = {}
    text = files["launcher.py"].replace("import torch\n", "")
    exec(compile(text, "launcher.py", "exec"), scope)
    assert len(scope["MISSING"]) == 1
    with pytest.raises(NotImplementedError, match="barrier"):
        scope["run"]({})
