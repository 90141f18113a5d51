"""Planning speed: large graphs, repeated layers, a wide mixture of experts. Ratios within one run.

Processor time, which other work on the machine changes less than the time on the wall.

python benchmarks/planner_speed.py
"""

from __future__ import annotations

import resource
import time

from fuseledger.devices import load
from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.view import View
from fuseledger.planner.plan import make_plan


def transformer(layers: int, *, tokens: int = 2048, hidden: int = 1024, heads: int = 16) -> Graph:
    """A decoder of equal layers, spelled out: about 17 ops a layer."""
    b = GraphBuilder(f"transformer{layers}")
    x = b.input("x", (tokens, hidden), "bf16")
    for _ in range(layers):
        x = _layer(b, x, hidden, heads)
    b.output(x, "y")
    return b.finish()


def _layer(b: GraphBuilder, x: View, hidden: int, heads: int) -> View:
    tokens = x.shape[0]

    def weight(rows: int, columns: int) -> View:
        return b.weight("w", (rows, columns), "bf16")

    def split(view: View) -> View:
        return b.reshape(view, [tokens, heads, hidden // heads]).transpose([1, 0, 2])

    h = compose.rms_norm(b, x, 1, b.weight("g", (hidden,), "bf16"), 1e-5)
    q, k, v = (split(compose.matmul(b, h, weight(hidden, hidden))) for _ in range(3))
    a = compose.attention(b, q, k, v, causal=True).transpose([1, 0, 2])
    x = b.map("add", [x, compose.matmul(b, b.reshape(a, [tokens, hidden]), weight(hidden, hidden))])
    h = compose.rms_norm(b, x, 1, b.weight("g", (hidden,), "bf16"), 1e-5)
    gate, up = (compose.matmul(b, h, weight(hidden, 4 * hidden)) for _ in range(2))
    m = b.map("mul", [b.map("silu", [gate]), up])
    return b.map("add", [x, compose.matmul(b, m, weight(4 * hidden, hidden))])


def experts(count: int) -> Graph:
    """A layer of `count` experts on one input, summed with weights: wide."""
    b = GraphBuilder(f"experts{count}")
    x = b.input("x", (256, 1024), "bf16")
    total: View | None = None
    for i in range(count):
        gate = compose.matmul(b, x, b.weight("w", (1024, 512), "bf16"))
        out = compose.matmul(b, b.map("silu", [gate]), b.weight("w", (512, 1024), "bf16"))
        out = b.map("mul", [out, b.input(f"route{i}", (256, 1), "bf16")])
        total = out if total is None else b.map("add", [total, out])
    assert total is not None
    b.output(total, "y")
    return b.finish()


def main() -> None:
    """Time each graph and print the ratios."""
    device = load("h100-sxm")
    seconds: dict[str, float] = {}
    for name, graph in (
        ("2 layers", transformer(2)),
        ("32 layers", transformer(32)),
        ("1,000 ops", transformer(59)),
        ("10,000 ops", transformer(590)),
        ("64 experts", experts(64)),
    ):
        started = time.process_time()
        planned = make_plan(graph, device)
        seconds[name] = time.process_time() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{name}: {len(graph.ops)} ops, {planned.totals.kernels} kernels, "
            f"{seconds[name]:.2f} s, peak {memory:,.0f} MB so far; {planned.status}",
            flush=True,
        )
    print(f"32 layers / 2 layers: {seconds['32 layers'] / seconds['2 layers']:.2f}×")


if __name__ == "__main__":
    main()
