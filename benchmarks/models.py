"""Plan real models: every factory of examples/models.py and every model the onnx package ships.

    python benchmarks/models.py [--device h100-sxm] [--markdown FILE] [NAME …]

For each: ops, barriers, kernels before and after, bytes before, after and floor, seconds of
processor time to read and to plan it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
import time
from pathlib import Path

from fuseledger.devices import load
from fuseledger.errors import FuseledgerError
from fuseledger.frontends import source
from fuseledger.planner.plan import make_plan

MODELS = Path(__file__).parents[1] / "examples" / "models.py"
ONNX = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
]


def sources() -> list[str]:
    """Every public factory of the examples, and every light ONNX model."""
    tree = ast.parse(MODELS.read_text())
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    return [f"{MODELS}:{name}" for name in names] + [f"onnx:{name}" for name in ONNX]


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    device = load(args.device)
    lines = [
        "| model | ops | barriers | kernels | GB unfused | GB planned | GB floor | ms unfused "
        "| ms planned | read s | plan s | proved |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for text in sources():
        name = text.rpartition(":")[2]
        if args.names and name not in args.names:
            continue
        started = time.process_time()
        try:
            with contextlib.redirect_stdout(sys.stderr):
                graph = source.load(text)
        except FuseledgerError as error:
            lines.append(f"| {name} | {error} |")
            print(lines[-1], flush=True)
            continue
        read = time.process_time() - started
        started = time.process_time()
        planned = make_plan(graph, device)
        seconds = time.process_time() - started
        before, after = planned.baseline, planned.totals
        barriers = ", ".join(f"{n} ×{c}" for n, c in graph.barriers.items()) or "none"
        proved = "optimal" if planned.partition.optimal else planned.status
        lines.append(
            f"| {name} | {len(graph.ops)} | {barriers} | {before.kernels} → {after.kernels} "
            f"| {before.bytes / 1e9:.3f} | {after.bytes / 1e9:.3f} | {graph.floor_bytes / 1e9:.3f} "
            f"| {before.time_us / 1e3:.3f} | {after.time_us / 1e3:.3f} "
            f"| {read:.1f} | {seconds:.1f} | {proved} |"
        )
        print(lines[-1], flush=True)
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
