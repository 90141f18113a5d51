"""Compile kernels of our own emission over families, tiles, warps, stages and targets.

    python benchmarks/register_sweep.py [--processes N] [--held-out]

The table is what the register model is fitted and judged on (`benchmarks/register_fit.py`). A run
compiles only rows whose kernel is not in the table yet, or whose code has changed since, and writes
the table after every few dozen: it may be stopped and started again. `--held-out` compiles kernels
of one more draw, none of which is in the table: nothing is fitted or chosen on them.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import os
import random
from collections.abc import Iterator
from itertools import islice
from math import prod
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import load as load_device
from fuseledger.errors import CannotEmit
from fuseledger.frontends.source import load
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import SHALLOW, Kernel, Pipeline
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.tiles import TileLimits
from fuseledger.planner.schedules import Choice, ScheduleSearch
from fuseledger.planner.side_by_side import components
from fuseledger.triton.compile import (
    compile_kernels,
    compiler_version,
    near_pointers,
    target_of,
)
from fuseledger.triton.emit import EmittedKernel, emit_kernel, module_source

TABLE = Path(__file__).parent / "register_sweep.csv"
HELD_OUT_TABLE = Path(__file__).parent / "register_held_out.csv"
DEVICES = ("a100-sxm-80", "h100-sxm", "b200", "rtx-5090", "mi300x")
"""sm_80, sm_90, sm_100, sm_120, gfx942."""
TILE_ELEMENTS = 65536
"""Most elements of the tiles of one block's grid axes."""
HELD_PER_THREAD = 320
"""Most 32-bit values of one tile that a thread holds: compilers take minutes beyond."""
BATCH = 24

FAMILIES: dict[str, tuple[str, ...]] = {
    "pointwise": (
        "x[4096,4096] | relu",
        "x[4096,4096] + y[4096,4096]",
        "x[4096,4096] | gelu",
        "x[4096,4096] | mish | tanh",
        "x[4096,4096] | bias | silu + y[4096,4096]",
        "x[4096,4096] | bias | gelu | scale | sigmoid * y[4096,4096] + z[4096,4096]",
        "x[64,4096,64] | sigmoid | bias | tanh | scale | bias | relu",
        "transpose(x[4096,4096]) + y[4096,4096] | exp",
        "x[16,64,64,64] | bias(axis=1) | hardswish | clamp(0, 1)",
    ),
    "reduction": (
        "sum(x[4096,4096], -1)",
        "max(x[4096,4096] * y[4096,4096], -1)",
        "sum(x[4096,4096], 0)",
        "mean(x[32,128,56,56], [2, 3])",
        "logsumexp(x[8192,2048], -1)",
        "norm(x[4096,4096] | gelu, -1)",
        "var(x[4096,8192], -1)",
    ),
    "norm": (
        "softmax(x[4096,1024])",
        "softmax(x[4096,8192])",
        "softmax(x[8,4096,512] * 0.125 + m[4096,512])",
        "layer_norm(x[4096,1024])",
        "layer_norm(x[4096,4096])",
        "rms_norm(x[4096,2048])",
        "rms_norm(x[4096,4096] + y[4096,4096])",
        "group_norm(x[32,64,32,32], 16)",
        "log_softmax(x[2048,4096])",
    ),
    "gemm": (
        "gemm(4096,4096,4096)",
        "gemm(4096,4096,4096) + bias + relu",
        "gemm(4096,4096,4096) + bias + gelu",
        "gemm(4096,4096,4096) + bias + gelu + residual",
        "gemm(2048,2048,2048) | bias | silu * y[2048,2048] + z[2048,2048]",
        "gemm(4096,1024,1024) | bias | tanh | scale | sigmoid",
        "gemm(1024,1024,512,batch=16)",
        "(x[4096,2048] | silu) @ w[2048,4096]",
        "sum(gemm(4096,256,1024) | gelu, -1)",
    ),
    "contractions": (
        "(a[4096,1024] @ b[1024,128]) @ c[128,1024]",
        "(a[4096,512] @ b[512,64] | relu) @ c[64,256] + bias",
        "attention(q[8,16,2048,64],k[8,16,2048,64],v[8,16,2048,64])",
        "attention(q[4,8,1024,128],k[4,8,1024,128],v[4,8,1024,128])",
        "softmax(x[4096,1024]) @ w[1024,128]",
        "rms_norm(x[2048,1024]) @ w[1024,2048]",
    ),
    "window": (
        "conv(x[8,64,56,56],w[128,64,3,3],padding=1)",
        "conv(x[8,64,56,56],w[128,64,3,3],padding=1) | bias(axis=1) | relu",
        "conv(x[16,64,128],w[128,64,3]) | gelu",
        "conv(x[8,128,28,28],w[256,128,1,1]) | bias(axis=1) | hardswish + y[8,256,28,28]",
        "conv(x[8,128,56,56],w[128,1,3,3],padding=1,groups=128) | relu",
        "max_pool(x[16,64,112,112], 2)",
        "avg_pool(x[16,64,112,112] | relu, 2)",
        "conv_transpose(x[8,64,32,32],w[64,32,3,3],stride=2,padding=1) | relu",
    ),
}  # fmt: skip
"""Family → sources; every source is one kernel."""
DTYPES = ("fp16", "fp16", "bf16", "fp32")
FIELDS: tuple[str, ...] = (
    "family", "source", "dtype", "device", "tiles", "walks", "online", "warps", "stages", "step",
    "code", "registers", "stack", "spilled", "shared", "failed",
)  # fmt: skip


class Case(Struct, frozen=True, kw_only=True):
    """One kernel of the sweep: all that its code and its model depend on."""

    family: str
    source: str
    dtype: str
    device: str
    tiles: tuple[int | None, ...]
    """Of every axis of the nest in order; None: not on the grid."""
    walks: int
    online: bool
    warps: int
    pipeline: Pipeline

    def cells(self) -> dict[str, str]:
        """The row's first cells."""
        tiles = " ".join("-" if tile is None else str(tile) for tile in self.tiles)
        return {
            "family": self.family, "source": self.source, "dtype": self.dtype,
            "device": self.device, "tiles": tiles, "walks": str(self.walks),
            "online": str(int(self.online)), "warps": str(self.warps),
            "stages": str(self.pipeline.stages), "step": str(self.pipeline.step_bytes),
        }  # fmt: skip

    @staticmethod
    def of(row: dict[str, str]) -> Case:
        """The case of a row."""
        tiles = tuple(None if t == "-" else int(t) for t in row["tiles"].split())
        return Case(
            family=row["family"], source=row["source"], dtype=row["dtype"], device=row["device"],
            tiles=tiles, walks=int(row["walks"]), online=row["online"] == "1",
            warps=int(row["warps"]), pipeline=Pipeline(int(row["step"]), int(row["stages"])),
        )  # fmt: skip

    def graph(self) -> Graph:
        """The source's graph."""
        return load(self.source, dtype=self.dtype, dims={})

    def kernel(self, graph: Graph) -> Kernel:
        """All ops as one kernel under this case's schedule."""
        device = load_device(self.device)
        search = ScheduleSearch(graph, device, Roofline(device))
        ops = tuple(range(len(graph.ops)))
        search.memo[ops] = Choice(
            cost=0.0, bytes=0, launches=1, time_us=0.0, tiles=self.tiles, walks=self.walks,
            vetoes=(), online=self.online, pipeline=self.pipeline,
        )  # fmt: skip
        kernel = search.kernel(ops)
        schedule = replace(kernel.schedule, warps=self.warps, pipeline=self.pipeline)
        return Kernel(ops=ops, schedule=schedule)


class Stream(Struct, frozen=True, kw_only=True):
    """A random sequence of cases, and how many of its kernels are taken."""

    kernels: int
    families: tuple[str, ...]
    least: int = 5
    """Binary logarithm of the fewest elements that a block's tile is let grow to."""
    devices: tuple[str, ...] = DEVICES
    dtypes: tuple[str, ...] = DTYPES
    steps: tuple[int, ...] = (SHALLOW.step_bytes,)
    """Bytes of a step of the products' loops."""
    stages: tuple[int, ...] = (1, 2, 2, 3, 4)


ROUNDS = int(os.environ.get("ROUNDS", "1"))
STREAMS = (
    Stream(kernels=400, families=tuple(FAMILIES)),
    Stream(kernels=300, families=("gemm", "contractions", "gemm", "window"), least=11),
    Stream(kernels=160, families=("pointwise", "reduction", "norm")),
    Stream(kernels=80, families=("gemm", "contractions"), least=12, devices=("h100-sxm", "b200")),
    Stream(kernels=45, families=("gemm",), least=14, devices=("h100-sxm",), dtypes=DTYPES[:3]),
    Stream(
        kernels=240, families=("gemm", "contractions", "gemm", "window"), least=9,
        steps=(128, 256), stages=(2, 3, 4, 5),
    ),
    Stream(kernels=180, families=tuple(FAMILIES), devices=("mi300x",), steps=(64, 64, 128)),
    Stream(
        kernels=400, families=("pointwise", "reduction", "norm", "window"), devices=DEVICES[:4]
    ),
    Stream(kernels=240, families=("contractions", "gemm", "window"), least=10, steps=(64, 128)),
    Stream(
        kernels=240, families=("pointwise", "reduction", "norm", "window"), devices=("mi300x",)
    ),
    Stream(
        kernels=160, families=("gemm", "contractions"), least=11, devices=("b200", "mi300x"),
        steps=(64, 128),
    ),
    *[Stream(kernels=300, families=tuple(FAMILIES), steps=(64, 64, 128))] * 6,
)  # fmt: skip
"""Everything, the products with tiles that matrix units like, more without products, and more for
the matrix units that one device of the list has: `wgmma`, `tcgen05`; epilogues of large tiles; the
longer steps of pipelines; more for AMD, which one device stands for; more of each again; and six
more draws of everything."""


HELD_OUT = Stream(kernels=600, families=tuple(FAMILIES), steps=(64, 64, 128))
HELD_OUT_SEED = 1000


def cases(stream: Stream, seed: int) -> Iterator[Case]:
    """Cases without end, every family and each of its sources as often as another.

    Devices are drawn by chance: in turns, some sources would meet one device alone. Tiles are where
    a random walk of the planner's own steps gets: doublings from the least tiles.
    """
    chance = random.Random(seed)
    turn = 0
    while True:
        for family in stream.families:
            sources = FAMILIES[family]
            source = sources[turn % len(sources)]
            device = chance.choice(stream.devices)
            found = _case(chance, family, source, chance.choice(stream.dtypes), device, stream)
            if found is not None:
                yield found
        turn += 1


def _case(
    chance: random.Random, family: str, source: str, dtype: str, device: str, stream: Stream
) -> Case | None:
    graph = load(source, dtype=dtype, dims={})
    nest = analyse(graph, tuple(range(len(graph.ops))))
    assert nest.veto is None, source
    assert len(components(nest)) == 1, source
    online = online_variant(nest)
    walks = chance.choice((1, 2)) if nest.carried and online is None else 1
    pricer = Pricer(online or nest, load_device(device))
    warps = chance.choice((4, 4, 8, 8, 16))
    tiles = _tiles(chance, pricer, warps, stream.least)
    price = pricer.price(tiles, walks=walks)
    if any(account == "capacity" for account, _ in price.vetoes):
        return None
    if max((held.register_bytes for held in price.held), default=0) > HELD_PER_THREAD * 128 * warps:
        return None
    pipeline = Pipeline(stages=chance.choice(stream.stages))
    if len(stream.steps) > 1:
        pipeline = replace(pipeline, step_bytes=chance.choice(stream.steps))
        if pricer.price(tiles, walks=walks, pipeline=pipeline).pipeline != pipeline:
            return None  # shared memory has no room for it
    return Case(
        family=family, source=source, dtype=dtype, device=device,
        tiles=tuple(price.tiles.get(name) for name in nest.sizes), walks=walks,
        online=online is not None, warps=warps, pipeline=pipeline,
    )  # fmt: skip


def _tiles(chance: random.Random, pricer: Pricer, warps: int, least: int) -> dict[str, int]:
    nest: Nest = pricer.nest
    tiles = TileLimits(pricer).least()
    loops = (
        1
        if pricer.contractions or set(nest.open_axes) - nest.split_axes == set(nest.sizes)
        else LOOP_POINTS
    )
    most = min(TILE_ELEMENTS, HELD_PER_THREAD * 32 * warps // loops)
    wanted = 2 ** chance.uniform(least, 16) / loops**0.5
    growing = [n for n in nest.open_axes if n not in nest.split_axes]
    while growing:
        name = chance.choice(growing)
        grown = {**tiles, name: min(2 * tiles[name], nest.sizes[name])}
        elements = prod(tile for n, tile in grown.items() if n not in nest.split_axes)
        if grown == tiles or elements > min(most, wanted):
            growing.remove(name)
        else:
            tiles = grown
    return tiles


def main() -> None:
    """Run the sweep; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--held-out", action="store_true")
    args = parser.parse_args()
    table = HELD_OUT_TABLE if args.held_out else TABLE
    streams = {HELD_OUT_SEED: HELD_OUT} if args.held_out else dict(enumerate(STREAMS))
    seen = {row["code"] for row in read(TABLE)} if args.held_out else set[str]()
    before = read(table) if table.exists() else []
    known = {row["code"]: row for row in before if not row["failed"]}
    version = compiler_version()
    rows: list[dict[str, str]] = []
    waiting: Waiting = []
    for case, kernel, code in _wanted(streams, seen, version):
        if code in known:
            rows.append(known[code])
        else:
            waiting.append((case.cells() | {"code": code}, kernel, case.device))
    console = Console(stderr=True)
    console.print(f"{len(rows)} rows are there, {len(waiting)} kernels to compile")
    with Progress(console=console) as progress:
        task = progress.add_task("compiling", total=len(waiting))
        for device, batch in _batches(waiting):
            found = compile_kernels(
                [kernel for _, kernel, _ in batch], target_of(load_device(device)),
                processes=args.processes, done=lambda _: progress.advance(task),
            )  # fmt: skip
            for (row, _, _), each in zip(batch, found, strict=True):
                row |= {
                    "registers": str(each.registers), "stack": str(each.stack_bytes),
                    "spilled": str(each.spilled_bytes), "shared": str(each.shared_bytes),
                    "failed": each.failed or "",
                }  # fmt: skip
                rows.append(row)
            write(table, rows, version)


def _wanted(
    streams: dict[int, Stream], seen: set[str], version: str
) -> Iterator[tuple[Case, EmittedKernel, str]]:
    """The kernels of every stream, by seed, that were not seen, each once, and what tells its code
    from others."""
    for seed, stream in streams.items():
        left = stream.kernels
        for case in islice(cases(stream, seed), 2 * stream.kernels):
            graph = case.graph()
            try:
                kernel = emit_kernel(
                    graph, case.kernel(graph), name="k",
                    in_flight=load_device(case.device).sm_count,
                )  # fmt: skip
            except CannotEmit:
                continue
            code = digest(kernel, case.device, version)
            if kernel.notes or code in seen:  # notes: the code is not what the schedule says
                continue
            seen.add(code)
            yield case, kernel, code
            left -= 1
            if not left:
                break


Waiting = list[tuple[dict[str, str], EmittedKernel, str]]


def _batches(waiting: Waiting) -> Iterator[tuple[str, Waiting]]:
    """The kernels in batches of one device each, all devices in turn."""
    left = {name: [each for each in waiting if each[2] == name] for name in DEVICES}
    while any(left.values()):
        for name in DEVICES:
            if left[name]:
                yield name, left[name][:BATCH]
                left[name] = left[name][BATCH:]


def digest(kernel: EmittedKernel, device: str, version: str) -> str:
    """What tells a kernel's code, without comments, target and compiler from every other."""
    code = ast.unparse(ast.parse(module_source([kernel], "")))
    near = near_pointers(kernel, target_of(load_device(device)))
    text = repr((code, sorted(kernel.constants.items()), kernel.warps, kernel.stages, device,
                 version, *near))  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def write(path: Path, rows: list[dict[str, str]], version: str) -> None:
    """Write a table whole."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        file.write(f"# triton {version}\n")
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: [row[name] for name in FIELDS[:11]]))
    partial.replace(path)


if __name__ == "__main__":
    main()
