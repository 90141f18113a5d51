"""`fuseledger explain`: every account of one kernel, and why its edges were cut or fused."""

from __future__ import annotations

from typing import Any

import click

from fuseledger.cli.evidence import evidence_option
from fuseledger.cli.options import SOURCE_HELP, PlanRequest, deliver, plan_options, plan_source
from fuseledger.cli.parse import Count
from fuseledger.errors import KernelError


@click.command("explain", epilog=SOURCE_HELP)
@plan_options
@evidence_option
@click.option("--kernel", required=True, type=Count(min=1), metavar="NUMBER",
              help="Number of the kernel in the plan, from 1.")  # fmt: skip
def command(format_: str, output: str | None, kernel: int, **given: Any) -> None:
    """Every account of one kernel, and why its edges were cut or fused."""
    from fuseledger.report.document import kernel_document, to_json

    plan = plan_source(PlanRequest(**given), kernel)
    count = len(plan.plan.kernels)
    if kernel > count:
        there = f"kernels 1 to {count}" if count > 1 else "one kernel" if count else "no kernel"
        raise KernelError(f"kernel {kernel}: the plan of {plan.graph.name} has {there}")
    document = kernel_document(plan, kernel)
    if format_ == "json":
        text = to_json(document)
    elif format_ == "md":
        from fuseledger.report.markdown import explain_markdown

        text = explain_markdown(document)
    else:
        from fuseledger.cli.terminal import page
        from fuseledger.report.explain import explain_text

        text = explain_text(document, page(output))
    deliver(text, output)
