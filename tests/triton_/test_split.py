"""Split axes: parts, who merges them, and how."""

from __future__ import annotations

from planned import planned

from fuseledger.triton.emit import emit_combine, emit_kernel
from fuseledger.triton.package import emit_plan
from fuseledger.triton.partials import Partial, folded_tensors, partials_of

SPLIT_K = "gemm(128,128,32768)"
FOLDED = "sqrt(sum(x[4,1048576], axis=1))"


def test_a_split_gemm_writes_parts_and_a_combine_kernel() -> None:
    """16 parts of 128×128 fp32, and a second kernel that reads them and writes the result."""
    plan = planned(SPLIT_K)
    (emission,) = emit_plan(plan.graph, plan.kernels, plan.device)
    kernel, combine = emission.code
    (partial,) = partials_of(plan.graph, plan.kernels[0].kernel).values()
    assert kernel.buffers == {"out.parts": (partial.parts, 128, 128)}
    assert kernel.outputs == ("out.parts",)
    assert combine.outputs == ("out",)
    assert kernel.blocks == plan.kernels[0].accounts["parallelism"].value
    assert kernel.signature["out_parts_ptr"] == "*fp32"


def test_small_parts_are_folded_by_their_reader() -> None:
    """No combine kernel: the reader takes the parts, as the ledger charges."""
    plan = planned(FOLDED)
    first, second = emit_plan(plan.graph, plan.kernels, plan.device)
    assert plan.kernels[0].launches == 1
    assert first.combine is None
    assert ("sum_parts_ptr", "sum.parts") in (second.kernel.parameters if second.kernel else ())


def test_statistics_store_what_is_made_on_their_way() -> None:
    """A GEMM whose column statistics are split over rows is computed once, and stored there."""
    plan = planned("batch_norm(x[16384,256] @ w[256,512])")
    for ledger in plan.kernels:
        if any("gemm" in name for name in ledger.ops):
            assert emit_kernel(plan.graph, ledger.kernel).source.count("tl.dot(") == 1


def test_a_short_last_part_counts_its_points() -> None:
    """65 rows in parts of 22 are 22, 22 and 21, times 7 points of other axes."""
    partial = Partial(
        combine="moments", results=("mean", "m2"), axes=(("m", 65, 22),), rest=7, is_combined=False
    )
    text = partial.count_text("part").replace("tl.minimum", "min").replace(".to(tl.float32)", "")
    assert [eval(text, {"part": part}) for part in range(3)] == [154, 154, 147]
    assert partial.parts == 3


def test_folded_tensors_are_those_without_a_combine_kernel() -> None:
    """What a plan folds is what its readers get as parts."""
    for source, expected in ((SPLIT_K, set[str]()), (FOLDED, {"sum"})):
        plan = planned(source)
        assert set(folded_tensors(plan.graph, [k.kernel for k in plan.kernels])) == expected


def test_the_combine_kernel_merges_in_part_order() -> None:
    """It starts from part 0 and adds the others: one loop, one store."""
    plan = planned(SPLIT_K)
    source = emit_combine(plan.graph, plan.kernels[0].kernel, name="merge").source
    assert source.count("for part in range(1, PARTS)") == 1
    assert source.count("tl.store(") == 1
