"""Compiles one kernel for a target and says what the compiler said, as JSON on stdout.

Runs as `python -m fuseledger.triton.compile_worker`, with the job as JSON on stdin: no GPU and no
torch are needed. Registers and stack of NVIDIA kernels come from `cuobjdump -res-usage` on the
binary that Triton's own ptxas made; those of AMD kernels from the assembly's metadata.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from fuseledger.triton.interpret import load_module

SERIALISED = "C7511"
"""ptxas's warning that asynchronous matrix products run one after the other."""


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
    pointers = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = compiler.ASTSource(function, signature, constants, attributes)
    target = backends.GPUTarget(job["backend"], job["arch"], job["warp"])
    options = {"num_warps": job["warps"], "num_stages": job["stages"]}
    started = time.perf_counter()
    done: Any = triton.compile(source, target=target, options=options)
    seconds = time.perf_counter() - started
    read = _nvidia if job["backend"] == "cuda" else _amd
    figures = read(done, folder)
    threads = int(done.metadata.num_warps) * int(job["warp"])
    return {"shared_bytes": int(done.metadata.shared), "threads": threads, "seconds": seconds,
            **figures}  # fmt: skip


def _nvidia(done: Any, folder: Path) -> dict[str, Any]:
    knobs: Any = import_module("triton.knobs")
    binary = folder / "kernel.cubin"
    binary.write_bytes(done.asm["cubin"])
    tool = str(knobs.nvidia.cuobjdump.path)
    run = subprocess.run(
        [tool, "-res-usage", str(binary)], capture_output=True, text=True, check=True
    )
    found = re.search(r"REG:(\d+) STACK:(\d+)", run.stdout + run.stderr)
    if found is None:
        raise ValueError("cuobjdump names no registers")
    return {"registers": int(found[1]), "spilled_bytes": int(found[2])}


def _amd(done: Any, folder: Path) -> dict[str, Any]:
    text = str(done.asm["amdgcn"])

    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    return {
        "registers": figure("vgpr_count"),
        "spilled_bytes": 4 * figure("vgpr_spill_count"),
    }


def main() -> None:
    """Read a job, answer in one line."""
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="fuseledger-compile-") as place:
        folder = Path(place)
        _keep_triton_in(folder)
        try:
            answer = compile_job(job, folder)
        except Exception as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            answer = {"failed": f"{type(error).__name__}: {words[-1]}"[:300]}
    print(json.dumps(answer))


def _keep_triton_in(folder: Path) -> None:
    """Triton's own cache and dumps go with the job, and ptxas's warnings to stderr."""
    import os

    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")


if __name__ == "__main__":
    main()
