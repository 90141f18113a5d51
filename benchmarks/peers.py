"""Plans of other systems beside ours: `python benchmarks/peers.py FOLDER [-o docs/comparison.md]`.

FOLDER holds ATen graphs (`*.json`), such as `kernelbench/v0.1/level2` of the corpus. For each:
what eager PyTorch launches, what TorchInductor plans, and our plan for fewest bytes and for least
time; launches, bytes over the graph's floor, time by our clock, and seconds taken to plan.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fuseledger.devices import load
from fuseledger.devices.device import Device
from fuseledger.errors import FuseledgerError
from fuseledger.peers.eager_peer import eager_peer
from fuseledger.peers.inductor import LEFT_OUT, inductor_plan
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.priced import price
from fuseledger.peers.program import read_program
from fuseledger.planner.plan import PlanOptions, make_plan

PLANS = ("eager", "inductor", "ours-bytes", "ours-time")
TITLES = {
    "eager": "eager PyTorch",
    "inductor": "TorchInductor",
    "ours-bytes": "fuseledger, fewest bytes",
    "ours-time": "fuseledger, least time",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One plan of one graph."""

    launches: int
    bytes: int
    time_us: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One graph: its plans by name, and why one is missing."""

    name: str
    floor_bytes: int
    cells: dict[str, Cell]
    failures: dict[str, str]
    torch: str | None = None


def measure(path: Path, device: Device, time_limit_s: float) -> Entry:
    """All plans of one graph."""
    try:
        program = read_program(str(path))
    except FuseledgerError as error:
        return Entry(path.stem, 0, {}, dict.fromkeys(PLANS, str(error)))
    cells: dict[str, Cell] = {}
    failures: dict[str, str] = {}
    started = time.perf_counter()
    fewest = make_plan(program.graph, device, PlanOptions(objective="bytes"))
    seconds = time.perf_counter() - started
    totals = fewest.totals
    cells["ours-bytes"] = Cell(totals.launches, totals.bytes, totals.time_us, seconds)
    started = time.perf_counter()
    fastest = make_plan(program.graph, device, PlanOptions(objective="time"))
    seconds = time.perf_counter() - started
    totals = fastest.totals
    cells["ours-time"] = Cell(totals.launches, totals.bytes, totals.time_us, seconds)
    compiled = inductor_plan(str(path), device, time_limit_s=time_limit_s)
    for plan in (compiled, eager_peer(program)):
        if plan.status != "planned":
            failures[plan.name] = _why(plan)
            continue
        us = price(program, plan, fastest).time_us
        cells[plan.name] = Cell(plan.launches, plan.bytes, us, plan.seconds)
    return Entry(path.stem, program.graph.floor_bytes, cells, failures, compiled.version)


def _why(plan: PeerPlan) -> str:
    return f"{plan.status}: {plan.reason}"


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean; nan of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def report(entries: list[Entry], device: Device, title: str) -> str:
    """The comparison in Markdown."""
    versions = sorted({entry.torch for entry in entries if entry.torch})
    answered = [entry for entry in entries if all(name in entry.cells for name in PLANS)]
    lines = [
        f"## {title}",
        "",
        f"{len(entries)} graphs for {device.title}; TorchInductor of torch {', '.join(versions)} "
        f"answers on {sum('inductor' in e.cells for e in entries)}. Means are over the "
        f"{len(answered)} graphs on which every plan answers.",
        "",
        "| plan | launches a graph | bytes / floor, geometric mean | time / ours, geometric mean | "
        "seconds to plan, median |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in PLANS:
        cells = [entry.cells[name] for entry in answered]
        ratio = geometric_mean(
            c.bytes / e.floor_bytes for c, e in zip(cells, answered, strict=True)
        )
        slower = geometric_mean(
            c.time_us / e.cells["ours-time"].time_us for c, e in zip(cells, answered, strict=True)
        )
        launches = sum(c.launches for c in cells) / max(1, len(cells))
        seconds = sorted(c.seconds for c in cells)[len(cells) // 2] if cells else math.nan
        lines.append(
            f"| {TITLES[name]} | {launches:.2f} | {ratio:.2f} | {slower:.2f} | {seconds:.2f} |"
        )
    ratio = geometric_mean(
        e.cells["ours-bytes"].bytes / e.cells["inductor"].bytes for e in answered
    )
    worse = [e.name for e in answered if e.cells["inductor"].bytes < e.cells["ours-bytes"].bytes]
    slower = [
        e.name for e in answered if e.cells["inductor"].time_us < e.cells["ours-time"].time_us
    ]
    lines += [
        "",
        f"Our plan for fewest bytes moves {ratio:.2f} of TorchInductor's bytes (geometric mean).",
        "",
        "TorchInductor moves fewer bytes than it on: " + (", ".join(worse) or "none") + ".",
        "",
        "TorchInductor is faster by our clock than our plan for least time on: "
        + (", ".join(slower) or "none") + ".",
        "",
        "| graph | floor | eager | TorchInductor | ours, bytes | ours, time |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_row(entry) for entry in entries),
        "",
        "Cells: launches, bytes over the floor, time by our clock in µs.",
    ]  # fmt: skip
    failed = [(e.name, plan, why) for e in entries for plan, why in e.failures.items()]
    if failed:
        lines += ["", "Without an answer:", ""]
        lines += [f"- {name}, {plan}: {why}" for name, plan, why in failed]
    return "\n".join(lines) + "\n"


def _row(entry: Entry) -> str:
    cells = [
        f"{c.launches}, {c.bytes / max(1, entry.floor_bytes):.2f}×, {c.time_us:,.0f}"
        if (c := entry.cells.get(name)) else "–"
        for name in PLANS
    ]  # fmt: skip
    return f"| {entry.name} | {entry.floor_bytes / 1e6:,.1f} MB | {' | '.join(cells)} |"


PREFACE = """# What the compilers would do

Made by `python benchmarks/peers.py FOLDER -o docs/comparison.md`; how each plan is come by is told
in [peers.md](peers.md). No GPU was used: bytes of TorchInductor are its scheduler's own count of
the plan it would run, those of eager PyTorch come from our table of its kernels, and every time is
*modelled* by one clock, ours, with fp32 products in fp32.

Our least-time plan minimises the very clock that times the peers here, and a fused kernel is priced
as if it could be written as well as a library's: read the times as what the plans differ by, not as
a race that was run.

Not part of TorchInductor's pipeline here:

{left_out}
"""


def main() -> None:
    """Read the arguments, plan, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--title", help="heading; the folder's last names where missing")
    parser.add_argument("--only", default="", help="graphs whose name starts with this")
    parser.add_argument("--time-limit", type=float, default=240.0, help="seconds a peer may take")
    given = parser.parse_args()
    device = load(given.device)
    paths = sorted(p for p in given.folder.glob("*.json") if p.stem.startswith(given.only))
    entries: list[Entry] = []
    for path in paths:
        entries.append(measure(path, device, given.time_limit))
        print(_row(entries[-1]), *entries[-1].failures.values(), file=sys.stderr, flush=True)
    title = given.title or " ".join(given.folder.resolve().parts[-3:])
    left_out = "\n".join(f"- {part}" for part in LEFT_OUT)
    text = f"{PREFACE.format(left_out=left_out)}\n{report(entries, device, title)}"
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
