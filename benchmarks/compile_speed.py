"""How much faster kernels compile on two processes than on one, and when all are cached.

    python benchmarks/compile_speed.py [--kernels 16]

Compiles GEMMs of different tiles and epilogues for the H100 into a fresh cache, on one process and
on two, and once more from the cache. Each figure is of a whole run, its processes' start included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from chain_registers import TILES, WARPS, kernel
from fuseledger.devices import load as load_device
from fuseledger.triton.compile import compile_kernels, target_of

SOURCES = ("gemm(1024,1024,1024) + bias + relu", "gemm(1024,1024,1024) + bias + gelu + residual")


def main() -> None:
    """Compile and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=16)
    args = parser.parse_args()
    target = target_of(load_device("h100-sxm"))
    kernels = [
        kernel(source, "h100-sxm", tile, warps)
        for source in SOURCES for warps in reversed(WARPS) for tile in TILES
    ][: args.kernels]  # fmt: skip
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        for processes in (1, 2):
            cache = Path(place) / str(processes)
            for words in (f"{processes} processes", f"{processes} processes, cached"):
                started = time.perf_counter()
                found = compile_kernels(kernels, target, processes=processes, cache=cache)
                seconds[words] = time.perf_counter() - started
                assert not any(each.failed for each in found)
                assert all(each.is_cached for each in found) == ("cached" in words)
    for words, taken in seconds.items():
        print(f"{len(kernels)} kernels, {words}: {taken:.2f} s")
    print(f"two processes: {seconds['1 processes'] / seconds['2 processes']:.2f} times as fast")


if __name__ == "__main__":
    main()
