"""How well times measured elsewhere foretell those of a host: bounds for predictors of shapes.

`python benchmarks/clock_twins.py FOLDER` with a KernelBench folder; levels 1 and 2, eager and
`compile-default`. The predictor of a time is the same problem's time on another host, measured; it
knows the very kernels and what they cost, and not the host. For v0 rows that the host bounds on
both sides one factor a pair of hosts is chosen on the rows. Prints Markdown tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from clock_rows import MODES, first_levels
from fuseledger.clock.library import load_fit
from fuseledger.clock.library_fit import PRIORS, design_of, predict, prior_of
from fuseledger.validate.folds import rows_of

SXM, PCIE = "H100_Modal", "H100_PCIe_LambdaLabs"
BOUND = 1.2
"""Host over GPU from which a row counts as the host's, by the shipped fit."""

Key = tuple[str, str, str]
"""Problem, host, mode."""


def read(folder: Path) -> tuple[dict[Key, float], dict[Key, bool]]:
    """Times of v0 and, by the hosts that only v0.1 has, of v0.1; and whether the host bounds."""
    rows = first_levels(folder)
    design, known = design_of(rows_of(rows)), load_fit().coefficients
    theta = np.array([known.get(name, prior_of(name, PRIORS).mean) for name in design.names])
    made = predict(design, theta)
    keys = [(m.problem, m.setting.host, m.setting.mode) for m in rows]
    bound = made.host_us > BOUND * made.gpu_us
    return (
        {key: m.time_us for key, m in zip(keys, rows, strict=True)},
        dict(zip(keys, bound.tolist(), strict=True)),
    )


def main(folder: str) -> None:
    """Print the tables."""
    times, bound = read(Path(folder))
    hosts = sorted({host for _, host, _ in times} - {SXM, PCIE})
    problems = sorted({problem for problem, host, _ in times if host in hosts})

    def log_ratio(problem: str, host: str) -> float:
        return float(np.log(times[problem, host, "eager"] / times[problem, host, MODES[1]]))

    for mode in MODES:
        print(f"| {mode}, host-bound, median (rows) | {' | '.join(hosts)} |")
        print("|---|" + "---|" * len(hosts))
        for here in hosts:
            cells: list[str] = []
            for there in hosts:
                of = [p for p in problems if bound[p, here, mode] and bound[p, there, mode]]
                logs = np.array([np.log(times[p, here, mode] / times[p, there, mode]) for p in of])
                left = float(np.median(np.abs(logs - np.median(logs))))
                cells.append("–" if here == there else f"{100 * np.expm1(left):.1f} % ({len(of)})")
            print(f"| {here} | {' | '.join(cells)} |")
        print()
    print(f"| fuse pays > 10 %, called right | {' | '.join(hosts)} |")
    print("|---|" + "---|" * len(hosts))
    for here in hosts:
        cells = []
        for there in hosts:
            same = [
                (log_ratio(p, here) > np.log(1.1)) == (log_ratio(p, there) > np.log(1.1))
                for p in problems
            ]
            cells.append("–" if here == there else f"{np.mean(same):.2f}")
        print(f"| {here} | {' | '.join(cells)} |")
    second = sorted(
        {p for p, host, _ in times if host == SXM and p[0] == "2"}
        & {p for p, host, _ in times if host == PCIE}
    )
    off = np.array([log_ratio(p, PCIE) - log_ratio(p, SXM) for p in second])
    print(f"\nRatio of level 2, {SXM} from {PCIE}: {np.median(np.abs(off)):.3f} ({len(off)})")


if __name__ == "__main__":
    main(sys.argv[1])
