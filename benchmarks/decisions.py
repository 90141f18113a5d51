"""The decision table: `python benchmarks/decisions.py DECISIONS.jsonl -o docs/decisions.md`.

Measured fuse-or-split decisions beside the tool's answer, by the search and the clock that `plan`
uses. Splits: the best kernel without a split against the best with one. Fusions: the plan's kernels
against one kernel an op. An answer within 5 % either way is a tie.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from decision_folds import LOSSES, validation
from fuseledger.clock.roofline import Roofline
from fuseledger.devices import Device, LaunchMode, load
from fuseledger.frontends.source import load as load_source
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import MERGES
from fuseledger.planner.plan import PlanOptions, make_plan, new_search, plan_of_groups
from fuseledger.verdict.attention import Attention
from fuseledger.verdict.gemm import Gemm
from fuseledger.verdict.split import Pricing, Question, Realise

TIE = 1.05
"""Gains up to this factor, either way, are ties."""

QUACK = "github.com/Dao-AILab/quack/pull/157"
DEEPGEMM = "github.com/deepseek-ai/DeepGEMM/pull/186"
SGL_DEEPGEMM = "github.com/sgl-project/DeepGEMM/pull/77"
FLASH = "github.com/Dao-AILab/flash-attention/pull/2415"
CUTLASS = "github.com/NVIDIA/cutlass/issues/{}"
INDUCTOR = "github.com/pytorch/pytorch/pull/178000"
GIVEN = "no public source found"


class Answer(Struct, frozen=True):
    """The tool's answer: the gain of splitting or fusing, and how."""

    gain: float
    how: str


class Row(Struct, frozen=True, kw_only=True):
    """One decision, what was measured of it, and how the tool answers it."""

    kind: str
    """`split-K`, `split-KV` or `fuse`."""
    what: str
    device: str
    measured: float | str
    """Gain, or the side that won where no figure is known."""
    source: str
    ask: Callable[[], Answer]
    cause: str | Callable[[], str] = ""
    """Why the tool is wrong, or far off, where it is; a function works its figures out."""


def side(gain: float | str, kind: str) -> str:
    """`split`, `fuse`, `no split`, `cut` or `tie`."""
    if isinstance(gain, str):
        return gain
    yes, no = ("fuse", "cut") if kind == "fuse" else ("split", "no split")
    return yes if gain > TIE else no if gain < 1 / TIE else "tie"


def split_gain(
    question: Question, device: str, launch: LaunchMode = "queued", realise: Realise = "best",
    host: bool = False,
) -> Answer:  # fmt: skip
    """The best kernel unsplit over the best split; with `host`, dispatch may take longer."""
    pricing = Pricing(question.split(), load(device), launch, realise)
    whole = pricing.parts.at(1)
    split = pricing.parts.at(max(2, pricing.parts.best()))
    times = [whole.time.total_us, split.time.total_us]
    if host:
        eager = load(device).launch_us("eager")
        launches = (whole.price.launches, split.price.launches)
        times = [max(us, count * eager) for us, count in zip(times, launches, strict=True)]
    parts = split.parts
    return Answer(
        times[0] / times[1],
        f"{times[0]:.1f} → {times[1]:.1f} µs in {parts} parts" + (", host" if host else ""),
    )


def wide_tiles(question: Gemm, columns: int, device: str, launch: LaunchMode) -> str:
    """What a split gains where a block has so many columns, and what the second launch costs it."""
    free = Pricing(question.split(), load(device), launch)
    parted = free.parts.at(max(2, free.parts.best()))
    split, whole = parted.time, free.parts.at(1).time
    merge_us = split.launch_us + split.latency_us + split.combine_us
    merge_us -= whole.launch_us + whole.latency_us
    merged = MERGES[parted.schedule.merge or "launch"]
    answer = split_gain(replace(question, tile=(question.M, columns)), device, launch)
    return (
        f"the parts are {merged}, which takes {merge_us:.1f} of the split's "
        f"{split.total_us:.1f} µs; without that it is {split.total_us - merge_us:.1f} µs against "
        f"{whole.total_us:.1f} unsplit, in tiles so narrow that they fill the machine. With "
        f"{columns} columns a block, one side of a tcgen05.mma (64 or 128, PTX ISA), it is "
        f"{answer.how}: {answer.gain:.2f}×"
    )


def fuse_gain(source: str, device: str, launch: LaunchMode = "queued") -> Answer:
    """One kernel an op over the plan."""
    planned = make_plan(load_source(source), load(device), PlanOptions(launch=launch))
    before, after = planned.baseline, planned.totals
    return Answer(
        before.time_us / after.time_us,
        f"{before.time_us:.0f} → {after.time_us:.0f} µs, "
        f"{before.kernels} → {after.kernels} kernels",
    )


def _time(
    graph: Graph, machine: Device, groups: list[tuple[int, ...]], launch: LaunchMode,
    realise: Realise,
) -> float:  # fmt: skip
    search = new_search(graph, machine, PlanOptions(launch=launch))
    search.clock = Roofline(machine, launch, realise=realise)
    return sum(search.choose(group).time_us for group in groups)


SWIGLU = (
    "silu(x[5120,{k}] bf16 @ g[{k},{n}] bf16) * (x[5120,{k}] bf16 @ u[{k},{n}] bf16) "
    "@ d[{n},{k}] bf16"
)


def swiglu(k: int, n: int, launch: LaunchMode) -> Answer:
    """SwiGLU in library GEMMs and a pointwise kernel, against generated GEMMs that take it in."""
    graph, machine = load_source(SWIGLU.format(k=k, n=n)), load("b200")
    functions = [op.function for op in graph.ops]
    gemms = [i for i, function in enumerate(functions) if function == "gemm"]
    rest = tuple(i for i in range(len(functions)) if i not in gemms)
    apart = [(gemms[0],), (gemms[1],), rest, (gemms[2],)]
    together = [tuple(sorted((*gemms[:2], *rest))), (gemms[2],)]
    library = _time(graph, machine, apart, launch, "library")
    generated = _time(graph, machine, together, launch, "generated")
    best = make_plan(graph, machine, PlanOptions(launch=launch))
    return Answer(
        library / generated,
        f"library {library:.0f}, generated and fused {generated:.0f} µs; "
        f"the plan: {len(best.kernels)} kernels, {best.totals.time_us:.0f} µs",
    )


def merged(source: str, device: str, launch: LaunchMode = "queued") -> Answer:
    """All ops in one kernel against the best plan with two products in kernels of their own."""
    graph, machine = load_source(source), load(device)
    products = [i for i, op in enumerate(graph.ops) if op.function == "gemm"]
    cut = products[1]
    groups = [tuple(range(cut)), tuple(range(cut, len(graph.ops)))]
    apart = plan_of_groups(graph, machine, groups, PlanOptions(launch=launch)).totals.time_us
    one = plan_of_groups(graph, machine, [tuple(range(len(graph.ops)))], PlanOptions(launch=launch))
    veto = dict(one.kernels[0].vetoes).get("capacity")
    together = one.totals.time_us
    how = f"{apart:.0f} → {together:.0f} µs"
    return Answer(apart / together, f"{how}; {veto}" if veto else how)


def rows(path: Path) -> Iterator[Row]:
    """Every row, those of the decision corpus with their own figures."""
    gemm = partial(Gemm, dtype="bf16")
    for m, n, k, gain in (
        (128, 128, 16384, 2.90), (128, 128, 65536, 7.88), (256, 256, 32768, 3.84),
        (512, 512, 16384, 2.05),
    ):  # fmt: skip
        yield Row(
            kind="split-K", what=f"{m}×{n}×{k}", device="b200", measured=gain, source=QUACK,
            ask=partial(split_gain, gemm(M=m, N=n, K=k), "b200", "graph"),
            cause=SIZE_OF_GAIN,
        )  # fmt: skip
    yield Row(
        kind="split-K", what="4×8192×1024", device="rtx-pro-6000", measured=13.2 / 22.4,
        source=SGL_DEEPGEMM,
        ask=partial(split_gain, gemm(M=4, N=8192, K=1024), "rtx-pro-6000"),
    )  # fmt: skip
    yield Row(
        kind="split-K", what="128×6144×1536", device="b200", measured="tie", source=GIVEN,
        ask=partial(split_gain, gemm(M=128, N=6144, K=1536), "b200", "graph"),
        cause=partial(wide_tiles, gemm(M=128, N=6144, K=1536), 128, "b200", "graph"),
    )  # fmt: skip
    yield Row(
        kind="split-K", what="1×5120×1792", device="b200", measured="split", source=GIVEN,
        ask=partial(split_gain, gemm(M=1, N=5120, K=1792), "b200", "graph"),
        cause=partial(wide_tiles, gemm(M=1, N=5120, K=1792), 128, "b200", "graph"),
    )  # fmt: skip
    for record in _records(path):
        p = record["params"]
        if record["family"] == "gemm_split_k" and p["dtype"] == "bfloat16":
            yield Row(
                kind="split-K", what=f"{p['m']}×{p['n']}×{p['k']}", device=record["device"],
                measured=record["gain"], source=DEEPGEMM,
                ask=partial(
                    split_gain, gemm(M=p["m"], N=p["n"], K=p["k"], tile=DEEPGEMM_TILE),
                    record["device"], "graph",
                ),
                cause=DEEPGEMM_CAUSE,
            )  # fmt: skip
        if record["family"] == "decode_attention" and record["device"] == "h200":
            heads, groups = p["batch"] * p["q_heads"], p["batch"] * p["kv_heads"]
            yield Row(
                kind="split-KV", device="h200", measured=record["gain"], source=FLASH,
                what=f"{p['batch']} × {p['q_heads']} heads on {p['kv_heads']}, "
                f"{p['q_len']} queries, {p['kv_len']:,} keys",
                ask=partial(
                    split_gain,
                    Attention(heads=heads, kv=p["kv_len"], d=p["head_dim"], queries=p["q_len"],
                              kv_heads=groups, dtype="bf16"),
                    "h200", "queued", "library", host=True,
                ),
                cause=FLASH_CAUSE,
            )  # fmt: skip
    yield from _fusions()


B2B = "relu(relu(a[{m},576] fp16 @ b[576,64] fp16) @ c[64,{n}] fp16 + r[{rows}{n}] fp16)"
"""CUTLASS's example 13, two products in one kernel."""
ONE_BLOCK = (
    "by bytes the fused kernel wins. The one that was measured has tiles of 64×256 in 3 stages, "
    "61 KB of shared memory, so one block an SM, whose loads, products and stores wait for each "
    "other; so has the second product alone: both move 130 GB/s where the first product moves "
    "180. The clock takes the slowest resource however many blocks an SM has, and the search "
    "takes tiles of which two fit"
)
DEEPGEMM_TILE = (64, 32)
"""Least tile of a warp group on Hopper by DeepGEMM's rule (block_m 64; block_n 16 or 32)."""
SIZE_OF_GAIN = (
    "the side is right; a trip to memory in a pipeline takes longer than the unloaded latency that "
    "the clock takes for it, so long unsplit walks are priced short"
)
DEEPGEMM_CAUSE = (
    "DeepGEMM chooses tiles by waves and sums parts in the cluster without a second launch; "
    "`auto` also falls back to no split, which the model prices as a split"
)
FLASH_CAUSE = (
    "times are printed to 10 µs and hold the host's work, which differs from the constant assumed "
    "(25.8 µs a launch)"
)


def _fusions() -> Iterator[Row]:
    """Fuse or cut."""
    yield Row(
        kind="fuse", what="RMSNorm + quantise to fp8, 4096×4096 bf16", device="h100-sxm",
        measured="fuse", source="families rms_norm_quant_* of the decision corpus",
        ask=partial(fuse_gain, "quantise(rms_norm(x[4096,4096] bf16))", "h100-sxm"),
    )  # fmt: skip
    runs: list[tuple[int, int, float, float, LaunchMode]] = [
        (256, 512, 0.145, 0.099, "eager"), (4096, 8192, 1.014, 1.361, "queued"),
    ]  # fmt: skip
    for k, n, unfused, fused, launch in runs:
        yield Row(
            kind="fuse", what=f"SwiGLU into its GEMMs, [5120,{k}] → {n}", device="b200",
            measured=unfused / fused, source=INDUCTOR, ask=partial(swiglu, k, n, launch),
            cause="TorchInductor's fused run has one launch by its own count, ours two",
        )  # fmt: skip
    for device, what, source, measured, found_in in (
        ("t4", "204800×64×576 and ×128, C read", B2B.format(m=204800, n=128, rows="204800,"),
         1.39011 / 1.26035, CUTLASS.format(99)),
        ("rtx-8000", "204800×64×576 and ×128, C read", B2B.format(m=204800, n=128, rows="204800,"),
         0.721144 / 0.629864, CUTLASS.format(99)),
        ("rtx-3050-laptop", "81920×64×576 and ×256, bias", B2B.format(m=81920, n=256, rows=""),
         0.978365 / 1.04477, CUTLASS.format(887)),
    ):  # fmt: skip
        yield Row(
            kind="fuse", what=f"GEMM → ReLU → GEMM, {what}, fp16", device=device,
            measured=measured, source=found_in, ask=partial(merged, source, device),
            cause=ONE_BLOCK,
        )  # fmt: skip
    yield Row(
        kind="fuse", what="dropout + add + layer norm, 8192×1024 bf16", device="h100-sxm",
        measured="fuse", source=GIVEN,
        ask=partial(
            fuse_gain, "layer_norm(dropout(x[8192,1024] bf16, 0.1) + y[8192,1024] bf16)", "h100-sxm"
        ),
    )  # fmt: skip
    tiny = "x[64,128] fp16" + " | linear(128) | gelu" * 50
    yield Row(
        kind="fuse", what="50 × addmm + GELU, 64×128×128 fp16", device="h100-sxm",
        measured="fuse", source=GIVEN, ask=partial(fuse_gain, tiny, "h100-sxm", "eager"),
    )  # fmt: skip


def _records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def table(path: Path) -> str:
    """The page."""
    out = [HEAD]
    right: dict[str, list[bool]] = {}
    causes: dict[str, int] = {}
    for row in rows(path):
        answer = row.ask()
        said, was = side(answer.gain, row.kind), side(row.measured, row.kind)
        hit = said == was
        far = not isinstance(row.measured, str) and abs(
            math.log(answer.gain / row.measured)
        ) > math.log(1.5)
        if row.kind not in right:
            out.append(f"\n## {TITLES[row.kind]}\n")
            out.append("| what | device | measured | tool | right | how | source |")
            out.append("|---|---|---|---|---|---|---|")
        right.setdefault(row.kind, []).append(hit)
        mark = ""
        if (not hit or far) and row.cause:
            cause = row.cause if isinstance(row.cause, str) else row.cause()
            mark = f" [{causes.setdefault(cause, len(causes) + 1)}]"
        figure = row.measured if isinstance(row.measured, str) else f"{row.measured:.2f}×, {was}"
        out.append(
            f"| {row.what} | {row.device} | {figure} | {answer.gain:.2f}×, {said} "
            f"| {'yes' if hit else 'no'}{mark} | {answer.how} | {row.source} |"
        )
    out.append("\n## Misses and large differences\n")
    out += [f"{number}. {cause[0].upper()}{cause[1:]}." for cause, number in causes.items()]
    out += validation(path)
    out += ["", "## Losses and ties that are called wrong", "", LOSSES]
    totals = ", ".join(f"{kind} {sum(hits)} of {len(hits)}" for kind, hits in right.items())
    out.append(f"\nRight side: {totals}.")
    return "\n".join(out) + "\n"


TITLES = {"split-K": "Split-K", "split-KV": "Split-KV", "fuse": "Fuse or cut"}
HEAD = """# Decisions: the tool's answer beside the measured one

Made by `python benchmarks/decisions.py DECISIONS.jsonl -o docs/decisions.md`. A gain is the time
without the split or the fusion over the time with it; within 5 % either way is a tie. Splits: the
best kernel without a split against the best with one, tiles searched for each (DeepGEMM's rows have
its tile; attention has one head and up to 128 queries a block, priced as the library's kernel).
Numbers in brackets lead to the cause of a miss, or of a gain that is off by more than half."""


def main() -> int:
    """Write the table to a file, or print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("decisions", type=Path, help="records of measured decisions")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    text = table(args.decisions)
    if args.output is None:
        sys.stdout.write(text)
    else:
        args.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
