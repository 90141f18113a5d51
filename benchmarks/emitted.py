"""Emit, compile and check every planned kernel of a KernelBench folder.

    python benchmarks/emitted.py FOLDER [--version v0.1] [--level 2] [--optimise time] [--only 009]
                                 [--compile] [--device h100-sxm]

Prints a row for each kernel that is not emitted, compiled, right and of the account's bytes, and a
table of counts. The interpreter takes about a second of CPU time a kernel, some take a minute.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from fuseledger.devices import load
from fuseledger.frontends import aten_json
from fuseledger.planner.plan import PlanOptions, make_plan
from fuseledger.triton.check import check_kernels
from fuseledger.triton.compile import cache_folder, compile_kernels, target_of
from fuseledger.triton.emit import EmitOptions
from fuseledger.triton.package import emit_plan


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default="v0.1")
    parser.add_argument("--level", default="2")
    parser.add_argument("--optimise", choices=["time", "bytes"], default="time")
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="h100-sxm")
    args = parser.parse_args()
    device = load(args.device)
    options = PlanOptions(objective=args.optimise, tf32=True)
    counts: Counter[str] = Counter()
    for path in sorted(args.folder.glob(f"{args.version}/level{args.level}/{args.only}*.json")):
        planned = make_plan(aten_json.load(path), device, options)
        emissions = emit_plan(planned.graph, planned.kernels, EmitOptions(tf32=True))
        pairs = [(ledger.name, ledger.kernel) for ledger in planned.kernels]
        counts["kernels"] += len(pairs)
        for each in emissions:
            counts["emitted"] += each.kernel is not None
            if each.kernel is None:
                print(f"{path.stem} {each.ledger.name}: cannot be emitted: {each.missing}")
        if args.compile:
            code = [kernel for each in emissions for kernel in each.code]
            for done in compile_kernels(code, target_of(device), cache=cache_folder()):
                counts["does not compile" if done.failed else "compiled"] += 1
                counts["spill"] += bool(done.spilled_bytes)
                if done.failed:
                    print(f"{path.stem} {done.name}: {done.failed}")
        for found in check_kernels(planned.graph, pairs):
            counts[found.outcome] += 1
            traffic = found.traffic
            counts["bytes counted"] += traffic is not None
            counts["bytes equal"] += traffic is not None and traffic.is_equal
            if found.outcome != "pass":
                print(f"{path.stem} {found.name}: {found.outcome}: {found.reason}")
            if traffic is not None and not traffic.is_equal:
                print(f"{path.stem} {found.name}: {'; '.join(traffic.differences)}")
    print("\n| | kernels |\n|---|---|")
    for word, count in counts.items():
        print(f"| {word} | {count} |")


if __name__ == "__main__":
    main()
