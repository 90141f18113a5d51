"""Plan every graph of a KernelBench folder; compare with one kernel an op and with greedy merging.

    python benchmarks/corpus.py FOLDER [--level 2] [--optimise bytes] [--greedy] [--markdown FILE]

Prints a row a graph, the geometric mean of bytes over floor, and, for each problem above 1.5, the
account that stands in the way of its largest cut tensor.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

from fuseledger.devices import load
from fuseledger.frontends import aten_json
from fuseledger.ledger.kernel import check_legal
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import in_order
from fuseledger.planner.plan import PlanOptions, make_plan
from fuseledger.verdict.edges import edge_verdicts
from greedy import greedy_groups


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--level", default="*")
    parser.add_argument("--version", default="v0.1")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--optimise", choices=["time", "bytes"], default="time")
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    device = load(args.device)
    options = PlanOptions(objective=args.optimise)
    lines = [
        "| problem | ops | kernels | bytes | bytes/floor | unfused/floor | time µs | unfused µs "
        "| greedy/plan | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: list[float] = []
    greedy: list[float] = []
    barriers: dict[str, int] = {}
    reasons: list[str] = []
    for path in sorted(args.folder.glob(f"{args.version}/level{args.level}/*.json")):
        started = time.perf_counter()
        graph = aten_json.load(path)
        planned = make_plan(graph, device, options)
        seconds = time.perf_counter() - started
        check_legal(graph, planned.partition.groups)
        totals, baseline = planned.totals, planned.baseline
        dearer = (
            totals.time_us > baseline.time_us * (1 + 1e-9)
            if args.optimise == "time"
            else totals.bytes > baseline.bytes
        )
        assert not dearer, f"{path.name} is dearer than one kernel an op"
        for name, count in graph.barriers.items():
            barriers[name] = barriers.get(name, 0) + count
        over = "–"
        if args.greedy:
            masks = greedy_groups(graph, planned.search)
            assert in_order(graph, masks)[0] is not None
            cost = sum(planned.search.choose(tuple(bits(m))).cost for m in masks)
            ratio = cost / planned.partition.cost
            assert ratio > 1 - 1e-9 or not planned.partition.optimal, path.name
            greedy.append(ratio)
            over = f"{ratio:.3f}"
        ratio = totals.bytes / graph.floor_bytes
        ratios.append(ratio)
        lines.append(
            f"| {path.parent.name} {path.stem} | {len(graph.ops)} | {totals.kernels} "
            f"| {totals.bytes:,} | {ratio:.2f} | {baseline.bytes / graph.floor_bytes:.2f} "
            f"| {totals.time_us:,.0f} | {baseline.time_us:,.0f} | {over} | {seconds:.2f} |"
        )
        print(lines[-1], flush=True)
        if ratio > 1.5:
            cuts = [v for v in edge_verdicts(planned) if v.choice == "cut"]
            if cuts:
                worst = max(cuts, key=lambda v: graph.tensors[v.tensor].bytes)
                reasons.append(f"- {path.stem} ({ratio:.2f}): {worst.account}: {worst.reason}")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    summary = [f"{len(ratios)} graphs, geometric mean of bytes over floor {mean:.3f}"]
    if greedy:
        ordered = sorted(greedy)
        summary.append(
            f"greedy pair merging costs {ordered[len(ordered) // 2]:.3f}× the plan in the median, "
            f"{ordered[-1]:.3f}× at most"
        )
    summary.append(f"barriers: {barriers or 'none'}")
    print("\n".join([*summary, *reasons]))
    if args.markdown:
        args.markdown.write_text("\n".join([*lines, "", *summary, "", *reasons]) + "\n")


if __name__ == "__main__":
    main()
