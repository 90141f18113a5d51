from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planned import CHAIN, SOFTMAX, planned

from fuseledger.devices import load as load_device
from fuseledger.errors import DeviceError
from fuseledger.triton.compile import Compiled, compile_kernels, occupancy, target_of
from fuseledger.triton.emit import EmittedKernel, emit_kernel
from fuseledger.triton.evidence import with_evidence

SMALL = "gemm(512,512,512) + bias + relu"


def _emitted(source: str) -> list[EmittedKernel]:
    plan = planned(source)
    return [emit_kernel(plan.graph, ledger.kernel) for ledger in plan.kernels]


@pytest.mark.torch
@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
def test_a_gemm_compiles_without_a_gpu(device: str) -> None:
    """The compiler names registers and shared memory for a GPU that is not there."""
    target = target_of(load_device(device))
    (found,) = compile_kernels(_emitted(SMALL), target, processes=1)
    assert found.failed is None
    assert 16 <= found.registers <= 512
    assert found.shared_bytes > 0
    assert found.threads == 128


@pytest.mark.torch
def test_a_second_run_comes_from_the_cache(tmp_path: Path) -> None:
    """What was compiled once is not compiled again, and a corrupt entry is."""
    import diskcache

    kernels, target = _emitted("softmax(x[512,512])"), target_of(load_device("h100-sxm"))
    (first,) = compile_kernels(kernels, target, cache=tmp_path)
    (second,) = compile_kernels(kernels, target, cache=tmp_path)
    assert not first.is_cached
    assert second == replace(first, is_cached=True)
    with diskcache.Cache(str(tmp_path)) as store:
        for key in store:
            store[key] = "{"
    (third,) = compile_kernels(kernels, target, cache=tmp_path)
    assert not third.is_cached
    assert third.registers == first.registers


@pytest.mark.torch
def test_a_bad_kernel_is_one_failed_row() -> None:
    """Source that does not compile fails alone and says why."""
    (good,) = _emitted("softmax(x[512,512])")
    bad = replace(good, source=good.source.replace("tl.sum(", "tl.no_such_sum("))
    found = compile_kernels([bad, good], target_of(load_device("h100-sxm")))
    assert found[0].failed
    assert found[1].failed is None


@pytest.mark.torch
def test_a_hang_is_one_failed_row() -> None:
    """A kernel that takes longer than its limit fails with that reason."""
    (found,) = compile_kernels(
        _emitted(SOFTMAX), target_of(load_device("h100-sxm")), timeout_s=0.05
    )
    assert found.failed is not None
    assert "no result" in found.failed


def test_the_textbook_device_has_no_target() -> None:
    """A device that no compiler knows is an error that names it."""
    with pytest.raises(DeviceError, match="textbook"):
        target_of(load_device("textbook"))


def test_occupancy_names_its_limit() -> None:
    """255 registers × 256 threads take 65,536 registers with warps rounded up: one block."""
    device = load_device("h100-sxm")
    full = Compiled(name="k", registers=255, threads=256, shared_bytes=49152)
    found = occupancy(full, device)
    assert found is not None
    assert (found.blocks, found.limit, found.share) == (1, "registers", 0.125)
    wide = Compiled(name="k", registers=32, threads=128, shared_bytes=100 * 1024)
    found = occupancy(wide, device)
    assert found is not None
    assert (found.blocks, found.limit) == (2, "shared memory")  # 228 KB hold two of 101 KB


def test_evidence_replaces_the_model() -> None:
    """Compiled registers and shared memory enter the ledger; what was modelled stays in words."""
    (ledger,) = planned(CHAIN).kernels
    modelled = ledger.accounts["registers"].value
    found = with_evidence(
        ledger, Compiled(name="k", registers=255, spilled_bytes=344, shared_bytes=49152)
    )
    account = found.accounts["registers"]
    assert (account.value, account.provenance) == (255, "compiled")
    assert f"modelled {modelled:.0f}" in account.derivation
    assert "344 B a thread spill" in account.derivation
    assert found.accounts["capacity"].value == 49152
    assert found.accounts["traffic"] == ledger.accounts["traffic"]
    assert with_evidence(ledger, Compiled(name="k", failed="no")) is ledger
