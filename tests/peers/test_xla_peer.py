"""XLA's plans for CUDA devices, compiled without one."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from fuseledger.devices import load
from fuseledger.errors import MissingExtra
from fuseledger.peers import process, xla
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.priced import price
from fuseledger.peers.program import read_program
from fuseledger.peers.xla import xla_plan
from fuseledger.peers.xla_target import target_config
from fuseledger.planner.plan import make_plan

pytestmark = pytest.mark.torch
pytest.importorskip("jax")

CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"
MATRIX = 2 * 4096**2


@pytest.fixture(scope="module")
def chain() -> PeerPlan:
    """XLA's plan of the textbook chain on an H100."""
    return xla_plan(CHAIN, load("h100-sxm"))


def test_the_textbook_chain_is_cut_2_2(chain: PeerPlan) -> None:
    """A Triton fusion of GEMM and bias, then GELU and residual in one loop fusion."""
    assert (chain.status, chain.reason) == ("planned", None)
    assert [kernel.kind for kernel in chain.kernels] == ["template", "loop"]
    assert [set(kernel.origins) for kernel in chain.kernels] == [
        {"gemm", "bias"}, {"gelu", "residual"},
    ]  # fmt: skip
    assert chain.kernels[0].config is not None
    assert chain.kernels[0].config.startswith("__triton_nested_gemm_fusion, tile ")


def test_its_bytes_are_those_of_the_textbook_cut(chain: PeerPlan) -> None:
    """The cut [2,2] of the exercise moves 201,334,784 bytes: 6 matrices and a bias of 4,096."""
    assert [kernel.bytes for kernel in chain.kernels] == [3 * MATRIX + 2 * 4096, 3 * MATRIX]
    assert chain.bytes == 201_334_784


def test_its_ops_are_priced_by_our_clock(chain: PeerPlan) -> None:
    """Kernels that name our ops are priced as our own cut [2,2]."""
    program = read_program(CHAIN)
    ours = make_plan(program.graph, load("h100-sxm"))
    priced = price(program, chain, ours)
    assert [kernel.ops for kernel in priced.kernels] == [(0, 1), (2, 3)]
    assert priced.time_us == pytest.approx(
        ours.search.choose((0, 1)).time_us + ours.search.choose((2, 3)).time_us
    )


def test_a_softmax_is_one_triton_fusion() -> None:
    """XLA tiles whole rows: input read once, output written once."""
    plan = xla_plan("x[4096,8192] | softmax", load("h100-sxm"))
    assert [(kernel.kind, kernel.bytes) for kernel in plan.kernels] == [
        ("triton", 2 * 2 * 4096 * 8192)
    ]


def test_a_convolution_is_a_call_of_cudnn_with_its_epilogue() -> None:
    """Bias and ReLU go into the library call, between copies to channels-last and back.

    The copies of input, weight and output compute nothing; the ReLU, which no kernel names, is
    where what it reads is made.
    """
    source = "conv(x[32,64,56,56], w[128,64,3,3], padding=1) + bias(axis=1) | relu"
    plan = xla_plan(source, load("h100-sxm"))
    copies = [kernel for kernel in plan.kernels if kernel.kind == "copy"]
    (call,) = [kernel for kernel in plan.kernels if kernel.kind == "extern"]
    assert call.config == "__cudnn$convBiasActivationForward"
    assert [kernel.origins for kernel in copies] == [(), (), ()]
    program = read_program(source)
    priced = price(program, plan, make_plan(program.graph, load("h100-sxm")))
    assert [kernel.ops for kernel in priced.kernels if kernel.kernel is call] == [(0, 1, 2)]
    assert sum(call.writes.values()) == 2 * 32 * 128 * 56 * 56


def test_a_slice_reads_what_it_takes() -> None:
    """Of an operand that a fusion slices, the slice is counted: 16 rows of 4,096, not all."""
    plan = xla_plan("slice(x[4096,4096], 0, 16, axis=0) | relu", load("h100-sxm"))
    assert plan.status == "planned"
    assert plan.bytes == 2 * 2 * 16 * 4096


@pytest.mark.parametrize(
    ("name", "launches"), [("t4", 3), ("a100-sxm-80", 1), ("l4", 1), ("b200", 1), ("rtx-5090", 1)]
)
def test_every_nvidia_generation_is_a_target(name: str, launches: int) -> None:
    """XLA compiles for a GPU of each generation; without Triton (Turing) a softmax is three."""
    plan = xla_plan("x[512,1024] | softmax", load(name))
    assert (plan.status, plan.reason, plan.launches) == ("planned", None, launches)


def test_the_target_is_what_xla_itself_writes_of_an_h100() -> None:
    """Figures of XLA's own description of the same GPU (specs/h100_sxm.txtpb)."""
    lines = {line.strip() for line in target_config(load("h100-sxm")).splitlines()}
    assert {
        "core_count: 132", "fpus_per_core: 128", "clock_rate_ghz: 1.98", "l2_cache_size: 52428800",
        "shared_memory_per_block_optin: 232448", "shared_memory_per_core: 233472",
        "threads_per_core_limit: 2048", "registers_per_core_limit: 65536",
    } <= lines  # fmt: skip


def test_nothing_of_jax_is_left_in_this_process(chain: PeerPlan) -> None:
    """The worker imports JAX; the peer does not."""
    assert chain.kernels
    assert "fuseledger.peers.xla_worker" not in sys.modules


def test_a_slow_plan_is_a_row_that_says_so() -> None:
    """Past its time limit the worker is ended."""
    plan = xla_plan(CHAIN, load("h100-sxm"), time_limit_s=0.05)
    assert (plan.status, plan.reason) == ("timeout", "no plan within 0.05 s")


def test_a_device_of_another_vendor_is_unavailable() -> None:
    """XLA is asked for CUDA targets alone."""
    plan = xla_plan(CHAIN, load("mi300x"))
    assert plan.status == "unavailable"
    assert plan.reason == "device mi300x (gfx942) is no CUDA target; name an NVIDIA GPU"


def test_a_failure_names_the_releases_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that cannot be read fails by name; an untested JAX says which are known."""
    monkeypatch.setattr(xla, "KNOWN_VERSIONS", ("1.0",))
    plan = xla_plan("x[8,4096] | nosuch", load("h100-sxm"))
    assert plan.status == "failed"
    assert plan.reason is not None
    assert "nosuch" in plan.reason
    assert plan.reason.endswith("known to work: 1.0")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JAX the message is the line that installs it."""

    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(process, "version", absent)
    with pytest.raises(MissingExtra, match=r'pip install "fuseledger\[xla\]"'):
        xla_plan(CHAIN, load("h100-sxm"))
