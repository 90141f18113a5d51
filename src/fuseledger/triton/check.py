"""The numbers of emitted kernels: Triton's interpreter against the graph's float64 evaluator.

Every kernel runs on small shapes of its own structure (`shrink.py`), with its outputs poisoned.
The bound on its error follows from the dtypes and from how many terms it adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from math import prod, sqrt
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from fuseledger.errors import CannotEmit, MissingExtra
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.scalar import Call
from fuseledger.graph.tensor import Tensor, is_float
from fuseledger.ledger.kernel import Kernel
from fuseledger.ledger.nest import analyse
from fuseledger.triton.check_parts import merge, random_parts, small_partial
from fuseledger.triton.check_random import drawn, is_normal
from fuseledger.triton.emit import EmitOptions, emit_combine, emit_kernel, module_source
from fuseledger.triton.emit_body import Crowded
from fuseledger.triton.interpret import TOO_LONG
from fuseledger.triton.partials import Partial, buffer_of, folded_tensors, partials_of
from fuseledger.triton.shrink import SMALL_DEPTH, shrink
from fuseledger.triton.traffic import Bytes, Traffic, compared, tiled_traffic

Outcome = Literal["pass", "fail", "cannot emit", "not checked"]

UNIT_ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8,
    "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3,
}  # fmt: skip
"""Half a unit in the last place, relative."""
SMALL = EmitOptions(
    loop_points=32, step_points=32, block_elements=64, whole_depth=SMALL_DEPTH, held_elements=512
)
"""So that small shapes loop where the planned ones do."""
IN_FLIGHT = 4
"""Blocks that run at once of a small grid: its three rows of tiles go in groups of two."""
TIMEOUT_S = 120.0
"""Processor time that the interpreter may take for one kernel."""
PATIENCE = 10.0
"""Times as much that may pass on a busy machine before the interpreter counts as hung."""
TRUE_SHARE = 0.9
"""Of random truth values: masks that leave something of most rows."""
LARGEST_INTEGER = 100
"""Random integers that nothing is looked up by are smaller."""
SAFETY = 8.0
"""Roundings of one value on its way through a kernel, beside those of its sums."""


class Checked(Struct, frozen=True, kw_only=True):
    """What the check of one kernel found."""

    name: str
    outcome: Outcome
    reason: str = ""
    error: float | None = None
    """Largest error over its bound: at most 1 where the kernel passes."""
    traffic: Traffic | None = None
    """Bytes that the account says and that the interpreter counted, on the checked shape."""


class _Job(Struct, frozen=True, kw_only=True):
    name: str
    folder: Path
    outputs: tuple[str, ...]
    inputs: dict[str, Any]
    bounds: dict[str, Any]
    expected: dict[str, Any]
    account: tuple[Bytes, Bytes]


def check_kernels(
    graph: Graph, kernels: Sequence[tuple[str, Kernel]], *, plan: Sequence[Kernel] | None = None,
    seed: int = 0, timeout_s: float = TIMEOUT_S,
) -> list[Checked]:  # fmt: skip
    """Check kernels of a graph, in order; a crash of the interpreter fails one kernel.

    `plan` has all kernels where these are some of them: others may leave parts for these to merge.
    """
    _need_torch()
    folded = folded_tensors(graph, plan or [kernel for _, kernel in kernels])
    return _check([(graph, kernels, folded)], seed, timeout_s)[0]


def check_graphs(
    plans: Sequence[tuple[Graph, Sequence[tuple[str, Kernel]]]], *, seed: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> list[list[Checked]]:  # fmt: skip
    """Check all kernels of several plans in one interpreter."""
    _need_torch()
    whole = [(g, pairs, folded_tensors(g, [k for _, k in pairs])) for g, pairs in plans]
    return _check(whole, seed, timeout_s)


def _check(
    plans: Sequence[tuple[Graph, Sequence[tuple[str, Kernel]], Mapping[str, Partial]]],
    seed: int,
    timeout_s: float,
) -> list[list[Checked]]:
    with tempfile.TemporaryDirectory(prefix="fuseledger-check-") as place:
        found: list[list[Checked | _Job]] = []
        for position, (graph, kernels, folded) in enumerate(plans):
            stems = [Path(place) / f"{position}-{number}" for number in range(len(kernels))]
            found.append(
                [
                    _prepared(graph, kernel, name, stem, seed, folded)
                    for (name, kernel), stem in zip(kernels, stems, strict=True)
                ]
            )
        jobs = [each for row in found for each in row if isinstance(each, _Job)]
        _interpret([job.folder for job in jobs], timeout_s)
        return [[_judge(each) if isinstance(each, _Job) else each for each in row] for row in found]


def _prepared(
    graph: Graph, kernel: Kernel, name: str, folder: Path, seed: int,
    folded: Mapping[str, Partial],
) -> Checked | _Job:  # fmt: skip
    try:
        return _prepare(graph, kernel, name, folder, seed, folded)
    except CannotEmit as error:
        return Checked(name=name, outcome="cannot emit", reason=str(error))
    except _NotChecked as error:
        return Checked(name=name, outcome="not checked", reason=str(error))


class _NotChecked(Exception):
    """No small shapes, or no finite reference."""


def _need_torch() -> None:
    from importlib.util import find_spec

    for package, extra in (("triton", "triton"), ("torch", "torch")):
        if find_spec(package) is None:
            raise MissingExtra(extra, package)


def _prepare(
    graph: Graph, kernel: Kernel, name: str, folder: Path, seed: int,
    folded: Mapping[str, Partial],
) -> _Job:  # fmt: skip
    import numpy as np

    real = emit_kernel(graph, kernel, folded=folded)  # what cannot be emitted says so
    planned: dict[int, Crowded] = {kernel.ops.index(i): how for i, how in real.crowded.items()}
    try:
        small, schedule = shrink(graph, kernel)
    except CannotEmit as error:
        raise _NotChecked(str(error)) from error
    rng = np.random.default_rng(seed)
    external = analyse(small, schedule.ops).external
    inputs = {t: _random(small, small.tensors[t], rng) for t in external}
    for tensor in _positive(graph, external):
        inputs[tensor] = rounded(np.abs(inputs[tensor]) + 0.5, small.tensors[tensor].dtype)
    arriving = {t: small_partial(p) for t, p in folded.items() if t in external}
    buffers: dict[str, Any] = {}
    for partial in {p.results: p for p in arriving.values()}.values():
        shape = next(small.tensors[t].shape for t in partial.results if t in external)
        parts = random_parts(partial, shape, rng)
        buffers |= {buffer_of(t): part for t, part in zip(partial.results, parts, strict=True)}
        merged = merge(partial, parts)
        inputs |= {t: m for t, m in zip(partial.results, merged, strict=True) if t in external}
    emitted = emit_kernel(
        small, schedule, options=SMALL, folded=arriving, in_flight=IN_FLIGHT, planned=planned
    )
    launches = [emitted]
    if partials_of(small, schedule):
        combine = f"{emitted.name}_combine"
        launches.append(emit_combine(small, schedule, name=combine, options=SMALL))
    if is_normal(small):
        raise _NotChecked("normal random numbers have no reference")
    reference, numbers = drawn(small, seed=0)
    values = evaluate(reference, inputs | numbers, keep=True)
    outputs = tuple(analyse(small, schedule.ops).outputs)
    expected = {t: values[t] for t in outputs}
    for tensor, array in expected.items():
        if np.isfinite(array).mean() < 0.5:
            raise _NotChecked(f"{tensor} is mostly not finite on random inputs")
    bounds = {t: error_bound(small, t, values) for t in outputs}
    folder.mkdir()
    (folder / "kernels.py").write_text(module_source(launches, name))
    given = inputs | buffers
    read = [t for _, t in emitted.parameters if t in given]
    for number, tensor in enumerate(read):
        np.save(folder / f"in{number}.npy", given[tensor])
    made = {t: small.tensors[t] for t in outputs}
    spaces = {t: ("fp32", shape) for each in launches for t, shape in each.buffers.items()}
    spaces |= {t: (tensor.dtype, tensor.shape) for t, tensor in made.items()}
    job = {
        "launches": [
            {
                "kernel": each.name,
                "parameters": [tensor for _, tensor in each.parameters],
                "constants": each.constants,
                "blocks": each.blocks,
            }
            for each in launches
        ],
        "inputs": [
            {"tensor": t, "dtype": small.tensors[t].dtype if t in inputs else "fp32"} for t in read
        ],
        "outputs": [{"tensor": t, "dtype": made[t].dtype} for t in outputs],
        "made": [
            {"tensor": t, "dtype": dtype, "shape": list(shape)}
            for t, (dtype, shape) in spaces.items()
            if t not in given
        ],
    }
    (folder / "job.json").write_text(json.dumps(job))
    return _Job(
        name=name, folder=folder, outputs=outputs, inputs=inputs, bounds=bounds,
        expected=expected, account=tiled_traffic(small, schedule, arriving, SMALL.loop_points),
    )  # fmt: skip


def _positive(graph: Graph, tensors: Iterable[str]) -> list[str]:
    """Of these tensors, the sums of squares and of exponentials: no such statistic is negative."""
    found: list[str] = []
    for name in tensors:
        if name in graph.producer:
            op = graph.ops[graph.producer[name]]
            second = [write.tensor for write in op.writes].index(name) == 1
            squares = isinstance(op.body, Call) and op.body.function == "square"
            if (second and op.combine in ("max_sumexp", "moments")) or squares:
                found.append(name)
    return found


def _random(graph: Graph, tensor: Tensor, rng: Any) -> Any:
    """Random, non-zero and exactly representable values of a tensor, in its logical shape."""
    import numpy as np

    shape = tensor.shape
    if not is_float(tensor.dtype):
        if tensor.dtype == "bool":
            return rng.random(shape) < TRUE_SHARE
        rows = _rows_looked_up(graph, tensor)
        if rows is not None and tensor.elements <= rows:  # each once
            return rng.permutation(rows)[: tensor.elements].reshape(shape).astype(np.int64)
        return rng.integers(0, rows or LARGEST_INTEGER, shape).astype(np.int64)
    small = tensor.role in ("weight", "constant") and len(tensor.axes) <= 1
    values: Any = rng.uniform(0.5, 1.5, shape) if small else rng.standard_normal(shape)
    return rounded(values, tensor.dtype)


def rounded(values: Any, dtype: str) -> Any:
    """Values as the dtype holds them, in float64."""
    from fuseledger.triton.interpret import dtype_of

    torch: Any = import_module("torch")
    stored: Any = torch.from_numpy(values).to(dtype_of(torch, dtype))
    return stored.to(torch.float64).numpy()


def _rows_looked_up(graph: Graph, tensor: Tensor) -> int | None:
    """Rows of the smallest tensor that is looked up by this one; None where none is."""
    rows: list[int] = []
    for op in graph.ops:
        for access in op.reads:
            for index, axis in zip(access.index, graph.tensors[access.tensor].axes, strict=True):
                if index.lookup is not None and op.reads[index.lookup].tensor == tensor.name:
                    rows.append(axis.size)
    return min(rows, default=None)


def random_input(graph: Graph, name: str, *, seed: int) -> Any:
    """Random values of an external tensor, as its dtype holds them, in its logical shape."""
    import numpy as np

    return _random(graph, graph.tensors[name], np.random.default_rng(seed))


def to_torch(graph: Graph, name: str, values: Any) -> Any:
    """Values as a torch tensor of the tensor's dtype."""
    from fuseledger.triton.interpret import dtype_of

    torch: Any = import_module("torch")
    return torch.from_numpy(values).to(dtype_of(torch, graph.tensors[name].dtype))


def error_bound(graph: Graph, name: str, values: dict[str, Any]) -> Any:
    """What an output may be off by, element by element.

    A stored value is rounded once to its dtype. Before that every sum of L terms of size s
    rounds in fp32 to about u·s·√L, and operands of a matrix product made in the kernel are
    rounded to their own dtype.
    """
    import numpy as np

    tensor = graph.tensors[name]
    reference = np.nan_to_num(np.abs(values[tensor.name]), posinf=0.0)
    stored = UNIT_ROUNDOFF.get(tensor.dtype, 0.0)
    scale, length, operand = 1.0, 1, UNIT_ROUNDOFF["fp32"]
    for op in graph.ops:
        sizes = [_largest(values[a.tensor]) for a in (*op.reads, *op.writes)]
        scale = max(scale, *sizes)
        if op.reduces:
            terms = prod(op.sizes[name] for name in op.reduces)
            length = max(length, terms)
        if op.is_contraction:
            for access in op.reads:
                if not graph.tensors[access.tensor].is_external:
                    dtype = graph.tensors[access.tensor].dtype
                    operand = max(operand, UNIT_ROUNDOFF.get(dtype, 0.0))
            both = prod(_largest(values[a.tensor]) for a in op.reads)
            scale = max(scale, both * sqrt(length))
    absolute = scale * (
        SAFETY * UNIT_ROUNDOFF["fp32"] * sqrt(length)
        + (operand if operand > UNIT_ROUNDOFF["fp32"] else 0.0)
    )
    return 2.0 * stored * reference + absolute


def _largest(array: Any) -> float:
    import numpy as np

    finite = np.abs(array[np.isfinite(array)]) if array.size else np.zeros(1)
    return float(finite.max()) if finite.size else 0.0


def _interpret(folders: list[Path], timeout_s: float) -> None:
    """Run the folders in one process; after a crash or a hang, the rest in another."""
    pending = folders
    while pending:
        limit = PATIENCE * timeout_s * (1 + len(pending))
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        arguments = [f"{timeout_s}", *map(str, pending)]
        command = [sys.executable, "-m", "fuseledger.triton.interpret", *arguments]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
            word = f"the interpreter ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            word = f"{TOO_LONG} {limit:.0f} s"
        left = [each for each in pending if not _is_done(each)]
        if left:
            (left[0] / "error.txt").write_text(word)
        pending = left[1:]


def _is_done(folder: Path) -> bool:
    return (folder / "out0.npy").exists() or (folder / "error.txt").exists()


def _judge(job: _Job) -> Checked:
    import numpy as np

    if (job.folder / "error.txt").exists():
        reason = (job.folder / "error.txt").read_text()
        outcome = "not checked" if reason.startswith(TOO_LONG) else "fail"
        return Checked(name=job.name, outcome=outcome, reason=reason)
    worst = 0.0
    counted = json.loads((job.folder / "bytes.json").read_text())
    traffic = compared(job.account, counted)
    for number, tensor in enumerate(job.outputs):
        found = np.load(job.folder / f"out{number}.npy").reshape(job.expected[tensor].shape)
        expected, bound = job.expected[tensor], job.bounds[tensor]
        with np.errstate(invalid="ignore"):
            same = (found == expected) | (np.isnan(found) & np.isnan(expected))
            off = np.where(same, 0.0, np.abs(found - expected) / bound)
        off = np.where(np.isnan(off), np.inf, off)
        worst = max(worst, float(off.max()) if off.size else 0.0)
        if worst > 1:
            at = np.unravel_index(int(off.argmax()), off.shape)
            where = ", ".join(str(int(i)) for i in at)
            reason = (
                f"{tensor}[{where}] is {found[at]:.6g}, expected {expected[at]:.6g} "
                f"± {np.broadcast_to(bound, off.shape)[at]:.2g}"
            )
            return Checked(
                name=job.name, outcome="fail", reason=reason, error=worst, traffic=traffic
            )
    return Checked(name=job.name, outcome="pass", error=worst, traffic=traffic)
