"""How much the draw of the folds moves the figures of the library clock.

`python benchmarks/clock_draws.py FOLDER [--draws N] [--levels 12] [--plans inductor]` with a
KernelBench folder. The problems are dealt into ten folds as `fuseledger validate` deals them, and
in N other ways. Prints a Markdown table, the mean of all draws last.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import by_problem
from fuseledger.validate.kernelbench import read_kernelbench
from fuseledger.validate.score import Score, scores

H100S = ("h100-sxm", "h100-pcie")
V0 = ("a100-sxm-80", "l40s", "h100-sxm")
EAGER, COMPILED = "eager", "compile-default"
FIGURES: dict[str, tuple[str, tuple[str, ...], str, str, float]] = {
    "v0.1 eager, SXM / PCIe, %": ("v0.1 L1+L2", H100S, EAGER, "mdape", 100),
    "v0.1 compiled, SXM / PCIe, %": ("v0.1 L1+L2", H100S, COMPILED, "mdape", 100),
    "L2 ratio, SXM / PCIe": ("v0.1 L2", H100S, COMPILED, "ratio_abs_log_median", 1),
    "v0 eager, A100 / L40S / H100, %": ("v0 L1+L2", V0, EAGER, "mdape", 100),
    "v0 compiled, A100 / L40S / H100, %": ("v0 L1+L2", V0, COMPILED, "mdape", 100),
    "fuse pays, A100 / L40S / H100": ("v0 L1+L2", V0, COMPILED, "pays_accuracy", 1),
}  # fmt: skip
"""Title → table, devices, mode, figure, and what it is multiplied by."""


def figures(rows: Sequence[Measured], draw: str) -> dict[str, list[float]]:
    """The figures of one draw, by device."""
    unknown = np.full(len(rows), np.nan)
    found: dict[tuple[str, str, str, str], Score] = {
        (s.corpus, s.device, s.class_, s.mode): s
        for s in scores(rows, by_problem(rows, draw=draw).times_us, unknown)
    }
    return {
        title: [
            factor * getattr(found[f"kernelbench {table}", device, "all", mode], name)
            for device in devices
        ]
        for title, (table, devices, mode, name, factor) in FIGURES.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--levels", default="123")
    parser.add_argument("--plans", choices=("standin", "inductor"), default="standin")
    given = parser.parse_args()
    corpus = read_kernelbench(given.folder, given.plans)
    rows = [m for m in corpus.rows if m.problem[0] in given.levels]
    draws = [figures(rows, str(draw) if draw else "") for draw in range(given.draws + 1)]
    numbers = " | ".join(map(str, range(1, given.draws + 1)))
    print(f"{len(rows):,} rows; {'; '.join(corpus.notes)}\n")
    print(f"| | `validate`'s draw | {numbers} | mean |")
    print("|---|" + "---|" * (len(draws) + 1))
    for title, (*_, factor) in FIGURES.items():
        each = np.array([draw[title] for draw in draws])
        digits = 1 if factor == 100 else 3
        cells = [" / ".join(f"{v:.{digits}f}" for v in line) for line in (*each, each.mean(axis=0))]
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
