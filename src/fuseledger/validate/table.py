"""A plain CSV of measured times: `source,device,time_us`, and `mode`, `dtype` where wanted.

`source` is a SOURCE of `fuseledger plan`; `mode` is `fused` (our plan, the default) or `eager` (one
kernel an op). These rows are priced by the schedule clock, which fits nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from fuseledger.clock.library_features import Setting
from fuseledger.errors import FuseledgerError
from fuseledger.validate.corpus import (
    Corpus,
    CorpusError,
    Measured,
    csv_rows,
    geometric_mean,
    time_above_0,
)

FIELDS = ("source", "device", "time_us")


class _Question(Struct, frozen=True):
    """What a time was measured of."""

    source: str
    device: str
    dtype: str
    mode: str


def read_table(path: Path) -> Corpus:
    """A row for every source, device, dtype and mode; repeated times become their geometric mean.

    Raises CorpusError naming the file, line and field.
    """
    times: dict[_Question, list[float]] = {}
    for place, row in csv_rows(path, FIELDS):
        time_us = time_above_0(place, "time_us", row["time_us"])
        mode = (row.get("mode") or "fused").strip()
        if mode not in ("fused", "eager"):
            raise CorpusError(f"{place}: mode {mode!r} is neither fused nor eager")
        dtype = (row.get("dtype") or "fp16").strip()
        asked = _Question(row["source"].strip(), row["device"].strip(), dtype, mode)
        times.setdefault(asked, []).append(time_us)
    corpus = Corpus()
    for asked, measured in times.items():
        _add(corpus, path.name, asked, measured)
    return corpus


def _add(corpus: Corpus, name: str, asked: _Question, times_us: Sequence[float]) -> None:
    from fuseledger.devices import load, names

    if asked.device not in names():
        corpus.skip(f"device {asked.device} is not in the catalog", len(times_us))
        return
    try:
        priced = _price(asked)
    except FuseledgerError as error:
        corpus.skip(f"{asked.source}: {error}", len(times_us))
        return
    corpus.rows.append(
        Measured(
            corpus=name, problem=asked.source, name=asked.source, class_=priced.kind, kernels=(),
            setting=Setting(device=load(asked.device), mode=asked.mode),
            run=f"{asked.source} {asked.device} {asked.dtype}", fused=asked.mode == "fused",
            time_us=geometric_mean(times_us), priced_us=priced.time_us, bar=priced.bar,
        )
    )  # fmt: skip


class _Priced(Struct, frozen=True):
    """What the clock of `plan` says of a row, and how far off it is held to be."""

    time_us: float
    kind: str
    bar: tuple[float, float] | None


def _price(asked: _Question) -> _Priced:
    from fuseledger.clock.error_bars import bars_of
    from fuseledger.devices import load as load_device
    from fuseledger.frontends.source import load
    from fuseledger.planner.plan import make_plan, plan_of_groups

    graph = load(asked.source, dtype=asked.dtype)
    gpu = load_device(asked.device)
    if asked.mode == "eager":
        planned = plan_of_groups(graph, gpu, [(i,) for i in range(len(graph.ops))])
    else:
        planned = make_plan(graph, gpu)
    found = bars_of(graph)
    kind, bar = "declared", None
    if found is not None:
        kind = found[0]
        bar = found[2].get("one kernel an op" if asked.mode == "eager" else "plan")
    return _Priced(planned.totals.time_us, kind, (bar.median, bar.p90) if bar else None)
