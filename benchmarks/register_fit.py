"""Fit the register model on the sweep's table, and report its error on rows it was not fitted on.

    python benchmarks/register_fit.py [--write]

Rows of one family and one choice of tiles are held out together, ten folds; another table, of which
nothing was fitted or chosen, is predicted from a fit on all of the first. Each unit has
non-negative weights of its own that minimise the mean relative error (a linear program), and an
architecture may depart from what those of its vendor have in common. `--write` writes
`src/fuseledger/ledger/register_fit.json`, fitted on all rows.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import highspy
import numpy as np
from msgspec import Struct

from fuseledger.devices import Device
from fuseledger.devices import load as load_device
from fuseledger.ledger.nest import analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import WARP_THREADS
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.registers import AMOUNTS, FIT, LEAST
from register_sweep import HELD_OUT_TABLE, TABLE, Case, read

FOLDS = 10
IMMATERIAL = 16
"""Bytes a thread up to which a spill is none: ptxas parks a value or two of any kernel."""
POOLING = 0.1
"""What departing from the common weights costs, in relative error per share of the registers."""
BEYOND = 1.25
"""A kernel that spills needed more than its limit, but how much more its stack does not say: it
counts copies, and ptxas gives up on some. At most so many times the limit is asked of the model."""
TOO_HIGH = 0.3
"""What asking for more than that costs, beside asking for less."""
IN_REGISTERS = frozenset({"mma", "wgmma", "fma", "mfma"})
"""Units whose accumulators are registers, one each at least; those of `tcgen05` lie in tensor
memory."""
PRODUCTS = IN_REGISTERS | {"tcgen05"}
"""Units of kernels with products: what else such a kernel holds whole lies in registers."""
FED_BY_REGISTERS = frozenset({"mma", "mfma"})
"""Units that take operands from registers alone: one held whole in the kernel lies there."""
Groups = dict[tuple[str, str], list["Row"]]


class Row(Struct):
    """One compiled kernel, the model's amounts of it, and what the model says."""

    case: Case
    device: Device
    unit: str
    amounts: list[float]
    registers: int
    needed: float
    """Registers, and beyond the limit what is spilled in words, up to `BEYOND`."""
    spills: bool
    predicted: int = 0

    @property
    def limit(self) -> int:
        """Registers a thread may use."""
        file = self.device.registers_per_sm or 65536
        most = self.device.registers_per_thread_max or 255
        return min(most, file // (self.case.warps * WARP_THREADS))

    @property
    def fold(self) -> int:
        """Equal for rows of one family and tile."""
        key = f"{self.case.family} {self.case.tiles}"
        return zlib.crc32(key.encode()) % FOLDS

    @property
    def error(self) -> float:
        """Relative error of the registers that the compiler gave."""
        return abs(min(self.predicted, self.limit) / self.registers - 1)

    @property
    def felt(self) -> float:
        """The same where fewer than a thread of a full SM may use count as that: none is felt."""
        file, threads = self.device.registers_per_sm or 65536, self.device.threads_per_sm or 2048
        free = file // threads
        return abs(max(free, min(self.predicted, self.limit)) / max(free, self.registers) - 1)


def rows(table: Path = TABLE) -> list[Row]:
    """A table's rows with the model's amounts."""
    found: list[Row] = []
    pricers: dict[tuple[object, ...], Pricer] = {}
    for cells in read(table):
        if cells["failed"]:
            continue
        case = Case.of(cells)
        device = load_device(case.device)
        key = (case.source, case.dtype, case.device, case.online)
        if key not in pricers:
            graph = case.graph()
            nest = analyse(graph, tuple(range(len(graph.ops))))
            pricers[key] = Pricer(online_variant(nest) or nest if case.online else nest, device)
        pricer = pricers[key]
        sizes = analyse(pricer.nest.graph, pricer.nest.positions).sizes
        tiles = {n: t for n, t in zip(sizes, case.tiles, strict=True) if t is not None}
        model = pricer.footprint.registers
        owning = case.walks == 1
        block = model.block(pricer.regions(tiles), tiles, owning=owning, pipeline=case.pipeline)
        registers, spilled = int(cells["registers"]), int(cells["spilled"])
        stack = int(cells["stack"]) or spilled
        row = Row(
            case, device, model.unit(block, case.warps),
            model.amounts(block, case.warps, owning=owning), registers, registers,
            spilled > IMMATERIAL,
        )  # fmt: skip
        if row.spills:
            row.needed = min(row.limit + stack / 4, BEYOND * row.limit)
        found.append(row)
    return found


def fit(given: list[Row]) -> dict[str, np.ndarray]:
    """Architecture → weights that minimise Σ |weights · amounts − needed| / needed.

    Weights are not negative. Those of an architecture may depart from what all have in common, at
    a cost: `POOLING` of the share that the departure makes of the mean kernel's registers.
    """
    archs = sorted({row.device.arch for row in given})
    count = len(AMOUNTS)
    size = count * (1 + 2 * len(archs))
    amounts = np.array([row.amounts for row in given])
    needed = np.array([row.needed for row in given])
    share = (amounts / needed[:, None]).mean(axis=0) + 1e-9
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    infinity = highspy.kHighsInf
    solver.addVars(size, np.zeros(size), np.full(size, infinity))
    for column in range(count, size):
        solver.changeColCost(column, POOLING * len(given) / len(archs) * share[column % count])
    for k in range(len(archs)):
        for j in range(count):  # common + more − less ≥ 0
            columns = np.array([j, *_own(k, j)], dtype=np.int32)
            solver.addRow(0.0, infinity, 3, columns, np.array([1.0, 1.0, -1.0]))
        least = ["held"] if given[0].unit in PRODUCTS else []
        if given[0].unit in IN_REGISTERS:
            least.append("accumulators")
        if given[0].unit in FED_BY_REGISTERS:
            least.append("made_whole")
        for name in least:
            column = AMOUNTS.index(name)
            columns = np.array([column, *_own(k, column)], dtype=np.int32)
            solver.addRow(1.0, infinity, 3, columns, np.array([1.0, 1.0, -1.0]))
    for number, row in enumerate(given):
        solver.addVar(0.0, infinity)
        solver.changeColCost(size + number, 1 / row.needed)
        columns, values = [size + number], [1.0]
        for j in np.flatnonzero(row.amounts).tolist():
            more, less = _own(archs.index(row.device.arch), j)
            columns += [j, more, less]
            amount = row.amounts[j]
            values += [amount, amount, -amount]
        places = np.array(columns, dtype=np.int32)
        solver.addRow(row.needed, infinity, len(places), places, np.array(values))
        values[0] = -1 / TOO_HIGH if row.spills else -1.0
        solver.addRow(-infinity, row.needed, len(places), places, np.array(values))
    solver.run()
    found = np.array(solver.getSolution().col_value[:size])
    weights: dict[str, np.ndarray] = {}
    for k, arch in enumerate(archs):
        more, less = _own(k, 0)
        weights[arch] = found[:count] + found[more : more + count] - found[less : less + count]
    return weights


def _own(arch: int, amount: int) -> tuple[int, int]:
    """Columns of what an architecture adds to a weight, and of what it takes off."""
    first = len(AMOUNTS) * (1 + 2 * arch)
    return first + amount, first + len(AMOUNTS) + amount


def group(given: list[Row]) -> Groups:
    """(vendor, unit) → its rows."""
    found: Groups = defaultdict(list)
    for row in given:
        found[row.device.arch[:2], row.unit].append(row)
    return found


def predict(row: Row, weights: np.ndarray) -> int:
    """What the model would say."""
    return max(LEAST, round(float(weights @ np.array(row.amounts))))


def cross_validate(given: list[Row]) -> None:
    """Predict every row from a fit on the other folds."""
    for found in group(given).values():
        for held_out in range(FOLDS):
            weights = fit([row for row in found if row.fold != held_out])
            for row in found:
                if row.fold == held_out:
                    row.predicted = predict(row, weights[row.device.arch])


def predict_held_out(given: list[Row], unseen: list[Row]) -> None:
    """Predict rows from a fit on all others."""
    waiting = group(unseen)
    for kind, found in group(given).items():
        weights = fit(found)
        for row in waiting.get(kind, []):
            row.predicted = predict(row, weights[row.device.arch])


def report(given: list[Row]) -> None:
    """Print the errors, by family, unit and architecture."""
    print("| rows | kernels | median error | 90 % below | that is felt | spills right | spill "
          "| missed | false |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip

    def line(name: str, chosen: list[Row]) -> None:
        kept = [row for row in chosen if not row.spills]
        if not kept:
            return
        says = [row.predicted > row.limit for row in chosen]
        right = np.mean([said == row.spills for said, row in zip(says, chosen, strict=True)])
        errors = [row.error for row in kept]
        missed = sum(row.spills and not said for said, row in zip(says, chosen, strict=True))
        false = sum(said and not row.spills for said, row in zip(says, chosen, strict=True))
        print(f"| {name} | {len(chosen)} | {np.median(errors):.1%} "
              f"| {np.quantile(errors, 0.9):.0%} | {np.median([row.felt for row in kept]):.1%} "
              f"| {right:.1%} "
              f"| {sum(row.spills for row in chosen)} | {missed} | {false} |")  # fmt: skip

    line("all", given)
    kinds: tuple[Callable[[Row], str], ...] = (
        lambda row: row.case.family, lambda row: row.unit, lambda row: row.device.arch,
    )  # fmt: skip
    for kind in kinds:
        for name in sorted({kind(row) for row in given}):
            line(name, [row for row in given if kind(row) == name])


def main() -> None:
    """Report, and write the fit where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    given = rows()
    cross_validate(given)
    report(given)
    if HELD_OUT_TABLE.exists():
        unseen = rows(HELD_OUT_TABLE)
        predict_held_out(given, unseen)
        print("\nOf the other table:\n")
        report(unseen)
    if args.write:
        version = TABLE.read_text().partition("\n")[0].lstrip("# ")
        table: dict[str, dict[str, dict[str, float]]] = {}
        for (_, unit), found in sorted(group(given).items()):
            for arch, weights in fit(found).items():
                rounded = {n: round(float(w), 3) for n, w in zip(AMOUNTS, weights, strict=True)}
                table.setdefault(arch, {})[unit] = {n: w for n, w in rounded.items() if w}
        document = {"fitted_on": f"benchmarks/register_sweep.csv, {version}, {len(given)} kernels",
                    "fits": table}  # fmt: skip
        FIT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
