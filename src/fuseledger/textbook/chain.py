"""The chain exercise: stages in a row, cut into kernels.

A stage becomes a declared op, so a cut is priced by the same planner, ledger and clock as any
plan: a group of stages reads the chain's previous tensor and the external elements of all its
stages, and writes its last output.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fuseledger.errors import InputError
from fuseledger.graph.declared import declared_graph, declared_op, flat_tensor
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.graph.tensor import MAX_ELEMENTS, Tensor
from fuseledger.graph.validate import validate

GELU_FLOPS = 8
"""FLOPs of GELU's tanh form per element, the tanh counted as one."""


class Stage(Struct, frozen=True):
    """One step of a chain; it also reads what the stage before it wrote."""

    name: str
    out_elems: int
    """Elements written."""
    ext_elems: int
    """Elements read from outside the chain."""
    flops: float
    live_regs: int
    """Registers that a thread keeps live for this stage where it is fused."""

    def __post_init__(self) -> None:
        if self.out_elems < 1:
            raise InputError(
                f"stage {self.name}: out_elems is {self.out_elems}, and must be at least 1"
            )
        for field in ("out_elems", "ext_elems"):
            if getattr(self, field) > MAX_ELEMENTS:
                raise InputError(
                    f"stage {self.name}: {field} is {getattr(self, field):,}, and must be at most "
                    f"{MAX_ELEMENTS:,}"
                )
        for field in ("ext_elems", "flops", "live_regs"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise InputError(
                    f"stage {self.name}: {field} is {getattr(self, field)}, and must be at least 0"
                )


def chain_graph(
    stages: Sequence[Stage], name: str = "chain", *, dtype: str = "fp16", spill_penalty: float = 3.0
) -> Graph:
    """The chain as a graph of declared ops, one per stage.

    `spill_penalty` multiplies the memory time of a kernel whose registers exceed the limit.
    Raises InputError where there are no stages or two have one name.
    """
    if not stages:
        raise InputError(f"{name}: a chain needs at least one stage")
    if len({stage.name for stage in stages}) != len(stages):
        raise InputError(f"{name}: two stages have the same name")
    tensors: list[Tensor] = []
    ops: list[Op] = []
    previous: list[Tensor] = []
    for stage in stages:
        role = "output" if stage is stages[-1] else "intermediate"
        out = flat_tensor(f"{stage.name}.out", stage.out_elems, dtype, role)
        external: list[Tensor] = []
        if stage.ext_elems:
            external.append(flat_tensor(f"{stage.name}.ext", stage.ext_elems, dtype, "input"))
        declared = {
            "flops": stage.flops, "registers": stage.live_regs, "spill_penalty": spill_penalty,
        }  # fmt: skip
        ops.append(declared_op(stage.name, stage.name, [*previous, *external], [out], declared))
        tensors += [*external, out]
        previous = [out]
    return validate(declared_graph(name, ops, tensors))


def chain_mlp_epilogue(M: int, K: int, N: int) -> tuple[Stage, ...]:
    """[M,K]·[K,N], then bias, GELU and a residual: four stages of M·N elements."""
    out = M * N
    return (
        Stage("mm", out, M * K + K * N, 2.0 * M * K * N, 128),
        Stage("bias", out, N, out, 8),
        Stage("gelu", out, 0, GELU_FLOPS * out, 16),
        Stage("residual", out, out, out, 8),
    )


def chain_that_spills(n: int = 1 << 26) -> tuple[Stage, ...]:
    """Two stages whose registers together exceed a thread's 255: fusing them loses."""
    return (Stage("a", n, n, 0.0, 200), Stage("b", n, 0, 0.0, 100))
