"""Start-up: what a fresh process of the command line costs beside the interpreter's own start.

`python benchmarks/start.py [PYTHON …]`, each the interpreter of an installation (not editable, so
that byte code is compiled); by default the one that runs this. Rounds go through all commands of
all installations in turn, so that other work on the machine meets them alike. Seconds are of
processor time, user and system, the least and the median of the rounds; ratios are of the least:
to the bare interpreter of the same installation, and to the first installation.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 20
TARGET_S = 0.4
"""A one-line plan is to start and finish in less."""
PLAN = "plan one line"
COMMANDS: dict[str, tuple[str, ...]] = {
    "interpreter": ("-c", "pass"),
    "the libraries": ("-c", "import click, lark, msgspec"),
    "--help": ("-m", "fuseledger", "--help"),
    PLAN: ("-m", "fuseledger", "plan", "gemm(4096,4096,4096) + bias + gelu + residual"),
}


def seconds(python: str, arguments: tuple[str, ...]) -> float:
    """Processor time of one process, run where no source tree is on its path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [python, *arguments], env=environment, cwd=tempfile.gettempdir(), check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(pythons: list[str]) -> None:
    """Print a row a command and installation; the first round, which compiles, is not counted."""
    cells = [(python, name) for name in COMMANDS for python in pythons]
    spent: dict[tuple[str, str], list[float]] = {cell: [] for cell in cells}
    for _ in range(1 + ROUNDS):
        for python, name in cells:
            spent[python, name].append(seconds(python, COMMANDS[name]))
    least = {cell: min(times[1:]) for cell, times in spent.items()}
    for python, name in cells:
        median = statistics.median(spent[python, name][1:])
        bare = least[python, name] / least[python, "interpreter"]
        first = least[python, name] / least[pythons[0], name]
        print(
            f"{name:14}  least {least[python, name]:.3f} s  median {median:.3f} s  "
            f"{bare:5.1f}× the interpreter  {first:.2f}× the first installation  {python}"
        )
    for python in pythons:
        median = statistics.median(spent[python, PLAN][1:])
        met = "under" if median < TARGET_S else "NOT under"
        print(f"{python}: a one-line plan takes {met} {TARGET_S} s of processor time (median)")


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])
