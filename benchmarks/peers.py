"""Plans of other systems beside ours, for a corpus and for real models.

    python benchmarks/peers.py FOLDER … [--models] -o docs/comparison.md

A FOLDER holds ATen graphs (`*.json`), such as `kernelbench/v0.1/level2` of the corpus; `--models`
adds the models of `examples/models.py`. For each: what eager PyTorch launches, what TorchInductor
and XLA plan, and our plans for fewest bytes and for least time. Answers of the compilers are kept
in `--cache` by what was asked and of whom, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import track

from fuseledger.devices import load
from fuseledger.devices.device import Device
from fuseledger.errors import FuseledgerError
from fuseledger.peers.eager_peer import eager_peer
from fuseledger.peers.inductor import device_properties, inductor_plan, inductor_worker
from fuseledger.peers.kept import kept_plan, peer_folder
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.priced import price
from fuseledger.peers.process import Worker
from fuseledger.peers.program import Program, read_program
from fuseledger.peers.xla import xla_plan, xla_worker
from fuseledger.peers.xla_target import target_config
from fuseledger.planner.plan import Planned, PlanOptions, make_plan
from peers_page import Cell, Entry, page

MODELS = Path(__file__).parents[1] / "examples" / "models.py"
NAMES = ("llama3_8b_block", "llama3_8b_block_decode", "bert_base", "resnet50", "vit_b16")
"""Models of the comparison."""
NOT_ASKED = "not asked"


class Asker(Struct, frozen=True):
    """Asks the compilers, and keeps what they said."""

    device: Device
    time_limit_s: float
    cache: Path
    kept_only: bool
    inductor_process: Worker
    xla_process: Worker

    def inductor(self, source: str, program: Program) -> PeerPlan:
        """TorchInductor's default plan."""
        asked = program.aten and replace(program.aten, source="")
        return self._kept(
            "inductor",
            "torch",
            (asked or program.graph, device_properties(self.device)),
            lambda: inductor_plan(
                source, self.device, time_limit_s=self.time_limit_s, worker=self.inductor_process
            ),
        )

    def xla(self, source: str, program: Program) -> PeerPlan:
        """XLA's plan."""
        return self._kept(
            "xla",
            "jax",
            (program.graph.ops, program.graph.tensors, target_config(self.device)),
            lambda: xla_plan(
                source, self.device, time_limit_s=self.time_limit_s, worker=self.xla_process
            ),
        )

    def _kept(
        self, name: str, package: str, question: object, ask: Callable[[], PeerPlan]
    ) -> PeerPlan:
        def nobody() -> PeerPlan:
            # as a late answer, which is not kept
            return PeerPlan(name=name, version=None, status="timeout", reason=NOT_ASKED)

        return kept_plan(self.cache, package, question, nobody if self.kept_only else ask)


def measure(name: str, source: str, asker: Asker) -> Entry:
    """All plans of one graph."""
    entry = Entry(name)
    try:
        with redirect_stdout(sys.stderr):
            program = read_program(source)
    except FuseledgerError as error:
        entry.failures["reading"] = str(error)
        return entry
    entry.floor_bytes = program.graph.floor_bytes
    _ours(entry, "ours-bytes", program, asker.device, PlanOptions(objective="bytes"))
    fastest = _ours(entry, "ours-time", program, asker.device, PlanOptions(objective="time"))
    for plan in (eager_peer(program), asker.inductor(source, program), asker.xla(source, program)):
        if plan.status == "planned":
            us = price(program, plan, fastest).time_us
            entry.cells[plan.name] = Cell(plan.launches, plan.bytes, us, plan.seconds)
        elif plan.reason == NOT_ASKED:
            entry.not_asked.append(plan.name)
        else:
            entry.failures[plan.name] = f"{plan.status}: {plan.reason}"
    return entry


def _ours(
    entry: Entry, name: str, program: Program, device: Device, options: PlanOptions
) -> Planned:
    started = time.perf_counter()
    planned = make_plan(program.graph, device, options)
    seconds = time.perf_counter() - started
    totals = planned.totals
    entry.cells[name] = Cell(totals.launches, totals.bytes, totals.time_us, seconds)
    return planned


def sources(folders: list[Path], *, models: bool, only: str) -> Iterator[tuple[str, str, str]]:
    """(section, name, SOURCE) of every graph, in order."""
    for folder in folders:
        section = " ".join(folder.resolve().parts[-3:])
        for path in sorted(folder.glob(f"{only}*.json")):
            yield section, path.stem, str(path)
    for name in NAMES if models else ():
        yield "Models of examples/models.py", name, f"{MODELS}:{name}"


def main() -> None:
    """Read the arguments, plan, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--models", action="store_true", help="also the models of examples/")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--only", default="", help="graphs whose name starts with this")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a peer may take")
    parser.add_argument("--kept-only", action="store_true", help="ask nobody: the answers so far")
    parser.add_argument("--cache", type=Path, default=peer_folder())
    given = parser.parse_args()
    listed = list(sources(given.folders, models=given.models, only=given.only))
    sections: dict[str, list[Entry]] = {}
    console = Console(stderr=True)
    device = load(given.device)
    with inductor_worker() as inductor, xla_worker() as xla:
        asker = Asker(device, given.time_limit, given.cache, given.kept_only, inductor, xla)
        for section, name, source in track(listed, "planning", console=console):
            entry = measure(name, source, asker)
            sections.setdefault(section, []).append(entry)
            if entry.failures:
                console.print(name, entry.failures)
    text = page(sections, device)
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
