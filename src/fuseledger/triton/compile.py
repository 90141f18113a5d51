"""Compiling emitted kernels for a GPU that need not be there: registers, spills, shared memory.

Each kernel compiles in a process of its own under a time limit: a crash, a hang or an exhausted
memory of the compiler is one failed row. Results are kept on disk by source, target, options and
compiler version.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuseledger.devices import Device
from fuseledger.errors import DeviceError, MissingExtra
from fuseledger.triton.emit import EmittedKernel, module_source

TIMEOUT_S = 120.0
SCHEDULED_WARP = 32
"""Threads of a schedule's warp: a wavefront of 64 threads counts as two."""
CACHE_BYTES = 512 * 2**20
FORMAT = 1
"""Raised where what is stored of a compilation changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What Triton compiles for."""

    backend: str
    """`cuda` or `hip`."""
    arch: int | str
    """90 for sm_90; `gfx942`."""
    warp: int

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiler said of one kernel."""

    name: str
    failed: str | None = None
    """Why there is no binary; the figures are then 0."""
    registers: int = 0
    """Per thread; on AMD vector registers, accumulation registers included."""
    spilled_bytes: int = 0
    """Stack bytes per thread; on AMD spilled vector registers × 4."""
    shared_bytes: int = 0
    """Per block."""
    threads: int = 0
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    is_cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Blocks of a kernel that one SM keeps at once, and what limits them."""

    blocks: int
    limit: str
    share: float
    """Resident threads over the threads an SM can keep."""


def target_of(device: Device) -> Target:
    """The Triton target of a device; raises DeviceError where it names no architecture."""
    arch = device.arch
    if arch.startswith("sm_"):
        return Target(backend="cuda", arch=int(arch.removeprefix("sm_").rstrip("af")), warp=32)
    if arch.startswith("gfx"):
        return Target(backend="hip", arch=arch, warp=64)
    raise DeviceError(
        f"{device.name}: Triton compiles for no {arch}; name a GPU with an sm_ or gfx"
    )


def compiler_version() -> str:
    """Triton's version; raises MissingExtra where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        raise MissingExtra("triton", "triton") from None


def compile_kernels(
    kernels: Sequence[EmittedKernel], target: Target, *, processes: int | None = None,
    timeout_s: float = TIMEOUT_S, cache: Path | None = None,
    done: Callable[[Compiled], None] | None = None,
) -> list[Compiled]:  # fmt: skip
    """Compile kernels, in order. `cache` is a folder; None keeps nothing."""
    version = compiler_version()
    with _store(cache) as store:

        def one(kernel: EmittedKernel) -> Compiled:
            job = _job(kernel, target)
            key = hashlib.sha256(json.dumps([FORMAT, version, job]).encode()).hexdigest()
            found = _recall(store, key)
            if found is None:
                found = _compile(job, timeout_s)
                if store is not None and not found.failed:
                    store.set(key, json.dumps(asdict(found)))
            found = replace(found, name=kernel.name)
            if done is not None:
                done(found)
            return found

        with ThreadPoolExecutor(processes or os.cpu_count() or 1) as pool:
            return list(pool.map(one, kernels))


def cache_folder() -> Path:
    """`$FUSELEDGER_CACHE`, else the user's cache folder."""
    named = os.environ.get("FUSELEDGER_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fuseledger" / "compiled"


@contextmanager
def _store(folder: Path | None) -> Generator[Any]:
    if folder is None:
        yield None
        return
    if find_spec("diskcache") is None:
        raise MissingExtra("triton", "diskcache")
    from importlib import import_module

    diskcache: Any = import_module("diskcache")
    with diskcache.Cache(str(folder), size_limit=CACHE_BYTES) as store:
        yield store


def _recall(store: Any, key: str) -> Compiled | None:
    """A stored result; an entry that cannot be read is dropped."""
    if store is None:
        return None
    try:
        text = store.get(key)
        if text is None:
            return None
        fields: dict[str, Any] = json.loads(text)
        fields |= {"warnings": tuple(fields["warnings"]), "is_cached": True}
        return Compiled(**fields)
    except Exception:
        store.delete(key)
        return None


def _job(kernel: EmittedKernel, target: Target) -> dict[str, Any]:
    return {
        "source": module_source([kernel], kernel.name),
        "name": kernel.name,
        "signature": kernel.signature,
        "constants": kernel.constants,
        "backend": target.backend,
        "arch": target.arch,
        "warp": target.warp,
        "warps": max(1, kernel.warps * SCHEDULED_WARP // target.warp),
        "stages": kernel.stages,
    }


def _compile(job: dict[str, Any], timeout_s: float) -> Compiled:
    """Compile in a process of its own."""
    command = [sys.executable, "-m", "fuseledger.triton.compile_worker"]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    name = str(job["name"])
    try:
        run = subprocess.run(
            command, input=json.dumps(job), env=environment, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Compiled(name=name, failed=f"no result after {timeout_s:.0f} s")
    if run.returncode < 0:
        return Compiled(name=name, failed=f"the compiler died of signal {-run.returncode}")
    try:
        answer = json.loads(run.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        last = (run.stderr.strip().splitlines() or ["no answer"])[-1]
        return Compiled(name=name, failed=last[:300])
    answer["warnings"] = tuple(answer.get("warnings", ()))
    return Compiled(name=name, **answer)


def occupancy(compiled: Compiled, device: Device) -> Occupancy | None:
    """Blocks per SM from compiled figures, and the resource that limits them.

    Registers are given to warps in units of 256, shared memory with the reserve of each block.
    None for a kernel that did not compile.
    """
    if compiled.failed or not compiled.threads:
        return None
    limits: dict[str, int] = {"blocks": device.blocks_per_sm or 32}
    if device.threads_per_sm:
        limits["threads"] = device.threads_per_sm // compiled.threads
    if device.registers_per_sm and compiled.registers:
        warp = -(-compiled.registers * 32 // 256) * 256
        limits["registers"] = device.registers_per_sm // (warp * -(-compiled.threads // 32))
    if device.shared_memory_per_sm_bytes and compiled.shared_bytes:
        each = compiled.shared_bytes + (device.shared_memory_reserved_per_block_bytes or 0)
        limits["shared memory"] = device.shared_memory_per_sm_bytes // each
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    share = blocks * compiled.threads / device.threads_per_sm if device.threads_per_sm else 0.0
    return Occupancy(blocks=blocks, limit=limit, share=share)
