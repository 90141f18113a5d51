"""`fuseledger plan`: which ops should share a kernel, and the ledger of every kernel."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from fuseledger.cli.evidence import evidence_option
from fuseledger.cli.options import (
    FORMS,
    SOURCE_HELP,
    PlanRequest,
    deliver,
    parse_cuts,
    plan_options,
    plan_source,
)


@click.command("plan", epilog=SOURCE_HELP)
@partial(plan_options, forms=(*FORMS, "html"))
@evidence_option
@click.option("--cuts", metavar="4/1,3/2,2", callback=parse_cuts,
              help="Price several cuts side by side, and show the best one's ledger.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Every kernel and cut in a row of its own.")
def command(
    format_: str, output: str | None, everything: bool, cut: list[list[int]],
    cuts: list[list[int]], **given: Any,
) -> None:  # fmt: skip
    """Which ops should share a kernel, and the ledger of every kernel."""
    if cut and cuts:
        raise click.UsageError("give --cut or --cuts, not both")
    request = PlanRequest(cut=cut or cuts, **given)
    document = plan_source(request, complete=format_ == "json")
    if format_ == "json":
        from fuseledger.report.document import to_json

        text = to_json(document)
    else:
        from fuseledger.report.summary import summarise

        summary = summarise(document, everything=everything)
        if format_ == "md":
            from fuseledger.report.markdown import plan_markdown

            text = plan_markdown(summary)
        elif format_ == "html":
            from fuseledger.report.html import plan_html

            text = plan_html(document, summary)
        else:
            from fuseledger.cli.terminal import page
            from fuseledger.report.text import plan_text

            text = plan_text(summary, page(output))
    deliver(text, output)
