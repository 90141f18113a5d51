"""How much of the error on a device left out is its host's: v0 rows with one factor set right.

`python benchmarks/clock_hosts.py FOLDER` with a KernelBench folder; levels 1 and 2, eager and
`compile-default` rows. Each device is predicted by a fit on the others. Then the host's time of its
rows is scaled, by one factor, and by one for quiet and one for noisy rows, those whose standard
deviation is more than `NOISY` of their mean. **The factors are chosen on the rows that they are
judged on**: they say what is unknown of the host, and predict nothing. Prints a Markdown table.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clock_rows import MODES, first_levels, times_of
from fuseledger.clock.library_fit import PRIORS, SHARPNESS, Predicted, design_of, fit, predict
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import rows_of, weights_of

NOISY = 0.08
FACTORS = np.exp(np.linspace(-0.4, 0.8, 25))


def noise_of(folder: Path) -> dict[tuple[str, str, str], float]:
    """(problem, host, mode) → standard deviation over mean, v0; the last of repeated runs."""
    with (folder / "times.csv").open(encoding="utf-8", newline="") as file:
        return {
            (f"{row['level']}/{row['problem_id']}", row["host"], row["mode"]):
                float(row["std_ms"]) / float(row["mean_ms"])
            for row in csv.DictReader(file)
            if row["sizes"] == "v0"
        }  # fmt: skip


def lines(rows: list[Measured], noise: dict[tuple[str, str, str], float]) -> Iterator[str]:
    """One line a host and mode."""
    design, importance = design_of(rows_of(rows)), weights_of(rows)
    times = times_of(rows)
    device = np.array([m.setting.device.name for m in rows])
    v0 = {i: m for i, m in enumerate(rows) if "v0 " in m.corpus}
    for host in sorted({m.setting.host for m in v0.values()}):
        name = next(m.setting.device.name for m in v0.values() if m.setting.host == host)
        made = predict(design, fit(design, times, PRIORS, importance * (device != name)))
        for mode in MODES:
            of = np.array(
                [i for i, m in v0.items() if (m.setting.host, m.setting.mode) == (host, mode)]
            )
            noisy = np.array([noise[v0[i].problem, host, mode] > NOISY for i in of.tolist()])
            yield _line(f"{host} {mode}", made, times, of, noisy)


def _line(name: str, made: Predicted, times: np.ndarray, of: np.ndarray, noisy: np.ndarray) -> str:
    def error(quiet: float, loud: float) -> float:
        host = made.host_us[of] * np.where(noisy, loud, quiet)
        total = (host**SHARPNESS + made.gpu_us[of] ** SHARPNESS) ** (1 / SHARPNESS)
        return float(100 * np.median(np.abs(total / times[of] - 1)))

    one = min(error(a, a) for a in FACTORS)
    two, quiet, loud = min((error(a, b), a, b) for a in FACTORS for b in FACTORS)
    bound = made.host_us[of] > 0.7 * made.gpu_us[of]
    signed = np.log(made.total_us[of] / times[of])
    bias = [
        f"{np.median(signed[bound & side]):+.2f} ({(bound & side).sum()})"
        if any(bound & side)
        else "–"
        for side in (~noisy, noisy)
    ]
    return (
        f"| {name} | {noisy.sum()} of {len(of)} | {' | '.join(bias)} | {error(1, 1):.1f} % "
        f"| {one:.1f} % | {two:.1f} % ({quiet:.2f}, {loud:.2f}) |"
    )


def main(folder: str) -> None:
    """Print the table."""
    rows = first_levels(Path(folder))
    print("| host and mode | noisy | host-bound, quiet: signed log error | noisy | left out "
          "| one factor | two factors (quiet, noisy) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for line in lines(rows, noise_of(Path(folder))):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
