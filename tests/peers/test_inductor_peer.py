"""TorchInductor's own plans, asked for without a GPU."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from fuseledger.devices import load
from fuseledger.peers import inductor
from fuseledger.peers.inductor import inductor_plan
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.priced import price
from fuseledger.peers.program import read_program
from fuseledger.planner.plan import make_plan

pytestmark = pytest.mark.torch

CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(512), torch.nn.Linear(512, 1536)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(4, 256, 8, 64).transpose(1, 2) for part in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.drop(mixed.transpose(1, 2).reshape(4, 256, 512))

def block():
    return Block(), (torch.randn(4, 256, 512),)
"""


@pytest.fixture(scope="module")
def chain() -> PeerPlan:
    """TorchInductor's plan of the textbook chain on an H100."""
    return inductor_plan(CHAIN, load("h100-sxm"))


def test_the_textbook_chain_is_cut_1_3(chain: PeerPlan) -> None:
    """An extern GEMM, then bias, GELU and residual in one Triton kernel."""
    assert (chain.status, chain.reason) == ("planned", None)
    assert [kernel.kind for kernel in chain.kernels] == ["extern", "triton"]
    assert [kernel.origins for kernel in chain.kernels] == [("gemm",), ("bias", "gelu", "residual")]


def test_its_bytes_are_those_of_the_textbook_cut(chain: PeerPlan) -> None:
    """The cut [1,3] of the exercise moves 201,334,784 bytes: 6 matrices of 2·4096² and a bias."""
    matrix = 2 * 4096**2
    assert chain.bytes == 6 * matrix + 2 * 4096 == 201_334_784


def test_generated_source_is_the_kernels_own(chain: PeerPlan) -> None:
    """The Triton kernel comes with its source, which is Python; a library call has none."""
    call, fused = chain.kernels
    assert call.source is None
    assert fused.source is not None
    assert "erf" in fused.source
    ast.parse(fused.source.replace("async_compile.triton", "compiled"))


def test_its_time_is_that_of_its_ops_by_our_clock(chain: PeerPlan) -> None:
    """Both kernels map onto our ops, so the plan's time is that of our cut [1,3]."""
    program = read_program(CHAIN)
    ours = make_plan(program.graph, load("h100-sxm"))
    priced = price(program, chain, ours)
    assert [kernel.ops for kernel in priced.kernels] == [(0,), (1, 2, 3)]
    assert priced.time_us == pytest.approx(
        ours.search.choose((0,)).time_us + ours.search.choose((1, 2, 3)).time_us
    )


def test_nothing_is_left_in_this_process(chain: PeerPlan) -> None:
    """The stand-ins live in the worker: no module that replaces parts of torch is imported here."""
    assert chain.kernels
    replacing = {"fuseledger.peers.inductor_device", "fuseledger.peers.inductor_worker"}
    assert not replacing & set(sys.modules)


def test_a_module_with_attention_and_dropout_is_planned(tmp_path: Path) -> None:
    """Fused attention is one library call, and random seeds do not stop the plan."""
    (tmp_path / "model.py").write_text(MODEL)
    source = f"{tmp_path}/model.py:block"
    plan = inductor_plan(source, load("a100-sxm-80"))
    assert (plan.status, plan.reason) == ("planned", None)
    attention = [kernel for kernel in plan.kernels if "attention" in kernel.name]
    assert [kernel.kind for kernel in attention] == ["extern"]
    assert sum(attention[0].writes.values()) == 4 * 4 * 256 * 512
    program = read_program(source)
    homes = price(program, plan, make_plan(program.graph, load("a100-sxm-80"))).home
    assert len(homes) == len(program.graph.ops)


def test_a_graph_of_the_corpus_copies_a_convolution_to_channels_last(corpus: Path) -> None:
    """Problem 11's convolution is given its input and weight in another layout: two copies."""
    path = next(corpus.glob("kernelbench/v0.1/level2/011_*.json"))
    plan = inductor_plan(str(path), load("h100-sxm"))
    assert (plan.status, plan.reason) == ("planned", None)
    copies, call = plan.kernels[:2], plan.kernels[2]
    assert [copy.origins for copy in copies] == [("convolution",), ("convolution",)]
    assert all(copy.bytes == 2 * sum(copy.writes.values()) > 0 for copy in copies)
    assert set(call.reads) == {name for copy in copies for name in copy.writes}


def test_a_slow_plan_is_a_row_that_says_so() -> None:
    """Past its time limit the worker is ended."""
    plan = inductor_plan(CHAIN, load("h100-sxm"), time_limit_s=0.05)
    assert (plan.status, plan.reason) == ("timeout", "no plan within 0.05 s")


def test_a_failure_names_the_op_and_the_versions_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no torch form fails by name; an untested torch says which are known."""
    monkeypatch.setattr(inductor, "KNOWN_VERSIONS", ("1.0",))
    plan = inductor_plan("x[8,4096] | cumsum(axis=1)", load("h100-sxm"))
    assert plan.status == "failed"
    assert plan.reason is not None
    assert "cumsum" in plan.reason
    assert plan.reason.endswith("known to work: 1.0")


def test_a_device_of_another_vendor_is_unavailable() -> None:
    """TorchInductor is asked for CUDA targets alone."""
    plan = inductor_plan(CHAIN, load("mi300x"))
    assert plan.status == "unavailable"
    assert plan.reason == "device mi300x (gfx942) is no CUDA target; name an NVIDIA GPU"


def test_with_templates_the_chain_is_one_kernel() -> None:
    """Bias, GELU and residual are fused into TorchInductor's own GEMM: the floor's bytes."""
    plan = inductor_plan(CHAIN, load("h100-sxm"), templates=True)
    assert (plan.name, plan.status) == ("inductor-templates", "planned")
    (kernel,) = plan.kernels
    assert kernel.kind == "template"
    assert kernel.bytes == 134_225_920


def test_an_attention_expression_is_one_call() -> None:
    """An attention is given as a user would write it: its five ops are one library kernel.

    It moves q and the result, 8·512·64·2 B each, and k and v of two heads.
    """
    source = "attention(q[1,8,512,64], k[1,2,512,64], v[1,2,512,64], causal=true)"
    plan = inductor_plan(source, load("h100-sxm"))
    (kernel,) = plan.kernels
    assert (kernel.kind, kernel.bytes) == ("extern", 2 * 64 * 512 * (8 + 8 + 2 + 2))
    program = read_program(source)
    (priced,) = price(program, plan, make_plan(program.graph, load("h100-sxm"))).kernels
    assert priced.ops == (0, 1, 2, 3, 4)


def test_one_worker_answers_several_sources() -> None:
    """A kept process gives the plans that two processes give."""
    with inductor.inductor_worker() as worker:
        first, second = (
            inductor_plan(source, load("h100-sxm"), worker=worker)
            for source in ("x[4096,8192] | softmax", CHAIN)
        )
    assert first.launches == 1
    assert second.bytes == 201_334_784


def test_a_generated_kernel_says_how_it_is_launched() -> None:
    """Its function, its types and its tile are there for compiling it without a GPU."""
    plan = inductor_plan(CHAIN, load("h100-sxm"), launches=True)
    call, fused = plan.kernels
    assert call.launch is None
    assert fused.launch is not None
    assert fused.launch.signature["xnumel"] == "i32"
    assert fused.launch.constants["XBLOCK"] in (256, 512, 1024)
    assert "@triton.jit" in fused.launch.code


PUBLIC = """
import torch

class Product(torch.nn.Module):
    def forward(self, x, y):
        return torch.nn.functional.softmax(torch.matmul(x, y), dim=1)

def product():
    return Product(), (torch.randn(100, 100), torch.randn(100, 100))

def norm():
    return torch.nn.LayerNorm(512), (torch.randn(4096, 512),)
"""


def test_a_published_softmax_is_planned_as_on_its_gpu(tmp_path: Path) -> None:
    """What torch.compile printed on a GPU of sm_86 for softmax(x @ y) of 100 by 100 in fp32.

    github.com/w32zhong/simp-intelligence@2f2d798, simp_intelligence/torch/torch_compile.ipynb:
    `extern_kernels.mm`, then a persistent reduction of its result in place. Its name there was
    `triton_per_fused__softmax_0`; newer ones name the pass that prepares the softmax too.
    """
    (tmp_path / "public.py").write_text(PUBLIC)
    plan = inductor_plan(f"{tmp_path}/public.py:product", load("a10g"))
    product, softmax = plan.kernels
    assert product.name == "extern_kernels.mm"
    assert softmax.name == "triton_per_fused__softmax_prepare_softmax_online_0"
    assert softmax.source is not None
    for words in (
        "@triton_heuristics.persistent_reduction(", "size_hints={'x': 128, 'r0_': 128}",
        "reduction_hint=ReductionHint.INNER", "'signature': {'in_out_ptr0': '*fp32', "
        "'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'}",
        "'configs': [{(0,): [['tt.divisibility', 16]]}]",
    ):  # fmt: skip
        assert words in softmax.source


def test_a_published_layer_norm_is_the_kernel_of_an_a100(tmp_path: Path) -> None:
    """LayerNorm(512) of 4,096 fp32 rows, as in a public cache of an A100 (backend hash 42F736BF…).

    Heuristic, sizes, types, the device as TorchInductor sees it, counts of loads and reductions.
    """
    (tmp_path / "public.py").write_text(PUBLIC)
    plan = inductor_plan(f"{tmp_path}/public.py:norm", load("a100-sxm-80"))
    (kernel,) = plan.kernels
    assert kernel.name == "triton_per_fused_native_layer_norm_0"
    assert kernel.source is not None
    for words in (
        "@triton_heuristics.persistent_reduction(", "size_hints={'x': 4096, 'r0_': 512}",
        "'signature': {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', "
        "'out_ptr2': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'}",
        "multi_processor_count=108, cc=80, major=8, regs_per_multiprocessor=65536, "
        "max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32",
        "'no_x_dim': None, 'atomic_add_found': False, 'num_load': 3, 'num_store': 1, "
        "'num_reduction': 4", "'tiling_scores': {'x': 0, 'r0_': 25169920}",
    ):  # fmt: skip
        assert words in kernel.source


def test_a_tracers_own_attention_is_pytorchs(corpus: Path) -> None:
    """Level 1's problem 97 keeps attention whole under short operand names: one library call."""
    path = next(corpus.glob("kernelbench/v0.1/level1/097_*.json"))
    plan = inductor_plan(str(path), load("h100-sxm"))
    assert (plan.status, plan.reason) == ("planned", None)
    assert [kernel.kind for kernel in plan.kernels] == ["extern"]


VIEWS_ALONE = """<ir_version: 10, opset_import: ["" : 21]>
g (float[3,4] x, float[3] u) => (float[4,3] y, float[3] z) { y = Transpose (x) z = Relu (u) }"""


@pytest.mark.parametrize(("computed", "kernels"), [(True, 1), (False, 0)])
def test_an_output_may_be_a_view_of_an_input(tmp_path: Path, computed: bool, kernels: int) -> None:
    """TorchInductor makes no kernel for a transposed input that no op reads."""
    onnx: Any = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(VIEWS_ALONE)
    if not computed:
        for field in ("input", "output", "node"):
            del getattr(model.graph, field)[1]
    path = tmp_path / "views.onnx"
    path.write_bytes(model.SerializeToString())
    plan = inductor_plan(str(path), load("h100-sxm"))
    assert (plan.status, plan.reason) == ("planned", None)
    assert len(plan.kernels) == kernels
