from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.planner.plan import make_plan
from fuseledger.report.build import plan_document
from fuseledger.report.document import KernelDocument, PlanDocument, kernel_document, to_json
from fuseledger.verdict.edges import edge_verdicts

SOURCES = [
    "gemm(4096,4096,4096) + bias + gelu + residual",
    "x[8192,4096] | rms_norm | linear(12288) | swiglu | quantise(fp8)",
    "attention(q[1,8,512,64], k[1,8,512,64], v[1,8,512,64], causal=true)",
    "sort(x[64,64])",
]


def _document(source: str, device: str = "h100-sxm") -> PlanDocument:
    planned = make_plan(load(source), load_device(device))
    return plan_document(
        planned, source=source, load_seconds=0.5, verdicts=edge_verdicts(planned)
    )  # fmt: skip


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, float | int):
        yield value


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("device", ["h100-sxm", "mi300x", "textbook"])
def test_written_json_has_the_documented_form(source: str, device: str) -> None:
    """What is written reads back strictly into the structs, and is the same document."""
    document = _document(source, device)
    assert msgspec.json.decode(to_json(document), type=PlanDocument, strict=True) == document


@pytest.mark.parametrize("source", SOURCES)
def test_every_number_is_finite(source: str) -> None:
    """No NaN or infinity is written: Python's own reader, told to refuse them, accepts it."""

    def refuse(name: str) -> float:
        raise AssertionError(name)

    read = json.loads(to_json(_document(source)), parse_constant=refuse)
    assert all(math.isfinite(number) for number in _numbers(read))


@pytest.mark.parametrize("source", SOURCES)
def test_totals_are_sums_over_the_kernels(source: str) -> None:
    """Bytes, launches and time of the plan add up from its kernels, whose ops are the graph's."""
    document = _document(source)
    kernels, totals = document.plan.kernels, document.plan.totals
    assert totals.kernels == len(kernels)
    assert totals.bytes == sum(kernel.accounts.traffic.value for kernel in kernels)
    assert totals.launches == sum(kernel.accounts.launches.value for kernel in kernels)
    assert totals.time_us == pytest.approx(sum(kernel.time_us for kernel in kernels))
    assert sorted(name for kernel in kernels for name in kernel.ops) == sorted(
        op.name for op in document.graph.ops
    )


def test_time_is_the_sum_of_its_terms() -> None:
    """A kernel's time is launch + the greatest term + latency + spill."""
    for kernel in _document(SOURCES[1]).plan.kernels:
        time = kernel.time
        greatest = max(term.time_us for term in time.terms)
        expected = time.launch_us + greatest + time.latency_us + time.spill_us + time.combine_us
        assert kernel.time_us == pytest.approx(expected)


def test_floor_and_baseline_of_the_textbook_chain() -> None:
    """4096³ in fp16: four matrices and a bias once, against one round trip a stage.

    A matrix is 2·4096² = 33,554,432 bytes and the bias 8,192. One kernel an op moves 3 + 2 + 2 + 3
    matrices and the bias.
    """
    document = _document(SOURCES[0])
    assert document.graph.floor_bytes == 4 * 33_554_432 + 8_192
    assert document.baseline.bytes == 10 * 33_554_432 + 8_192


def test_an_explained_kernel_brings_the_edges_of_its_ops() -> None:
    """The document of one kernel holds every verdict with an end in it and no other."""
    document = _document(SOURCES[1])
    for number, kernel in enumerate(document.plan.kernels, start=1):
        explained = kernel_document(document, number)
        assert explained.kernel == kernel
        assert explained.verdicts == [v for v in document.verdicts if kernel.name in v.kernels]
        assert msgspec.json.decode(to_json(explained), type=KernelDocument) == explained
