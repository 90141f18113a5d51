"""Emit, compile and check every planned kernel of models, or of a KernelBench folder.

    python benchmarks/emitted.py SOURCE|FOLDER … [--compile] [--device h100-sxm] [--optimise time]
                                 [--version v0.1] [--level 2] [--only 009] [--markdown FILE]

A SOURCE is what `fuseledger plan` takes; of kernels of equal structure and schedule one is taken.
A FOLDER holds KernelBench graphs, planned with TF32 products. Prints each kernel that is not
emitted, compiled, right and of the account's bytes, and a table of counts.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuseledger.devices import load as load_device
from fuseledger.frontends import source
from fuseledger.ledger.ledger import KernelLedger
from fuseledger.ledger.nest import analyse
from fuseledger.planner.plan import Planned, PlanOptions, make_plan
from fuseledger.triton.check import check_kernels
from fuseledger.triton.compile import compile_kernels, compiled_folder, target_of
from fuseledger.triton.emit import EmitOptions
from fuseledger.triton.package import emit_plan
from fuseledger.triton.partials import folded_tensors
from fuseledger.triton.replan import schedule_without_names

COLUMNS = (
    "kernels", "distinct", "emitted", "compiled", "spill", "pass", "fail", "not checked",
    "bytes equal",
)  # fmt: skip


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", metavar="SOURCE|FOLDER")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--optimise", choices=["time", "bytes"], default="time")
    parser.add_argument("--version", default="v0.1")
    parser.add_argument("--level", default="2")
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    for row, name, text in _sources(args):
        options = PlanOptions(objective=args.optimise, tf32=Path(row).is_dir())
        with contextlib.redirect_stdout(sys.stderr):
            graph = source.load(text)
        planned = make_plan(graph, load_device(args.device), options)
        counts.setdefault(row, Counter()).update(_examined(name, planned, compiles=args.compile))
        print(f"{name}: {len(planned.kernels)} kernels", flush=True)
    table = _table(counts)
    print(table)
    if args.markdown:
        args.markdown.write_text(table)


def _sources(args: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """(row of the table, name, SOURCE) of every graph."""
    for text in args.sources:
        folder = Path(text)
        if not folder.is_dir():
            yield text, text, text
            continue
        for path in sorted(folder.glob(f"{args.version}/level{args.level}/{args.only}*.json")):
            yield text, path.stem, str(path)


def _examined(name: str, planned: Planned, *, compiles: bool) -> Counter[str]:
    """Counts of one plan; what is not as it should be is printed."""
    chosen = _distinct(planned)
    emissions = emit_plan(
        planned.graph, planned.kernels, planned.device, EmitOptions(tf32=planned.options.tf32)
    )
    emissions = [each for each in emissions if each.ledger.name in chosen]
    counts = Counter(kernels=len(planned.kernels), distinct=len(chosen))
    for each in emissions:
        counts["emitted"] += each.kernel is not None
        if each.kernel is None:
            print(f"{name} {each.ledger.name}: cannot be emitted: {each.missing}", flush=True)
    if compiles:
        code = [kernel for each in emissions for kernel in each.code]
        target = target_of(planned.device)
        found = {each.name: each for each in compile_kernels(code, target, cache=compiled_folder())}
        for each in emissions:
            done = [found[kernel.name] for kernel in each.code]
            counts["compiled"] += bool(done) and not any(one.failed for one in done)
            counts["spill"] += any(one.spilled_bytes for one in done)
            for one in done:
                if one.failed or one.spilled_bytes:
                    words = one.failed or f"{one.registers} registers + {one.spilled_bytes} B"
                    print(f"{name} {each.ledger.name}: {words}", flush=True)
    pairs = [(each.ledger.name, each.ledger.kernel) for each in emissions]
    everything = [ledger.kernel for ledger in planned.kernels]
    for checked in check_kernels(planned.graph, pairs, plan=everything):
        counts[checked.outcome] += 1
        traffic = checked.traffic
        counts["bytes equal"] += traffic is not None and traffic.is_equal
        if checked.outcome != "pass":
            print(f"{name} {checked.name}: {checked.outcome}: {checked.reason}", flush=True)
        if traffic is not None and not traffic.is_equal:
            print(f"{name} {checked.name}: {'; '.join(traffic.differences)}", flush=True)
    return counts


def _distinct(planned: Planned) -> set[str]:
    """Names of kernels of which no earlier one has the same structure and schedule."""
    found: dict[object, KernelLedger] = {}
    folded = folded_tensors(planned.graph, [ledger.kernel for ledger in planned.kernels])
    for ledger in planned.kernels:
        kernel = ledger.kernel
        read = analyse(planned.graph, kernel.ops).external
        arriving = tuple(name in folded for name in read)
        key = (planned.search.structure(kernel.ops), schedule_without_names(kernel), arriving)
        found.setdefault(key, ledger)
    return {ledger.name for ledger in found.values()}


def _table(counts: dict[str, Counter[str]]) -> str:
    lines = [f"| source | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for row, found in counts.items():
        lines.append(f"| {row} | {' | '.join(str(found[word]) for word in COLUMNS)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
