"""Registers of the textbook chain, compiled: cut × tile × warps × target.

    python benchmarks/chain_registers.py [--size 4096] [--processes N] [--markdown FILE]

Compiles the first kernels of the cuts 1,3 and 3,1 and the whole chain, in fp16, with tiles from
128×64 to 256×128 and 4 or 8 warps. Says where fusing the residual starts to spill, and which tile
of the whole chain does not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.ledger.kernel import SHALLOW
from fuseledger.planner.schedules import ScheduleSearch
from fuseledger.triton.compile import (
    compile_kernels,
    compiled_folder,
    compiler_version,
    target_of,
)
from fuseledger.triton.emit import EmittedKernel, emit_kernel
from fuseledger.triton.occupancy import occupancy

DEVICES = ("a100-sxm-80", "h100-sxm", "b200", "rtx-5090", "mi300x")
CUTS = {"1,3": "", "3,1": " + bias + gelu", "4": " + bias + gelu + residual"}
"""Cut → what its first kernel adds to the product."""
TILES = ((128, 64), (128, 128), (128, 256), (256, 128))
WARPS = (4, 8)


def kernel(source: str, device: str, tile: tuple[int, int], warps: int) -> EmittedKernel:
    """All ops of the source as one kernel with this tile, two stages."""
    graph = load(source, dtype="fp16", dims={})
    target = load_device(device)
    search = ScheduleSearch(graph, target, Roofline(target))
    ops = tuple(range(len(graph.ops)))
    choice = replace(search.choose(ops), tiles=(*tile, None), walks=1, vetoes=(), online=False)
    if len(ops) == 1:  # the reduced axis of a lone product may be split: it is whole here
        choice = replace(choice, tiles=(*tile, graph.ops[0].sizes["k"]))
    search.memo[ops] = choice
    planned = search.kernel(ops)
    return emit_kernel(
        graph,
        replace(planned, schedule=replace(planned.schedule, warps=warps, pipeline=SHALLOW)),
        name="chain", in_flight=target.sm_count,
    )  # fmt: skip


def main() -> None:
    """Compile and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    sources = [f"gemm({args.size},{args.size},{args.size}){rest}" for rest in CUTS.values()]
    keys = [(source, tile, warps) for source in sources for tile in TILES for warps in WARPS]
    cells: dict[tuple[str, tuple[int, int], int], list[str]] = {key: [] for key in keys}
    spilled: dict[tuple[str, str, tuple[int, int], int], int] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("compiling", total=len(keys) * len(DEVICES))
        for name in DEVICES:
            device = load_device(name)
            found = compile_kernels(
                [kernel(source, name, tile, warps) for source, tile, warps in keys],
                target_of(device), processes=args.processes, cache=compiled_folder(),
                done=lambda _: progress.advance(task),
            )  # fmt: skip
            for key, each in zip(keys, found, strict=True):
                if each.failed:
                    cells[key].append("does not compile")
                    continue
                fits = occupancy(each, device)
                words = f"{each.registers}"
                if each.spilled_bytes or each.stack_bytes:
                    words += f" + {each.stack_bytes or each.spilled_bytes} B"
                cells[key].append(f"{words}, {fits.share:.0%}" if fits else words)
                spilled[(name, *key)] = each.stack_bytes or each.spilled_bytes
    text = table(args.size, cells) + "\n" + "\n".join(sentences(sources, spilled)) + "\n"
    if args.markdown:
        args.markdown.write_text(text)
    print(text)


def table(size: int, cells: dict[tuple[str, tuple[int, int], int], list[str]]) -> str:
    """Registers + bytes of stack of a thread, and occupancy: a row a kernel, a column a target."""
    targets = [str(target_of(load_device(name))) for name in DEVICES]
    lines = [
        f"| cut | {size}³ fp16 (Triton {compiler_version()}) | tile | warps "
        f"| {' | '.join(targets)} |",
        f"|---|---|---|---|{'---|' * len(targets)}",
    ]
    for (source, tile, warps), found in cells.items():
        cut = next(cut for cut, rest in CUTS.items() if source.endswith(f"){rest}"))
        label = "+".join(["gemm", *(part.strip() for part in source.split(" + ")[1:])])
        lines.append(f"| {cut} | {label} | {tile[0]}×{tile[1]} | {warps} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def sentences(
    sources: Sequence[str], spilled: dict[tuple[str, str, tuple[int, int], int], int]
) -> list[str]:
    """For each target: the schedules that spill only with the residual, and the way out."""
    whole, without = sources[-1], sources[-2]
    lines: list[str] = []
    for name in DEVICES:
        starts = [
            f"{tile[0]}×{tile[1]} in {warps} warps ({spilled[name, whole, tile, warps]} B)"
            for tile in TILES
            for warps in WARPS
            if spilled[name, whole, tile, warps] and not spilled[name, without, tile, warps]
        ]
        fitting = [
            (tile[0] * tile[1], f"{tile[0]}×{tile[1]} in {warps} warps")
            for tile in TILES
            for warps in WARPS
            if not spilled[name, whole, tile, warps]
        ]
        target = target_of(load_device(name))
        begins = (
            f"the residual starts to spill at {', '.join(starts)}"
            if starts
            else ("no tile spills with the residual that does not spill without")
        )
        largest = max(fitting)[0] if fitting else 0
        ways = [words for elements, words in fitting if elements == largest]
        lines.append(f"- {target}: {begins}; the largest tile of the whole chain without a spill "
                     f"is {' or '.join(ways) or 'none'}")  # fmt: skip
    return lines


if __name__ == "__main__":
    main()
