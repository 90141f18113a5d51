"""TorchInductor's plan as kernels of the library clock, from plans written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.peers.eager import EagerPlan
from fuseledger.peers.inductor_kernels import inductor_kernels
from fuseledger.peers.kept import kept_plan
from fuseledger.peers.peer import CHANNELS_LAST, PeerKernel, PeerPlan

diskcache: Any = pytest.importorskip("diskcache", reason="the triton extra")

CONV = LibraryKernel(
    name="cudnn convolution", op="conv", kind="conv", reads=(Stream("x", 4), Stream("w", 4)),
    writes=(Stream("y", 4),), flops=100.0, pipe="lanes", shape={"rank": 2.0, "depthwise": 1.0},
)  # fmt: skip
BIAS = LibraryKernel(
    name="bias", op="conv", kind="pointwise", reads=(Stream("y", 4),), writes=(Stream("y", 4),)
)
SOURCE = """
    size_hints={'x': 4096, 'r0_': 512}, reduction_hint=ReductionHint.OUTER
def triton_red(in_ptr0, out_ptr0, xnumel, r0_numel):
    xnumel = 4000
    r0_numel = 300
"""


def plan(*kernels: PeerKernel) -> PeerPlan:
    """A plan of TorchInductor's."""
    return PeerPlan(name="inductor", version="2.13", status="planned", kernels=kernels)


def eager(**by_node: tuple[LibraryKernel, ...]) -> EagerPlan:
    """What eager mode launches, by node."""
    return EagerPlan(
        tuple(k for kernels in by_node.values() for k in kernels), by_node, (), ()
    )  # fmt: skip


def test_a_library_call_has_the_shape_of_the_product_and_its_own_buffers() -> None:
    """The convolution of the node, without the bias that eager adds; channels last, a depthwise one
    runs in cuDNN."""
    call = PeerKernel(
        name="extern_kernels.convolution", kind="extern", origins=("conv",), reads={"buf0": 8},
        writes={"buf1": 16}, config=CHANNELS_LAST,
    )  # fmt: skip
    (made,) = inductor_kernels(plan(call), eager(conv=(CONV, BIAS)))
    assert (made.kind, made.flops, made.pipe) == ("conv", 100.0, "tf32")
    assert made.shape["channels_last"] == 1.0
    assert (made.reads, made.writes) == ((Stream("buf0", 8),), (Stream("buf1", 16),))


def test_a_library_call_is_the_last_product_of_its_nodes() -> None:
    """Of two products whose names TorchInductor lists for the second one's call, the first is
    another's."""
    first, second = (replace(CONV, kind="gemm", flops=flops) for flops in (100.0, 50.0))
    call = PeerKernel(
        name="extern_kernels.addmm", kind="extern", origins=("addmm", "addmm_1", "relu"),
        reads={"buf1": 8}, writes={"buf2": 16},
    )  # fmt: skip
    (made,) = inductor_kernels(plan(call), eager(addmm=(first,), relu=(BIAS,), addmm_1=(second,)))
    assert made.flops == 50.0


def test_a_generated_kernel_has_the_loops_of_its_source() -> None:
    """4,000 rows of 300, reduced across memory."""
    kernel = PeerKernel(
        name="triton_red_0", kind="triton", aten=("aten.sum", "aten.mul"), origins=("sum",),
        reads={"buf0": 4_800_000}, writes={"buf1": 16_000}, source=SOURCE,
    )  # fmt: skip
    (made,) = inductor_kernels(plan(kernel), eager())
    assert made.kind == "fused"
    assert (made.shape["rows"], made.shape["length"], made.shape["inner"]) == (4000.0, 300.0, 0.0)
    assert made.flops == 4000 * 300 * 2
    assert made.bytes == 4_816_000


def test_a_call_without_a_product_is_what_eager_launches() -> None:
    """A library call of a scan keeps the eager kernels of its node, on the plan's buffers."""
    scan = LibraryKernel(
        name="tensor_kernel_scan", op="cumsum", kind="scan", reads=(Stream("x", 4),),
        writes=(Stream("y", 4),), shape={"rows": 8.0, "length": 8.0},
    )  # fmt: skip
    call = PeerKernel(
        name="cumsum", kind="extern", origins=("cumsum",), reads={"a": 4}, writes={"b": 4}
    )
    (made,) = inductor_kernels(plan(call), eager(cumsum=(scan,)))
    assert (made.kind, made.reads[0].storage, made.writes[0].storage) == ("scan", "a", "b")


def test_a_call_of_its_own_name_is_no_product_before_it() -> None:
    """TorchInductor's top-k lists the product that made what it reads, whose FLOPs are not its
    own."""
    gemm = replace(CONV, op="aten.addmm.default (addmm)", kind="gemm")
    topk = replace(BIAS, op="aten.topk.default (topk)", kind="unknown", flops=0.0)
    call = PeerKernel(
        name="torch.ops.aten.topk.default", kind="extern", origins=("addmm", "topk"),
        reads={"buf1": 8}, writes={"buf2": 16},
    )  # fmt: skip
    (made,) = inductor_kernels(plan(call), eager(addmm=(gemm,), topk=(topk,)))
    assert (made.kind, made.flops, made.bytes) == ("unknown", 0.0, 24)


def test_a_call_of_several_kernels_keeps_what_they_hand_on() -> None:
    """Pooling of a strided input copies it first: the copy is written and read, once each."""
    copy = LibraryKernel(
        name="copy", op="pool", kind="copy", reads=(Stream("x", 4),), writes=(Stream("dense", 4),)
    )
    pool = replace(copy, name="pool", kind="pool", reads=copy.writes, writes=(Stream("y", 2),))
    call = PeerKernel(
        name="pool", kind="extern", origins=("pool",), reads={"a": 4}, writes={"b": 2}
    )
    first, second = inductor_kernels(plan(call), eager(pool=(copy, pool)))
    assert (first.reads, first.writes) == ((Stream("a", 4),), (Stream("dense", 4),))
    assert (second.reads, second.writes) == ((Stream("dense", 4),), (Stream("b", 2),))


def test_a_plan_is_asked_for_once(tmp_path: Path) -> None:
    """The second time it comes from disk; another question is asked again."""
    asked: list[str] = []

    def ask() -> PeerPlan:
        asked.append("")
        return plan(PeerKernel(name="k", kind="triton", reads={"a": 4}, writes={"b": 4}))

    first = kept_plan(tmp_path, "torch", ("graph", 1), ask)
    assert kept_plan(tmp_path, "torch", ("graph", 1), ask) == first
    assert len(asked) == 1
    kept_plan(tmp_path, "torch", ("graph", 2), ask)
    assert len(asked) == 2


def test_a_late_answer_is_not_kept(tmp_path: Path) -> None:
    """The next run asks again."""
    late = PeerPlan(name="inductor", version="2.13", status="timeout")
    assert kept_plan(tmp_path, "torch", "graph", lambda: late) == late
    planned = plan()
    assert kept_plan(tmp_path, "torch", "graph", lambda: planned) == planned


def test_a_kept_plan_that_cannot_be_read_is_asked_for_again(tmp_path: Path) -> None:
    """Garbage in the store is dropped, and the new answer is kept."""
    answer = plan(PeerKernel(name="k", kind="triton", reads={"a": 4}, writes={"b": 4}))
    kept_plan(tmp_path, "torch", "graph", lambda: answer)
    with diskcache.Cache(str(tmp_path)) as store:
        (key,) = store
        store[key] = b"{"
    other = plan()
    assert kept_plan(tmp_path, "torch", "graph", lambda: other) == other
    assert kept_plan(tmp_path, "torch", "graph", lambda: answer) == other
