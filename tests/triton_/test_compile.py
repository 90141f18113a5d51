from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from planned import CHAIN, planned

from fuseledger.devices import load as load_device
from fuseledger.errors import DeviceError
from fuseledger.triton.compile import Compiled, compile_kernels, near_pointers, target_of
from fuseledger.triton.compile_pool import CompilerPool
from fuseledger.triton.compile_worker import amd_figures, instruction_mix, warnings_of
from fuseledger.triton.emit import EmittedKernel, emit_kernel
from fuseledger.triton.evidence import with_evidence
from fuseledger.triton.occupancy import occupancy

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


def test_amd_kernels_know_which_tensors_32_bits_reach() -> None:
    """As its launcher says: x of 65536·16384 fp16 is 2 GiB, a byte too much; others are less."""
    (kernel,) = _emitted("x[65536,16384] + y[16384]")
    near = near_pointers(kernel, target_of(load_device("mi300x")))
    assert near == [p for p, tensor in kernel.parameters if tensor == "y"]
    assert not near_pointers(kernel, target_of(load_device("h100-sxm")))


def test_what_moves_to_accumulation_registers_is_not_spilled() -> None:
    """48 spilled registers without a byte of stack found others; with 64 bytes, 16 did not."""
    text = ".vgpr_count: 327\n.vgpr_spill_count: 48\n.private_segment_fixed_size: "
    assert amd_figures(text + "0")["spilled_bytes"] == 0
    assert amd_figures(text + "64") == {"registers": 327, "stack_bytes": 64, "spilled_bytes": 64}


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
    """A kernel that takes longer than its limit fails with that reason; the next one compiles."""
    (good,) = _emitted("softmax(x[512,512])")
    slow = replace(good, source="import time\ntime.sleep(3600)\n" + good.source)
    target = target_of(load_device("h100-sxm"))
    found = compile_kernels([slow, good], target, processes=1, timeout_s=20)
    assert found[0].failed is not None
    assert "no result after" in found[0].failed
    assert found[1].failed is None


@pytest.mark.torch
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "died of SIGKILL"),
        ("import os; os.write(2, b'out of luck'); os._exit(3)", "out of luck"),
        ("hoard = bytearray(1 << 44)", "MemoryError"),
    ],
)
def test_a_crash_is_one_failed_row(line: str, reason: str) -> None:
    """A compiler that dies, or finds no memory, fails its kernel alone and says of what."""
    (good,) = _emitted("softmax(x[512,512])")
    bad = replace(good, source=f"{line}\n{good.source}")
    found = compile_kernels([bad, good], target_of(load_device("h100-sxm")), processes=1)
    assert found[0].failed is not None
    assert reason in found[0].failed
    assert found[1].failed is None


@pytest.mark.torch
def test_what_a_failed_compiler_started_is_ended_too() -> None:
    """Processes started by a compiler that hangs end with it."""
    import os
    import time

    pool = CompilerPool(timeout_s=20)
    source = "import subprocess\nprint(subprocess.Popen(['sleep', '3600']).pid)\n1 / 0\n"
    job = {"source": source, "name": "k"}
    assert "ZeroDivisionError" in pool.compile(job)["failed"]
    (compiler,) = pool._started
    children = [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and _parent(int(pid)) == compiler._process.pid
    ]
    assert len(children) == 1
    pool.close()
    for _ in range(100):
        if not _runs(children[0]):
            return
        time.sleep(0.05)
    raise AssertionError("the compiler's child still runs")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_warnings_that_matter_are_read_from_the_log() -> None:
    """Serialised wgmma (C7511) is reported once; figures of registers are no warnings."""
    advice = (
        "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in function 'k'"
    )
    log = f"ptxas info    : 0 bytes gmem\n{advice}\n{advice}\nptxas info    : Used 255 registers\n"
    (found,) = warnings_of(log)
    assert found.startswith("(C7511) Potential Performance Loss: wgmma.mma_async")


def test_the_instruction_mix_counts_by_kind() -> None:
    """Predicates are skipped; matrix instructions of every generation are tensor-core ones."""
    sass = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;  /* 0x0000000402048981 */
        /*0020*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8] ;
        /*0030*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*0040*/             @UP0  UTMALDG.2D [UR4], [UR6] ;
        /*0050*/                   MUFU.EX2 R5, R5 ;
        /*0060*/                   STL [R1+0x4], R8 ;
        /*0070*/                   LDL R8, [R1+0x4] ;
        /*0080*/                   STG.E desc[UR4][R2.64], R5 ;
        /*0090*/                   LDSM.16.M88.4 R8, [R8] ;
"""
    assert instruction_mix(sass) == {
        "all": 10, "tensor": 2, "load": 2, "store": 1, "shared": 1, "local": 2, "special": 1,
    }  # fmt: skip


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
