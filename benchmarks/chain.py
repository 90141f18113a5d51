"""How long the chain planner takes: `python benchmarks/chain.py [STAGES ...]`."""

from __future__ import annotations

import sys
import time

import numpy as np

from fuseledger.devices import load
from fuseledger.planner.chain import Chain, cut_chain
from fuseledger.textbook.chain import Stage, chain_graph

SIZES = (100, 500, 1000, 2000, 4000)


def random_stages(count: int, seed: int = 0) -> list[Stage]:
    """Stages of up to 10⁷ elements, 10⁸ FLOPs and 120 registers, so that long kernels spill."""
    rng = np.random.default_rng(seed)
    return [
        Stage(
            f"s{i}", int(rng.integers(1, 10**7)), int(rng.integers(0, 10**7)),
            float(rng.random() * 1e8), int(rng.integers(0, 120)),
        )
        for i in range(count)
    ]  # fmt: skip


def main(sizes: list[int]) -> None:
    """One line per size: stages, the time of the cut, its kernels."""
    device = load("textbook")
    for count in sizes:
        graph = chain_graph(random_stages(count))
        started = time.perf_counter()
        chain = Chain.of(graph)
        assert chain is not None
        cut, cost_us = cut_chain(chain, device)
        seconds = time.perf_counter() - started
        print(
            f"{count:6,} stages  {seconds:7.3f} s  {len(cut):6,} kernels  {cost_us / 1000:,.1f} ms"
        )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or list(SIZES))
