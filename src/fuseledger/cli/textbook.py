"""`fuseledger textbook`: the two reference exercises, reproduced to the digit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fuseledger.cli.options import deliver, format_option, output_option, parse_cuts
from fuseledger.cli.parse import Count, positive, sizes

if TYPE_CHECKING:
    from fuseledger.report.textbook import ChainPart
    from fuseledger.textbook.chain import Stage

CUTS = "1,1,1,1/1,3/2,2/4"
SIZES = (4096, 4096, 4096), (16, 4096, 4096)


@click.group("textbook", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """The two reference exercises, reproduced to the digit."""
    if context.invoked_subcommand is None:
        context.invoke(chain, cuts=parse_cuts(context, chain.params[1], CUTS))
        click.echo()
        context.invoke(ledger)


@command.command("chain")
@click.option(
    "--size",
    callback=sizes("MKN"),
    metavar="MxKxN",
    help="Size of the GEMM; both of the exercise's where not given.",
)
@click.option(
    "--cuts",
    default=CUTS,
    show_default=True,
    metavar="1,3/4",
    callback=parse_cuts,
    help="Cuts to list: lengths of the kernels.",
)
@format_option()
@output_option
def chain(size: tuple[int, int, int] | None, cuts: list[list[int]], format_: str,
          output: str | None) -> None:  # fmt: skip
    """A GEMM, bias, GELU and residual in every cut, and a chain that fusing slows down."""
    from fuseledger.cli.terminal import page
    from fuseledger.report.textbook import chain_document, chain_markdown, chain_text, textbook_json
    from fuseledger.textbook.chain import chain_mlp_epilogue, chain_that_spills

    chains: list[ChainPart] = []
    for m, k, n in (size,) if size else SIZES:
        chains.append(
            _priced(f"mm + bias + gelu + residual, {m}×{k}×{n}", chain_mlp_epilogue(m, k, n), cuts)
        )
    if size is None:
        title = "two stages of 200 and 100 registers, 2²⁶ elements, spill penalty 3"
        source = "the source prints 1.81 ms for [2]; its own formula gives 1.803"
        chains.append(_priced(title, chain_that_spills(), [[1, 1], [2]], source))
    document = chain_document("textbook", chains)
    if format_ == "text":
        sheet = page(output)
        chain_text(document, sheet)
        text = sheet.text()
    else:
        text = textbook_json(document) if format_ == "json" else chain_markdown(document)
    deliver(text, output)


def _priced(title: str, stages: tuple[Stage, ...], cuts: list[list[int]], *notes: str) -> ChainPart:
    from fuseledger.devices import load
    from fuseledger.planner.compare import compare_cuts
    from fuseledger.planner.plan import cut_groups, make_plan, plan_of_groups
    from fuseledger.report.textbook import chain_part
    from fuseledger.textbook.chain import chain_graph

    device = load("textbook")
    graph = chain_graph(stages)
    plans = [plan_of_groups(graph, device, cut_groups(graph, cut)) for cut in cuts]
    best = make_plan(graph, device)
    lengths = [len(kernel.ops) for kernel in best.plan.kernels]
    return chain_part(title, compare_cuts(plans), lengths, best.totals.time_us, notes)


@command.command("ledger")
@click.option(
    "--bandwidth-gbs",
    callback=positive,
    metavar="GB/S",
    help="Bandwidth of device memory; 4502.4 if not given.",
)
@click.option(
    "--sm-count",
    type=Count(min=1, max=10**9),
    metavar="COUNT",
    help="SMs of the machine; 132 if not given.",
)
@format_option()
@output_option
def ledger(bandwidth_gbs: float | None, sm_count: int | None, format_: str,
           output: str | None) -> None:  # fmt: skip
    """Six decisions, fuse or split, each from the shapes that the exercise states."""
    from fuseledger.cli.terminal import page
    from fuseledger.report.decision import decide_document
    from fuseledger.report.textbook import (
        ledger_document,
        ledger_markdown,
        ledger_text,
        textbook_json,
    )
    from fuseledger.textbook.ledger import ledger_device, six_decisions

    given: dict[str, Any] = {"bandwidth_gbs": bandwidth_gbs, "sm_count": sm_count}
    device = ledger_device(**{name: value for name, value in given.items() if value is not None})
    document = ledger_document([decide_document(decision) for decision in six_decisions(device)])
    if format_ == "text":
        sheet = page(output)
        ledger_text(document, sheet)
        text = sheet.text()
    else:
        text = textbook_json(document) if format_ == "json" else ledger_markdown(document)
    deliver(text, output)
