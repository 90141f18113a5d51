from __future__ import annotations

from collections.abc import Callable, Sequence

from planned import CHAIN

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.planner.plan import PlanOptions, make_plan
from fuseledger.triton.compile import Compiled
from fuseledger.triton.emit import EmittedKernel
from fuseledger.triton.replan import Evidenced, plan_compiled

DEVICE = load_device("h100-sxm")
GRAPH = load(CHAIN, dtype="fp16", dims={})


def _plan(spilled: Callable[[EmittedKernel], int], failed: str | None = None) -> Evidenced:
    """A plan with a compiler that spills what `spilled` says."""

    def compile_(kernels: Sequence[EmittedKernel]) -> list[Compiled]:
        return [
            Compiled(name=k.name, registers=100, spilled_bytes=spilled(k), shared_bytes=32768,
                     threads=32 * k.warps, failed=failed)
            for k in kernels
        ]  # fmt: skip

    return plan_compiled(GRAPH, DEVICE, PlanOptions(), compile_)


def test_a_plan_that_the_compiler_confirms_stays() -> None:
    """Figures replace the model, the schedule stays, and one compilation was enough."""
    modelled = make_plan(GRAPH, DEVICE)
    found = _plan(lambda kernel: 0)
    assert found.planned.plan.kernels == modelled.plan.kernels
    assert (found.compiled, found.changed, found.is_stable, found.missing) == (1, (), True, {})
    (ledger,) = found.planned.kernels
    registers = ledger.accounts["registers"]
    assert (registers.value, registers.provenance) == (100, "compiled")
    assert registers.modelled == modelled.kernels[0].accounts["registers"].value
    assert ledger.accounts["capacity"].value == 32768


def test_a_spill_changes_warps_or_tiles_before_it_cuts() -> None:
    """Where only the chosen number of warps spills, the ops stay together under another one."""
    (before,) = make_plan(GRAPH, DEVICE).kernels
    found = _plan(lambda kernel: 20_000 if kernel.warps == before.price.warps else 0)
    (ledger,) = found.planned.kernels
    assert ledger.kernel.ops == before.kernel.ops
    assert ledger.price.warps != before.price.warps
    assert ledger.price.spill_bytes == 0
    assert ledger.accounts["registers"].provenance == "compiled"
    assert found.compiled > 1
    assert f"{before.price.warps} warps →" in found.changed[0]


def test_what_spills_on_every_tile_is_cut() -> None:
    """A residual that spills 400 kB a thread on any schedule gets a kernel of its own."""
    found = _plan(lambda kernel: 400_000 if "gelu" in kernel.name and "gemm" in kernel.name else 0)
    assert len(found.planned.kernels) > 1
    assert all(not k.price.spill_bytes for k in found.planned.kernels if k.price.modelled)


def test_what_does_not_compile_keeps_its_model() -> None:
    """A failure is a missing figure with its reason, and no evidence."""
    found = _plan(lambda kernel: 0, failed="the compiler died of SIGSEGV")
    assert found.missing == {"k1": "does not compile: the compiler died of SIGSEGV"}
    assert found.planned.kernels[0].accounts["registers"].provenance == "modelled"
    assert found.is_stable
