"""Compiling emitted kernels for a GPU that need not be there: registers, spills, shared memory.

Each kernel compiles in a process of its own under a time limit: a crash, a hang or an exhausted
memory of the compiler is one failed row. Results are kept on disk by source, target, options and
compiler version.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from fuseledger.devices import Device
from fuseledger.errors import DeviceError, MissingExtra
from fuseledger.stored import cache_folder, opened, recalled
from fuseledger.triton.compile_pool import CompilerPool
from fuseledger.triton.emit import EmittedKernel, module_source

TIMEOUT_S = 120.0
SCHEDULED_WARP = 32
"""Threads of a schedule's warp: a wavefront of 64 threads counts as two."""
NEAR_BYTES = 2**31 - 1
"""Up to so many bytes of a tensor, Triton's launcher for AMD says that offsets into it have 32 bits
(`tt.pointer_range` of its `HIPBackend`): kernels then use buffer instructions."""
CACHE_BYTES = 512 * 2**20
FORMAT = 3
"""Raised where what is stored of a compilation changes."""


class Target(Struct, frozen=True, kw_only=True):
    """What Triton compiles for."""

    backend: str
    """`cuda` or `hip`."""
    arch: int | str
    """90 for sm_90; `gfx942`."""
    warp: int

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


class Compiled(Struct, frozen=True, kw_only=True):
    """What the compiler said of one kernel."""

    name: str
    failed: str | None = None
    """Why there is no binary; the figures are then 0."""
    registers: int = 0
    """Per thread; on AMD vector registers, accumulation registers included."""
    spilled_bytes: int = 0
    """Per thread, as ptxas says of its stores or its loads, whichever are more; on AMD spilled
    vector registers × 4, less those that found an accumulation register."""
    stack_bytes: int = 0
    """Local memory of a thread: what is spilled, and arrays that have no registers."""
    shared_bytes: int = 0
    """Per block."""
    threads: int = 0
    warnings: tuple[str, ...] = ()
    """What the compiler warned of: `(C7511) Potential Performance Loss: …`."""
    instructions: dict[str, int] = field(default_factory=dict[str, int])
    """SASS instructions as they stand in the binary, `all` and by kind; NVIDIA, where asked for."""
    seconds: float = 0.0
    is_cached: bool = False


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
    timeout_s: float = TIMEOUT_S, cache: Path | None = None, mix: bool = False,
    done: Callable[[Compiled], None] | None = None,
) -> list[Compiled]:  # fmt: skip
    """Compile kernels, in order. `cache` is a folder; None keeps nothing.

    `mix` asks for the mix of SASS instructions too, which takes as long as compiling.
    """
    version = compiler_version()
    with opened(cache, most_bytes=CACHE_BYTES) as store:

        def one(kernel: EmittedKernel) -> Compiled:
            job = _job(kernel, target, mix)
            key = hashlib.sha256(json.dumps([FORMAT, version, job]).encode()).hexdigest()
            found = recalled(store, key, _recalled)
            if found is None:
                found = _of_fields(kernel.name, pool.compile(job))
                if store is not None and not found.failed:
                    store.set(key, json.dumps(asdict(found)))
            found = replace(found, name=kernel.name)
            if done is not None:
                done(found)
            return found

        pool = CompilerPool(timeout_s=timeout_s)
        try:
            with ThreadPoolExecutor(processes or os.cpu_count() or 1) as threads:
                return list(threads.map(one, kernels))
        finally:
            pool.close()


def near_pointers(kernel: EmittedKernel, target: Target) -> list[str]:
    """Pointer parameters into which offsets have 32 bits, as the launcher tells the compiler."""
    if target.backend != "hip":
        return []
    return [name for name, size in kernel.spans.items() if size <= NEAR_BYTES]


def compiled_folder() -> Path:
    """Where compiled figures are kept."""
    return cache_folder("compiled")


def _recalled(text: str) -> Compiled:
    fields: dict[str, Any] = json.loads(text)
    return replace(_of_fields(fields.pop("name"), fields), is_cached=True)


def _of_fields(name: str, fields: dict[str, Any]) -> Compiled:
    fields = {**fields, "name": name, "warnings": tuple(fields.get("warnings", ()))}
    return Compiled(**fields)


def _job(kernel: EmittedKernel, target: Target, mix: bool) -> dict[str, Any]:
    return {
        "source": module_source([kernel], kernel.name),
        "name": kernel.name,
        "signature": kernel.signature,
        "constants": kernel.constants,
        "near": near_pointers(kernel, target),
        "backend": target.backend,
        "arch": target.arch,
        "warp": target.warp,
        "warps": max(1, kernel.warps * SCHEDULED_WARP // target.warp),
        "stages": kernel.stages,
        "mix": mix,
    }
