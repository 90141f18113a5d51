"""A plan as a folder of code: kernels, launcher, test. What has no code is named, not guessed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fuseledger.devices import Device
from fuseledger.errors import CannotEmit
from fuseledger.graph.graph import Graph
from fuseledger.ledger.account import ACCOUNTS, Account, format_bytes, format_count, format_kib
from fuseledger.ledger.ledger import KernelLedger
from fuseledger.triton.emit import (
    EmitOptions,
    EmittedKernel,
    emit_combine,
    emit_kernel,
    kernel_name,
    module_source,
)
from fuseledger.triton.interpret import TORCH_DTYPES
from fuseledger.triton.partials import folded_tensors, partials_of
from fuseledger.triton.scope import Names, identifier

COMMENT_WIDTH = 96


class Emission(Struct, frozen=True, kw_only=True):
    """One planned kernel and its code, or why it has none."""

    ledger: KernelLedger
    kernel: EmittedKernel | None
    missing: str = ""
    combine: EmittedKernel | None = None
    """Merges the parts that the kernel leaves, where the plan has a launch for it."""

    @property
    def code(self) -> tuple[EmittedKernel, ...]:
        """What is launched, in order."""
        return tuple(each for each in (self.kernel, self.combine) if each is not None)


def emit_plan(
    graph: Graph, ledgers: Sequence[KernelLedger], device: Device,
    options: EmitOptions | None = None,
) -> list[Emission]:  # fmt: skip
    """Every kernel of a plan as code for a device, in order; names are unique."""
    names = Names()
    found: list[Emission] = []
    folded = folded_tensors(graph, [ledger.kernel for ledger in ledgers])
    for ledger in ledgers:
        name = names.new(kernel_name(graph, ledger.kernel))
        try:
            kernel = emit_kernel(
                graph, ledger.kernel, name=name, header=header_of(ledger), options=options,
                folded=folded, in_flight=(device.sm_count or 0) * ledger.price.blocks_per_sm,
            )  # fmt: skip
            combine = _combine(graph, ledger, names.new(f"{name}_combine"), options)
        except CannotEmit as error:
            found.append(Emission(ledger=ledger, kernel=None, missing=str(error)))
        else:
            found.append(Emission(ledger=ledger, kernel=kernel, combine=combine))
    return found


def _combine(
    graph: Graph, ledger: KernelLedger, name: str, options: EmitOptions | None
) -> EmittedKernel | None:
    partials = partials_of(graph, ledger.kernel)
    if not any(partial.is_combined for partial in partials.values()):
        return None
    return emit_combine(graph, ledger.kernel, name=name, options=options)


def header_of(ledger: KernelLedger) -> tuple[str, ...]:
    """A kernel's ledger in comment lines."""
    schedule = ledger.kernel.schedule
    lines = [
        f"{ledger.label}: {schedule}, {schedule.warps} warps, {schedule.pipeline.stages} stages",
        *(_account_line(name, ledger.accounts[name]) for name in ACCOUNTS),
        *_placed(ledger),
        *_merged(ledger),
    ]
    return tuple(
        line
        for text in lines
        for line in textwrap.wrap(text, COMMENT_WIDTH, subsequent_indent="    ")
    )


def _placed(ledger: KernelLedger) -> list[str]:
    """What the plan holds in shared memory, which Triton does not let code say."""
    held = [item.name for item in ledger.price.held if item.holder == "shared memory"]
    if not held:
        return []
    names = ", ".join(held)
    return [f"planned in shared memory: {names}; Triton places tiles itself, and may spill them"]


def _merged(ledger: KernelLedger) -> list[str]:
    """What the plan does in the kernel that the code leaves to a second one."""
    if ledger.kernel.schedule.merge != "last block":
        return []
    return [
        "planned: the last block of each tile merges its parts; that is not emitted, a second "
        "kernel merges them here, and compiled figures are of the kernel without the merge"
    ]


def _account_line(name: str, account: Account) -> str:
    show = {"traffic": format_bytes, "epilogue": format_bytes, "capacity": format_kib}
    value = show.get(name, format_count)(account.value)
    return f"{name} ({account.provenance}): {value}: {account.derivation}"


def package_files(
    graph: Graph, emissions: Sequence[Emission], *, source: str, dtype: str,
    dims: Mapping[str, int], ledger_json: str,
) -> dict[str, str]:  # fmt: skip
    """File name → text of the package."""
    kernels = [kernel for each in emissions for kernel in each.code]
    summary = f"Kernels of {_one_line(source)}, as fuseledger plans them."
    return {
        "kernels.py": module_source(kernels, summary),
        "launcher.py": launcher_source(graph, emissions, source),
        "test_kernels.py": _test_source(source, dtype, dims),
        "ledger.json": ledger_json,
    }


def launcher_source(graph: Graph, emissions: Sequence[Emission], source: str) -> str:
    """The module that launches every kernel in order."""
    kernels = [kernel for each in emissions for kernel in each.code]
    missing = [
        f"{each.ledger.name} {each.ledger.label}: {each.missing}"
        for each in emissions
        if each.kernel is None
    ]
    lines = [
        f'"""Launches the kernels of {_one_line(source)} in order."""',
        "",
        "import torch",
    ]
    if kernels:
        lines += ["", "from kernels import (", *(f"    {k.name}," for k in kernels), ")"]
    lines += ["", "MISSING = ["]
    lines += [f"    {text!r}," for text in missing]
    lines += ["]", '"""Planned kernels that have no code, and why."""', ""]
    for kernel in kernels:
        lines += ["", *_launch_function(kernel), ""]
    lines += ["", *_run_function(graph, emissions)]
    return "\n".join(lines) + "\n"


def _launch_function(kernel: EmittedKernel) -> list[str]:
    arguments = [identifier(tensor) for _, tensor in kernel.parameters]
    constants = "".join(f"\n        {name}={v!r}," for name, v in kernel.constants.items())
    return [
        f"def launch_{kernel.name}({', '.join(arguments)}):",
        f'    """{kernel.blocks:,} blocks; writes {", ".join(kernel.outputs)}."""',
        f"    {kernel.name}[({kernel.blocks},)](",
        *(f"        {argument}," for argument in arguments),
        f"        # sizes and tiles{constants}" if constants else "        # no constants",
        f"        num_warps={kernel.warps}, num_stages={kernel.stages},",
        "    )",
    ]


def _run_function(graph: Graph, emissions: Sequence[Emission]) -> list[str]:
    lines = [
        "def run(inputs):",
        '    """All tensors by name, given the inputs and weights by name, contiguous."""',
        "    if MISSING:",
        '        raise NotImplementedError("; ".join(MISSING))',
        "    tensors = dict(inputs)",
        "    device = next(iter(tensors.values())).device",
    ]
    for kernel in (kernel for each in emissions for kernel in each.code):
        for name in kernel.outputs:
            shape, dtype = _space(graph, kernel, name)
            lines.append(
                f"    tensors[{name!r}] = torch.empty("
                f"{shape}, dtype=torch.{TORCH_DTYPES[dtype]}, device=device)"
            )
        arguments = ", ".join(f"tensors[{tensor!r}]" for _, tensor in kernel.parameters)
        lines.append(f"    launch_{kernel.name}({arguments})")
    return [*lines, "    return tensors"]


def _space(graph: Graph, kernel: EmittedKernel, name: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of what a kernel writes."""
    if name in kernel.buffers:
        return kernel.buffers[name], "fp32"
    return graph.tensors[name].shape, graph.tensors[name].dtype


def _test_source(source: str, dtype: str, dims: Mapping[str, int]) -> str:
    return f'''"""The kernels against their graph's float64 meaning, on a GPU or interpreted."""

import os

import pytest

torch = pytest.importorskip("torch")

from fuseledger.frontends.source import load  # noqa: E402
from fuseledger.graph.evaluate import evaluate  # noqa: E402
from fuseledger.triton.check import error_bound, random_input, to_torch  # noqa: E402
from launcher import MISSING, run  # noqa: E402

SOURCE = {source!r}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.skipif(bool(MISSING), reason="some planned kernels have no code")
@pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="no GPU: set TRITON_INTERPRET=1"
)
def test_outputs_are_those_of_the_graph():
    """Every output agrees with the graph's float64 evaluation within its rounding bound."""
    graph = load(SOURCE, dtype={dtype!r}, dims={dict(dims)!r})
    external = [name for name in graph.consumers if graph.tensors[name].is_external]
    given = {{name: random_input(graph, name, seed=i) for i, name in enumerate(external)}}
    expected = evaluate(graph, given, keep=True)
    inputs = {{name: to_torch(graph, name, given[name]).to(DEVICE) for name in external}}
    found = run(inputs)
    for name in graph.outputs:
        off = abs(found[name].to(torch.float64).cpu().numpy() - expected[name])
        assert (off <= error_bound(graph, name, expected)).all(), name
'''


def _one_line(source: str) -> str:
    return " ".join(source.replace("\\", "/").replace('"', "'").split())
