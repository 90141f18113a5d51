"""The planning behind `emit`, `compile` and `check-numerics`, whose work starts from a plan."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from fuseledger.cli.options import PlanRequest

if TYPE_CHECKING:
    from fuseledger.planner.plan import Planned


def plan_kernels(request: PlanRequest) -> Planned:
    """Read the source and plan it, by its one cut where one is given."""
    from fuseledger.cli.progress import announce_code
    from fuseledger.devices import load as load_device
    from fuseledger.frontends.source import load
    from fuseledger.planner.plan import cut_groups, make_plan, plan_of_groups

    if len(request.cut) > 1:
        raise click.UsageError("give one cut, not several")
    device = load_device(request.device)
    options = request.options
    announce_code(request.source, quiet=request.quiet)
    with redirect_stdout(sys.stderr):  # what a module prints is no part of the report
        graph = load(request.source, dtype=request.dtype, dims=request.dim)
    if request.cut:
        return plan_of_groups(graph, device, cut_groups(graph, request.cut[0]), options)
    return make_plan(graph, device, options)
