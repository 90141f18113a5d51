"""Plan the KernelBench graphs; compare with one kernel an op and with greedy merging.

    python benchmarks/corpus.py FOLDER [--version v0.1] [--level 2] [--optimise bytes]
                                [--no-greedy] [--page docs/kernelbench.md] [--variants]

Every plan is checked: legal, and no dearer by its own measure than one kernel an op or than
greedy pair merging. Prints a row a graph; `--page` writes the rows of all levels to a page, with
the problems above 1.5 times the floor and the account that stands in their way. `--variants`
prints instead what other rules for kernels make of the bytes: library calls alone, re-reads
through L2 charged, clones of pointwise ops for each reader, clusters of blocks that share their
capacity.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from clones import with_clones
from fuseledger.devices import Device, load, replace_figures
from fuseledger.frontends import aten_json
from fuseledger.ledger.kernel import check_legal
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import in_order
from fuseledger.planner.plan import Planned, PlanOptions, make_plan
from fuseledger.verdict.edges import edge_verdicts
from greedy import greedy_groups

REASONED_OPS = 20
"""Ops up to which a page says what keeps the largest cut tensor cut."""
HEAD = (
    "| problem | ops | barriers | kernels | MB unfused | MB planned | MB floor | µs unfused "
    "| µs planned | greedy | s |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


class Row(Struct, frozen=True, kw_only=True):
    """One problem's figures."""

    version: str
    level: str
    problem: str
    planned: Planned
    greedy: float | None
    """Cost of the greedy plan over ours."""
    seconds: float
    """Processor time of planning."""

    @property
    def over_floor(self) -> float:
        """Bytes over the graph's floor."""
        return self.planned.totals.bytes / self.planned.graph.floor_bytes

    def __str__(self) -> str:
        graph, before, after = self.planned.graph, self.planned.baseline, self.planned.totals
        barriers = ", ".join(f"{n} ×{c}" for n, c in graph.barriers.items()) or "–"
        greedy = "–" if self.greedy is None else f"{self.greedy:.3f}"
        return (
            f"| {self.problem} | {len(graph.ops)} | {barriers} | {before.kernels} → {after.kernels}"
            f" | {before.bytes / 1e6:,.1f} | {after.bytes / 1e6:,.1f} "
            f"| {graph.floor_bytes / 1e6:,.1f} | {before.time_us:,.0f} | {after.time_us:,.0f} "
            f"| {greedy} | {self.seconds:.2f} |"
        )

    def stands_in_the_way(self) -> str | None:
        """Above 1.5 times the floor: the account that keeps the largest cut tensor cut.

        Not of large graphs: they cut many tensors, and `fuseledger plan` tells of each.
        """
        if len(self.planned.graph.ops) > REASONED_OPS:
            return None
        cuts = [v for v in edge_verdicts(self.planned) if v.choice == "cut"]
        if self.over_floor <= 1.5 or not cuts:
            return None
        worst = max(cuts, key=lambda v: self.planned.graph.tensors[v.tensor].bytes)
        return f"- {self.problem} ({self.over_floor:.2f}): {worst.account}: {worst.reason}"


def measure(path: Path, device: Device, options: PlanOptions, *, greedy: bool) -> Row:
    """Plan one graph and check the plan."""
    graph = aten_json.load(path)
    started = time.process_time()
    planned = make_plan(graph, device, options)
    seconds = time.process_time() - started
    check_legal(graph, planned.partition.groups)
    totals, baseline = planned.totals, planned.baseline
    dearer = (
        totals.time_us > baseline.time_us * (1 + 1e-9)
        if options.objective == "time"
        else totals.bytes > baseline.bytes
    )
    assert not dearer, f"{path}: dearer than one kernel an op"
    ratio = None
    if greedy:
        masks = greedy_groups(graph, planned.search)
        assert in_order(graph, masks)[0] is not None
        choices = [planned.search.choose(tuple(bits(mask))) for mask in masks]
        cost = sum(choice.cost for choice in choices)
        ratio = cost / planned.partition.cost
        assert ratio > 1 - 1e-9, f"{path}: greedy merging is cheaper: {ratio:.4f}"
    return Row(
        version=path.parts[-3], level=path.parts[-2], problem=path.stem, planned=planned,
        greedy=ratio, seconds=seconds,
    )  # fmt: skip


def summary(rows: list[Row]) -> str:
    """The rows in one sentence."""
    mean = math.exp(sum(math.log(row.over_floor) for row in rows) / len(rows))
    words = f"{len(rows)} graphs, geometric mean of bytes over floor {mean:.3f}"
    ratios = sorted(row.greedy for row in rows if row.greedy is not None)
    if ratios:
        words += (
            f"; greedy pair merging costs {ratios[len(ratios) // 2]:.3f}× the plan in the median, "
            f"{ratios[-1]:.3f}× at most"
        )
    proved = sum(row.planned.partition.optimal for row in rows)
    gaps = [row.planned.partition.gap for row in rows]
    worst = max((gap for gap in gaps if gap is not None), default=0.0)
    return f"{words}; {proved} proved optimal, the largest proved gap is {worst:.2%}."


def page(rows: list[Row], options: PlanOptions, device: Device) -> str:
    """The page of tables."""
    what = "time" if options.objective == "time" else "bytes"
    lines = [
        f"# KernelBench, {what} minimised",
        "",
        "Made by `python benchmarks/corpus.py FOLDER [--version v0.1] "
        f"--optimise {what} --page FILE`. All figures are modelled, "
        f"for {device.name}. *Unfused* is one kernel an op, *floor* the inputs, "
        "weights and outputs once, *greedy* the cost of greedy pair merging over that of the plan, "
        "*s* the processor time of planning. Every plan is legal and no dearer than either. A "
        "barrier is priced as one pass over its tensors, however many steps it takes one after "
        "the other.",
    ]
    for version, level in dict.fromkeys((row.version, row.level) for row in rows):
        group = [row for row in rows if (row.version, row.level) == (version, level)]
        lines += ["", f"## {version}, {level.replace('level', 'level ')}", "", summary(group), ""]
        lines += [HEAD, *map(str, group)]
        reasons = [text for row in group if (text := row.stands_in_the_way())]
        if reasons:
            lines += ["", "Above 1.5 times the floor, what keeps the largest cut tensor cut:", ""]
            lines += reasons
    return "\n".join([*lines, ""])


def paths(folder: Path, versions: Iterable[str], level: str) -> list[Path]:
    """The graphs asked for, in order."""
    return [p for v in versions for p in sorted(folder.glob(f"{v}/level{level}/*.json"))]


def variants(graphs: list[Path], device: Device) -> str:
    """Geometric mean of bytes over floor under other rules for kernels."""
    means: list[str] = []
    logs: dict[str, list[float]] = {}
    for path in graphs:
        graph = aten_json.load(path)
        plain = make_plan(graph, device, PlanOptions(objective="bytes"))
        library = make_plan(graph, device, PlanOptions(objective="bytes", library_only=True))
        clones = make_plan(with_clones(graph), device, PlanOptions(objective="bytes"))
        rereads = make_plan(graph, device, PlanOptions(objective="bytes", charge_rereads=True))
        clusters = [
            make_plan(graph, of_clusters(device, blocks), PlanOptions(objective="bytes"))
            for blocks in (2, 4, 8)
        ]
        found = {
            "as gated": plain.totals.bytes,
            "library calls alone": library.totals.bytes,
            "re-reads charged, same plan": with_rereads(plain),
            "re-reads charged, planned so": with_rereads(rereads),
            "clones of pointwise ops": min(plain.totals.bytes, clones.totals.bytes),
            "clusters of up to 8 blocks": min(p.totals.bytes for p in (plain, *clusters)),
            "one kernel an op": plain.baseline.bytes,
        }
        words = [path.stem]
        for name, moved in found.items():
            logs.setdefault(name, []).append(math.log(moved / graph.floor_bytes))
            words.append(f"{name} {moved / graph.floor_bytes:.2f}")
        print("; ".join(words), flush=True)
    for name, ratios in logs.items():
        means.append(f"| {name} | {math.exp(sum(ratios) / len(ratios)):.3f} |")
    return "\n".join(["| kernels | bytes / floor |", "|---|---|", *means])


def with_rereads(planned: Planned) -> float:
    """Bytes of a plan with what its tiling reads again and L2 does not absorb."""
    clock = planned.search.clock
    return sum(k.price.dram_bytes + clock.reread_bytes(k.price) for k in planned.kernels)


def of_clusters(device: Device, blocks: int) -> Device:
    """The device whose block is a cluster: its capacity and its SMs together (R5)."""
    shared, registers = device.shared_memory_per_block_bytes, device.accumulator_bytes_per_block
    assert shared is not None
    assert registers is not None
    assert device.sm_count is not None
    return replace_figures(
        device,
        shared_memory_per_block_bytes=shared * blocks,
        accumulator_bytes_per_block=registers * blocks,
        sm_count=device.sm_count // blocks,
    )


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default="v0,v0.1")
    parser.add_argument("--level", default="*")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--optimise", choices=["time", "bytes"], default="time")
    parser.add_argument("--no-greedy", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--variants", action="store_true")
    args = parser.parse_args()
    device, options = load(args.device), PlanOptions(objective=args.optimise)
    graphs = paths(args.folder, args.version.split(","), args.level)
    if args.variants:
        print(variants(graphs, device))
        return
    rows: list[Row] = []
    print(HEAD)
    for path in graphs:
        rows.append(measure(path, device, options, greedy=not args.no_greedy))
        print(rows[-1], flush=True)
    print(summary(rows))
    if args.page:
        args.page.write_text(page(rows, options, device))


if __name__ == "__main__":
    main()
