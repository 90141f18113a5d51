"""A GEMM unsplit or split-K, both with schedules of the real planner."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.devices import Device
from fuseledger.errors import DecisionError
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.tensor import DTYPE_BITS, is_float
from fuseledger.verdict.options import Decision
from fuseledger.verdict.split import SIZE_MAX, Realise, Split, decide_split


class Gemm(Struct, frozen=True, kw_only=True):
    """C[m,n] = Σk A[m,k]·B[k,n]; `tile`, where it is given, is that of every option."""

    M: int
    N: int
    K: int
    dtype: str = "fp16"
    tile: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, size in (("M", self.M), ("N", self.N), ("K", self.K)):
            if not 1 <= size <= SIZE_MAX:
                raise DecisionError(f"gemm: {name} is {size}, and must be from 1 to {SIZE_MAX:,}")
        if self.tile is not None and min(self.tile) < 1:
            raise DecisionError(f"gemm: a tile of {self.tile[0]}x{self.tile[1]} holds nothing")
        if self.dtype not in DTYPE_BITS or not is_float(self.dtype):
            raise DecisionError(f"gemm: {self.dtype!r} is no floating-point dtype")

    def graph(self) -> Graph:
        """The graph of the one op."""
        builder = GraphBuilder("gemm")
        a = builder.input("A", (self.M, self.K), self.dtype)
        b = builder.weight("B", (self.K, self.N), self.dtype)
        builder.output(builder.contract("gemm", "mk,kn->mn", [a, b]), "C")
        return builder.finish()

    @property
    def title(self) -> str:
        """Shape, dtype, and the tile where one is given."""
        words = f"gemm {self.M}×{self.N}×{self.K}, {self.dtype}"
        return words if self.tile is None else f"{words}, {self.tile[0]}×{self.tile[1]} tiles"

    def split(self) -> Split:
        """The GEMM with K in parts."""
        graph = self.graph()
        tiles: dict[str, int] = {}
        if self.tile is not None:
            op = graph.ops[0]
            for read, tile in zip(op.reads, self.tile, strict=True):
                tiles |= dict.fromkeys((n for n in read.axes if n not in op.reduces), tile)
        return Split(graph=graph, title=self.title, whole="no split", prefix="split-K", tiles=tiles)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """M, N and K."""
        return {"M": (self.M, 1), "N": (self.N, 1), "K": (self.K, 2)}

    def resized(self, name: str, value: int) -> Gemm:
        """Another M, N or K."""
        return replace(self, **{name: value})


def decide_gemm(
    gemm: Gemm, device: Device, *, splits: Sequence[int] = (), realise: Realise = "best"
) -> Decision:
    """The verdict between no split and split-K; without `splits`, by the best factor.

    Raises DecisionError on a factor that K cannot be split by.
    """
    for split in splits:
        if not 2 <= split <= gemm.K:
            raise DecisionError(f"gemm: a split of {split} must be from 2 to K = {gemm.K}")
    if gemm.K < 2:
        raise DecisionError("gemm: K = 1 leaves nothing to split")
    return decide_split(gemm, device, splits, realise=realise)
