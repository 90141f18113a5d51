"""A plain CSV of measured times: `source,device,time_us`, and `mode`, `dtype` where wanted.

`source` is a SOURCE of `fuseledger plan`; `mode` is `fused` (our plan, the default) or `eager` (one
kernel an op). These rows are priced by the schedule clock, which fits nothing.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from msgspec import Struct

from fuseledger.clock.library_features import Setting
from fuseledger.errors import FuseledgerError
from fuseledger.validate.corpus import Corpus, CorpusError, Measured

FIELDS = ("source", "device", "time_us")


def read_table(path: Path) -> Corpus:
    """Every row priced. Raises CorpusError naming the file, line and field."""
    from fuseledger.devices import load, names

    corpus = Corpus()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read ({error})") from None
    reader = csv.DictReader(text.splitlines())
    missing = [field for field in FIELDS if field not in (reader.fieldnames or ())]
    if missing:
        raise CorpusError(f"{path}: has no column {missing[0]}: it needs {', '.join(FIELDS)}")
    known = set(names())
    for line, row in enumerate(reader, start=2):
        time_us = _time(path, line, row["time_us"])
        mode = (row.get("mode") or "fused").strip()
        if mode not in ("fused", "eager"):
            raise CorpusError(f"{path}:{line}: mode {mode!r} is neither fused nor eager")
        device, source = row["device"].strip(), row["source"].strip()
        if device not in known:
            corpus.skip(f"device {device} is not in the catalog")
            continue
        try:
            priced = _price(source, device, (row.get("dtype") or "fp16").strip(), mode)
        except FuseledgerError as error:
            corpus.skip(f"{source}: {error}")
            continue
        setting = Setting(device=load(device), mode=mode)
        corpus.rows.append(
            Measured(
                corpus=path.name, problem=source, name=source, setting=setting,
                run=f"{source} {device}", class_=priced.kind, kernels=(), time_us=time_us,
                fused=mode == "fused", priced_us=priced.time_us, bar=priced.bar,
            )
        )  # fmt: skip
    return corpus


def _time(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise CorpusError(f"{path}:{line}: time_us {text!r} is no time above 0")
    return value


class _Priced(Struct, frozen=True):
    """What the clock of `plan` says of a row, and how far off it is held to be."""

    time_us: float
    kind: str
    bar: tuple[float, float] | None


def _price(source: str, device: str, dtype: str, mode: str) -> _Priced:
    from fuseledger.clock.error_bars import bars_of
    from fuseledger.devices import load as load_device
    from fuseledger.frontends.source import load
    from fuseledger.planner.plan import make_plan, plan_of_groups

    graph = load(source, dtype=dtype)
    gpu = load_device(device)
    if mode == "eager":
        planned = plan_of_groups(graph, gpu, [(i,) for i in range(len(graph.ops))])
    else:
        planned = make_plan(graph, gpu)
    found = bars_of(graph)
    kind, bar = "declared", None
    if found is not None:
        kind = found[0]
        bar = found[2].get("one kernel an op" if mode == "eager" else "plan")
    return _Priced(planned.totals.time_us, kind, (bar.median, bar.p90) if bar else None)
