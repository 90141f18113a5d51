"""`fuseledger check-numerics`: do the emitted kernels compute what the graph means?"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from fuseledger.cli.options import SOURCE_HELP, PlanRequest, deliver, plan_options
from fuseledger.cli.planned import plan_kernels

if TYPE_CHECKING:
    from fuseledger.triton.check import Checked

SCHEMA = "fuseledger/check@1"


@click.command("check-numerics", epilog=SOURCE_HELP)
@partial(plan_options, forms=("text", "json"))
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
def command(format_: str, output: str | None, seed: int, **given: Any) -> int:
    """Run the planned kernels in Triton's interpreter and compare with float64.

    Shapes are small and of the same structure. The bytes that the interpreter loads and stores
    stand beside those of the traffic account. Exits with 1 where a kernel computes a wrong value;
    a kernel that cannot be emitted or checked says why and fails nothing.
    """
    from fuseledger.cli.progress import Progress
    from fuseledger.triton.check import check_kernels

    request = PlanRequest(**given)
    with Progress(quiet=request.quiet) as progress:
        progress.step("planning")
        planned = plan_kernels(request)
        progress.step(f"checking {len(planned.kernels)} kernels")
        pairs = [(ledger.name, ledger.kernel) for ledger in planned.kernels]
        checked = check_kernels(planned.graph, pairs, seed=seed)
    labels = {ledger.name: ledger.label for ledger in planned.kernels}
    if format_ == "json":
        rows = [_row(each, labels[each.name]) for each in checked]
        text = json.dumps({"schema": SCHEMA, "seed": seed, "kernels": rows}, indent=2) + "\n"
    else:
        text = _text(checked, labels, output)
    deliver(text, output)
    return int(any(each.outcome == "fail" for each in checked))


def _row(each: Checked, label: str) -> dict[str, Any]:
    row: dict[str, Any] = {**to_builtins(each), "label": label}
    if each.traffic is not None:
        row["traffic"]["is_equal"] = each.traffic.is_equal
    return row


def _text(checked: list[Checked], labels: dict[str, str], output: str | None) -> str:
    from fuseledger.cli.terminal import page
    from fuseledger.report.layout import Column, Row

    columns = (
        Column("kernel"), Column("ops", wraps=True), Column("outcome"),
        Column("error / bound", "right"), Column("bytes: account", "right"),
        Column("interpreted", "right"), Column("requested", "right"),
    )  # fmt: skip
    rows = [
        Row(
            (
                each.name, labels[each.name], each.outcome,
                "–" if each.error is None else f"{each.error:.2g}", *_bytes(each),
            ),
            note="; ".join(filter(None, (each.reason, *_differences(each)))),
        )
        for each in checked
    ]  # fmt: skip
    report = page(output)
    report.table(columns, rows)
    tally = Counter(each.outcome for each in checked)
    report.blank()
    report.line(", ".join(f"{count} {outcome}" for outcome, count in tally.items()))
    counted = [each.traffic for each in checked if each.traffic is not None]
    if counted:
        equal = sum(each.is_equal for each in counted)
        report.line(f"bytes before L2 as the account says: {equal} of {len(counted)} kernels")
    return report.text()


def _differences(each: Checked) -> tuple[str, ...]:
    return each.traffic.differences if each.traffic is not None else ()


def _bytes(each: Checked) -> tuple[str, str, str]:
    if each.traffic is None:
        return ("–", "–", "–")
    return (
        f"{each.traffic.account:,}",
        f"{each.traffic.interpreted:,}",
        f"{each.traffic.requested:,}",
    )
