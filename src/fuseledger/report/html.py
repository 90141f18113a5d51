"""The report of a plan as one HTML file: no script, nothing loaded, light or dark as the reader."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fuseledger.errors import MissingExtra
from fuseledger.report.document import kernel_document
from fuseledger.report.explain import (
    account_rows,
    axis_rows,
    clock_rows,
    clock_title,
    schedule_words,
)
from fuseledger.report.figures import bytes_words, has_schedule, time_words

if TYPE_CHECKING:
    from fuseledger.report.document import PlanDocument
    from fuseledger.report.summary import KernelRow, Summary


class KernelDetail(Struct, frozen=True, kw_only=True):
    """A row of the ledger, its share of the plan's time, and what stands behind it."""

    row: KernelRow
    share: float
    """Of the plan's time, in per cent."""
    ops: str
    accounts: list[tuple[str, str, str, str]]
    """Name, value, provenance, derivation."""
    schedule: str
    """Empty where the kernel has none."""
    axes: list[tuple[str, str, str]]
    clock_title: str
    clock: list[tuple[str, str, str]]


class Bar(Struct, frozen=True, kw_only=True):
    """A quantity beside those that it is compared with."""

    name: str
    words: str
    share: float
    """Of the largest, in per cent."""


def plan_html(document: PlanDocument, summary: Summary) -> str:
    """The report; raises MissingExtra without jinja2."""
    try:
        jinja2: Any = import_module("jinja2")
    except ImportError:
        raise MissingExtra("report", "jinja2") from None
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = files("fuseledger.report").joinpath("plan.html.jinja").read_text("utf-8")
    return environment.from_string(template).render(
        document=document,
        summary=summary,
        kernels=[_detail(document, row) for row in summary.kernels],
        moved=_bytes_bars(document),
        taken=_time_bars(document),
    )


def _detail(document: PlanDocument, row: KernelRow) -> KernelDetail:
    explained = kernel_document(document, row.number)
    kernel = explained.kernel
    return KernelDetail(
        row=row,
        share=100 * row.total_us / max(document.plan.totals.time_us, 1e-9),
        ops=", ".join(kernel.ops),
        accounts=account_rows(explained),
        schedule=schedule_words(kernel) if has_schedule(kernel) else "",
        axes=axis_rows(kernel.schedule),
        clock_title=clock_title(kernel.time),
        clock=clock_rows(kernel, document.device),
    )


def _bytes_bars(document: PlanDocument) -> list[Bar]:
    counts = {
        "one kernel an op": document.baseline.bytes,
        "this plan": document.plan.totals.bytes,
        "floor": document.graph.floor_bytes,
    }
    largest = max(*counts.values(), 1)
    return [Bar(name=n, words=bytes_words(c), share=100 * c / largest) for n, c in counts.items()]


def _time_bars(document: PlanDocument) -> list[Bar]:
    times = {
        "one kernel an op": document.baseline.time_us,
        "this plan": document.plan.totals.time_us,
    }
    largest = max(*times.values(), 1e-9)
    return [Bar(name=n, words=time_words(t), share=100 * t / largest) for n, t in times.items()]
