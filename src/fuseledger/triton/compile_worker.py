"""Compiles kernels for a target and says what the compiler said: JSON lines in, JSON lines out.

Runs as `python -m fuseledger.triton.compile_worker MEMORY_BYTES`: no GPU and no torch are needed.
Registers and stack of NVIDIA kernels come from `cuobjdump -res-usage` on the binary that Triton's
own ptxas made, spills and warnings from ptxas's log, the instruction mix from `cuobjdump -sass`;
those of AMD kernels from the assembly's metadata.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

from fuseledger.triton.interpret import load_module

_ADVICE = re.compile(
    r"^(?:ptxas )?(?:info|warning)\s*:\s*(\(C\d+\).*|.*Potential Performance.*)", re.M
)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", re.M)
BINARY = "kernel.cubin"
MIX = ("tensor", "load", "store", "shared", "local", "special")
"""Kinds of SASS instructions that are counted, besides all of them."""
_KINDS = {
    "LDG": "load", "LD": "load", "LDGSTS": "load", "UTMALDG": "load", "UBLKCP": "load",
    "STG": "store", "ST": "store", "UTMASTG": "store", "RED": "store", "REDG": "store",
    "ATOMG": "store", "ATOM": "store",
    "LDS": "shared", "LDSM": "shared", "STS": "shared", "STSM": "shared", "ATOMS": "shared",
    "LDL": "local", "STL": "local",
    "MUFU": "special",
}  # fmt: skip
"""SASS opcode → kind. Matrix units have `MMA` in their names: HMMA, HGMMA, UTCHMMA."""


def compile_job(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile and read the figures."""
    triton: Any = import_module("triton")
    compiler: Any = import_module("triton.compiler")
    backends: Any = import_module("triton.backends.compiler")
    path = folder / "kernels.py"
    path.write_text(job["source"])
    function = getattr(load_module(path), job["name"])
    signature: dict[str, str] = job["signature"]
    constants = {(list(signature).index(name),): v for name, v in job["constants"].items()}
    attributes = {
        (i,): [["tt.divisibility", 16], *[["tt.pointer_range", 32]] * (name in job["near"])]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*")
    }
    source = compiler.ASTSource(function, signature, constants, attributes)
    target = backends.GPUTarget(job["backend"], job["arch"], job["warp"])
    options = {"num_warps": job["warps"], "num_stages": job["stages"]}
    started = time.perf_counter()
    log = StringIO()
    with redirect_stdout(log):
        done: Any = triton.compile(source, target=target, options=options)
    seconds = time.perf_counter() - started
    is_nvidia = job["backend"] == "cuda"
    if is_nvidia:
        figures = _nvidia(done, folder, log.getvalue())
    else:
        figures = amd_figures(str(done.asm["amdgcn"]))
    if is_nvidia and job["mix"]:
        figures["instructions"] = instruction_mix(_dumped("-sass", folder))
    threads = int(done.metadata.num_warps) * int(job["warp"])
    return {"shared_bytes": int(done.metadata.shared), "threads": threads, "seconds": seconds,
            **figures}  # fmt: skip


def _nvidia(done: Any, folder: Path, log: str) -> dict[str, Any]:
    (folder / BINARY).write_bytes(done.asm["cubin"])
    found = re.search(r"REG:(\d+) STACK:(\d+)", _dumped("-res-usage", folder))
    if found is None:
        raise ValueError("cuobjdump names no registers")
    return {
        "registers": int(found[1]),
        "stack_bytes": int(found[2]),
        "spilled_bytes": max((int(n) for n in re.findall(r"(\d+) bytes spill", log)), default=0),
        "warnings": warnings_of(log),
    }


def _dumped(what: str, folder: Path) -> str:
    """What cuobjdump says of the binary."""
    knobs: Any = import_module("triton.knobs")
    command = [str(knobs.nvidia.cuobjdump.path), what, str(folder / BINARY)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return run.stdout + run.stderr


def warnings_of(log: str) -> list[str]:
    """What ptxas warns of in its log, each once: `(C7511) Potential Performance Loss: …`."""
    return list(dict.fromkeys(found.strip() for found in _ADVICE.findall(log)))


def instruction_mix(sass: str) -> dict[str, int]:
    """Instructions in a SASS listing, counted as they stand: all, and by kind."""
    opcodes = Counter(_INSTRUCTION.findall(sass))
    mix: dict[str, int] = dict.fromkeys(("all", *MIX), 0)
    for opcode, count in opcodes.items():
        mix["all"] += count
        kind = "tensor" if "MMA" in opcode else _KINDS.get(opcode)
        if kind is not None:
            mix[kind] += count
    return mix


def amd_figures(text: str) -> dict[str, Any]:
    """Registers, stack and spills that an assembly's metadata names."""

    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    stack = figure("private_segment_fixed_size")
    return {
        "registers": figure("vgpr_count"),
        "stack_bytes": stack,
        "spilled_bytes": min(4 * figure("vgpr_spill_count"), stack),
    }


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """The figures of one job, or `failed` and why. Triton's cache and dumps go with the job."""
    with tempfile.TemporaryDirectory(prefix="fuseledger-compile-") as place:
        os.environ["TRITON_CACHE_DIR"] = str(Path(place) / "cache")
        try:
            return compile_job(job, Path(place))
        except Exception as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            return {"failed": f"{type(error).__name__}: {words[-1]}"[:300]}


def _end_with(parent: int) -> None:
    """End this process and all that it started (ptxas) when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Answer every job in one line; what libraries print goes to stderr."""
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
