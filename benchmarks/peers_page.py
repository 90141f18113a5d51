"""The page of `benchmarks/peers.py`: totals, acceptance and a row a graph, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from statistics import median

from msgspec import Struct, field

from fuseledger.devices.device import Device
from fuseledger.peers import inductor, xla

COMPILERS = ("inductor", "xla")
OURS = ("ours-bytes", "ours-time")
PLANS = ("eager", *COMPILERS, *OURS)
TITLES = {
    "eager": "eager PyTorch",
    "inductor": "TorchInductor",
    "xla": "XLA",
    "ours-bytes": "fuseledger, fewest bytes",
    "ours-time": "fuseledger, least time",
}
SAME = 1.0005
"""Totals within this factor are equal: systems count a mask or a seed differently."""


class Cell(Struct, frozen=True):
    """One plan of one graph."""

    launches: int
    bytes: int
    time_us: float
    seconds: float


class Entry(Struct):
    """One graph: its plans by name, and why one is missing."""

    name: str
    floor_bytes: int = 0
    cells: dict[str, Cell] = field(default_factory=dict[str, Cell])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    not_asked: list[str] = field(default_factory=list[str])


PREFACE = """# What the compilers would do

Made by one command, `python benchmarks/peers.py FOLDER … [--models] -o docs/comparison.md`; how
each plan is come by is told in [peers.md](peers.md). No GPU was used. For {device}:
TorchInductor of torch {torch}, XLA of jax {jax}. Bytes are each system's own count of the kernels
that it would launch; those of eager PyTorch come from our table of its kernels. TorchInductor's
scheduler counts neither second walks nor a buffer that one kernel both stores and loads, and counts
a tensor that is looked up whole; here its generated code is what counts, as two problems in
[peers.md](peers.md) show.

Read the times for what they are: every time is *modelled*, by one clock, ours, with fp32 products
in fp32. Our least-time plan minimises that very clock, and a fused kernel is priced as if it could
be written as well as a library's. They say how the plans differ, not how a race ended. Seconds to
plan are wall-clock in a process that has answered before, on whatever else the machine was doing.

Left out of the compilers' pipelines here:

{left_out}
"""


def page(sections: Mapping[str, Sequence[Entry]], device: Device) -> str:
    """The whole page."""
    left_out = [
        *(f"- TorchInductor: {part}" for part in (inductor.LIBRARY_ONLY, *inductor.LEFT_OUT)),
        *(f"- XLA: {part}" for part in xla.LEFT_OUT),
    ]
    preface = PREFACE.format(
        device=device.title, torch=version("torch"), jax=version("jax"),
        left_out="\n".join(left_out),
    )  # fmt: skip
    everything = [entry for entries in sections.values() for entry in entries]
    parts = [preface, _answers(everything)]
    parts += [_section(title, entries) for title, entries in sections.items()]
    return "\n".join(parts)


def _answers(entries: Sequence[Entry]) -> str:
    lines = ["## Who answers", ""]
    for name in COMPILERS:
        found = sum(name in entry.cells for entry in entries)
        asked = sum(name not in entry.not_asked for entry in entries)
        rest = f"; {len(entries) - asked} more were not asked yet" if asked < len(entries) else ""
        lines.append(f"- {TITLES[name]}: {found} of {asked} graphs{rest}")
    failed = [(e.name, plan, why) for e in entries for plan, why in e.failures.items()]
    lines += [f"- without an answer: {name}, {plan}: {why}" for name, plan, why in failed]
    return "\n".join([*lines, ""])


def _section(title: str, entries: Sequence[Entry]) -> str:
    whole = [entry for entry in entries if all(name in entry.cells for name in PLANS)]
    return "\n".join(
        [
            f"## {title}", "",
            f"{len(entries)} graphs; means are over the {len(whole)} on which every plan answers.",
            "", *_totals(whole), "", *_findings(whole), "",
            "| graph | floor | eager | TorchInductor | XLA | ours, bytes | ours, time |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *(_row(entry) for entry in entries), "",
            "Cells: launches, bytes over the floor, time by our clock in µs.", "",
        ]
    )  # fmt: skip


def _totals(entries: Sequence[Entry]) -> list[str]:
    lines = [
        "| plan | launches a graph | bytes / floor | time / our least | seconds to plan, median "
        "| longest |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in PLANS:
        cells = [entry.cells[name] for entry in entries]
        floors = geometric_mean(e.cells[name].bytes / e.floor_bytes for e in entries)
        slower = geometric_mean(
            e.cells[name].time_us / e.cells["ours-time"].time_us for e in entries
        )
        seconds = [cell.seconds for cell in cells] or [math.nan]
        launches = sum(cell.launches for cell in cells) / max(1, len(cells))
        lines.append(
            f"| {TITLES[name]} | {launches:.2f} | {floors:.2f} | {slower:.2f} "
            f"| {median(seconds):.2f} | {max(seconds):.1f} |"
        )
    return [*lines, "", "Bytes and times are geometric means."]


def _findings(entries: Sequence[Entry]) -> list[str]:
    """Who beats us, first; then by how much we move fewer bytes."""
    lines: list[str] = []
    for name in COMPILERS:
        fewer = [_lost(e, name, "bytes", "ours-bytes") for e in entries]
        faster = [_lost(e, name, "time_us", "ours-time") for e in entries]
        lines += [
            f"{TITLES[name]} moves fewer bytes than our plan for fewest bytes on: "
            + (", ".join(filter(None, fewer)) or "none") + ".",
            "",
            f"{TITLES[name]} is faster by our clock than our plan for least time on: "
            + (", ".join(filter(None, faster)) or "none") + ".",
            "",
        ]  # fmt: skip
    for name in COMPILERS:
        ratio = geometric_mean(e.cells["ours-bytes"].bytes / e.cells[name].bytes for e in entries)
        lines.append(f"Our plan for fewest bytes moves {ratio:.2f} of {TITLES[name]}'s bytes.")
        lines.append("")
    best = geometric_mean(
        e.cells["ours-bytes"].bytes / min(e.cells[name].bytes for name in COMPILERS)
        for e in entries
    )
    return [*lines, f"Of the better of the two on each graph it moves {best:.2f}."]


def _lost(entry: Entry, name: str, figure: str, ours: str) -> str | None:
    """The graph and by what factor the peer is better, or None."""
    theirs, mine = getattr(entry.cells[name], figure), getattr(entry.cells[ours], figure)
    return f"{entry.name} ({mine / theirs:.3f}×)" if mine > SAME * theirs else None


def _row(entry: Entry) -> str:
    cells = [
        f"{c.launches}, {c.bytes / max(1, entry.floor_bytes):.2f}×, {c.time_us:,.0f}"
        if (c := entry.cells.get(name)) else "–"
        for name in PLANS
    ]  # fmt: skip
    return f"| {entry.name} | {entry.floor_bytes / 1e6:,.1f} MB | {' | '.join(cells)} |"


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean; nan of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
