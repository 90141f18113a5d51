"""`fuseledger compare`: our plan beside those of other systems, in one ledger."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from fuseledger.cli.options import SOURCE_HELP, deliver, plan_options

if TYPE_CHECKING:
    from fuseledger.report.compare import CompareDocument

PEERS = ("eager", "inductor", "xla")


def _peers(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}: one or more of {', '.join(PEERS)}")
    return names


@click.command("compare", epilog=SOURCE_HELP)
@plan_options
@click.option("--peers", callback=_peers, metavar="NAME,…",
              help=f"Systems to ask: {', '.join(PEERS)}. [default: those that are installed]",
              )  # fmt: skip
@click.option("--peer-time-limit", default=120.0, show_default=True, metavar="SECONDS",
              type=click.FloatRange(min=1.0), help="Most time that a peer may take.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Every difference.")
def command(
    format_: str, output: str | None, everything: bool, peers: tuple[str, ...] | None,
    peer_time_limit: float, **given: Any,
) -> None:  # fmt: skip
    """Our plan beside those that other systems would run, and who moves fewer bytes.

    TorchInductor and XLA plan for the device in processes of their own; no GPU is needed.
    """
    document = _compare(peers, peer_time_limit, **given)
    if format_ == "json":
        from fuseledger.report.compare import to_json

        text = to_json(document)
    elif format_ == "md":
        from fuseledger.report.compare_text import compare_markdown

        text = compare_markdown(document, everything=everything)
    else:
        from fuseledger.cli.terminal import page
        from fuseledger.report.compare_text import compare_text

        text = compare_text(document, page(output), everything=everything)
    deliver(text, output)


def _compare(
    peers: tuple[str, ...] | None, peer_limit: float, *, source: str, device: str, dtype: str,
    dim: dict[str, int], cut: list[list[int]], optimise: Any, launch: Any, tf32: bool,
    time_limit: float, quiet: bool,
) -> CompareDocument:  # fmt: skip
    from fuseledger.cli.progress import Progress, announce_code
    from fuseledger.devices import load as load_device
    from fuseledger.errors import MissingExtra
    from fuseledger.peers.eager_peer import eager_peer
    from fuseledger.peers.inductor import inductor_plan
    from fuseledger.peers.peer import PeerPlan
    from fuseledger.peers.priced import price
    from fuseledger.peers.program import read_program
    from fuseledger.peers.xla import xla_plan
    from fuseledger.planner.plan import PlanOptions, cut_groups, make_plan, plan_of_groups
    from fuseledger.report.compare import compare_document
    from fuseledger.verdict.edges import edge_verdicts

    gpu = load_device(device)
    options = PlanOptions(objective=optimise, launch=launch, tf32=tf32, time_limit_s=time_limit)
    announce_code(source, quiet=quiet)
    if len(cut) > 1:
        raise click.UsageError("give one cut")
    with Progress(quiet=quiet) as progress:
        progress.step("reading")
        with redirect_stdout(sys.stderr):  # what a module prints is no part of the report
            program = read_program(source, dtype=dtype, dims=dim)
        graph = program.graph
        progress.step(f"planning {len(graph.ops):,} ops")
        if cut:
            ours = plan_of_groups(graph, gpu, cut_groups(graph, cut[0]), options)
        else:
            ours = make_plan(graph, gpu, options, step=progress.step)
        answers = {
            "inductor": lambda: inductor_plan(
                source, gpu, dtype=dtype, dims=dim, time_limit_s=peer_limit
            ),
            "xla": lambda: xla_plan(source, gpu, dtype=dtype, dims=dim, time_limit_s=peer_limit),
            "eager": lambda: eager_peer(program),
        }
        priced: list[Any] = []
        for name in peers or PEERS:
            progress.step(f"asking {name}")
            try:
                plan = answers[name]()
            except MissingExtra as missing:
                if peers is not None:
                    raise
                plan = PeerPlan(name=name, version=None, status="unavailable", reason=str(missing))
            priced.append(price(program, plan, ours))
        progress.step("explaining")
        verdicts = edge_verdicts(ours)
    return compare_document(ours, priced, verdicts, source=source)
