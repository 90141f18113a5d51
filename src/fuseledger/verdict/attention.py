"""Attention on a long cache: a block a head, or split-KV, by the planner's own schedules."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.devices import Device
from fuseledger.errors import DecisionError
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.compose import attention
from fuseledger.graph.graph import Graph
from fuseledger.graph.tensor import DTYPE_BITS, is_float
from fuseledger.verdict.options import Decision
from fuseledger.verdict.split import SIZE_MAX, Realise, Split, decide_split

ROWS = 128
"""Queries of a block, where a head has so many: the tile of the libraries' attention."""


class Attention(Struct, frozen=True, kw_only=True):
    """softmax(QKᵀ/√d)·V; `heads` counts those of all sequences, `kv_heads` those of K and V."""

    heads: int
    kv: int
    d: int
    queries: int = 1
    kv_heads: int | None = None
    """None: as many as `heads`."""
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        sizes = {"heads": self.heads, "kv": self.kv, "d": self.d, "queries": self.queries}
        for name, size in sizes.items():
            if not 1 <= size <= SIZE_MAX:
                raise DecisionError(
                    f"attention: {name} is {size}, and must be from 1 to {SIZE_MAX:,}"
                )
        if self.kv_heads is not None and not 1 <= self.kv_heads <= self.heads:
            raise DecisionError(
                f"attention: kv-heads is {self.kv_heads}, and must be from 1 to heads"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise DecisionError(
                f"attention: kv-heads is {self.kv_heads}, and must divide {self.heads} heads"
            )
        if self.dtype not in DTYPE_BITS or not is_float(self.dtype):
            raise DecisionError(f"attention: {self.dtype!r} is no floating-point dtype")

    def graph(self) -> Graph:
        """The graph of scores, softmax and result."""
        builder = GraphBuilder("attention")
        groups = self.kv_heads or self.heads
        q = builder.input("Q", (1, self.heads, self.queries, self.d), self.dtype)
        k, v = (builder.input(name, (1, groups, self.kv, self.d), self.dtype) for name in "KV")
        builder.output(attention(builder, q, k, v), "O")
        return builder.finish()

    @property
    def title(self) -> str:
        """Heads, queries, keys, width and dtype."""
        words = f"{'decode ' * (self.queries == 1)}attention, {self.heads:,} heads"
        if self.kv_heads is not None:
            words += f" on {self.kv_heads:,} of K and V"
        if self.queries > 1:
            words += f", {self.queries:,} queries"
        return f"{words}, kv {self.kv:,}, d {self.d:,}, {self.dtype}"

    def split(self) -> Split:
        """The kernel with one head and up to `ROWS` queries a block, the result's width whole."""
        graph = self.graph()
        scores, result = graph.ops[0], graph.ops[-1]
        kept = [name for name in scores.kept if name in scores.reads[0].axes]
        rows = kept[-1:] if self.queries > 1 else []
        tiles = dict.fromkeys(kept, 1) | {name: min(ROWS, self.queries) for name in rows}
        tiles |= {n: size for n, size in result.sizes.items() if n not in scores.sizes}
        return Split(
            graph=graph, title=self.title, whole="one block a head", prefix="split-KV", tiles=tiles
        )

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Heads, keys and width."""
        heads = {"heads": (self.heads, 1)} if self.kv_heads is None else {}
        return {**heads, "kv": (self.kv, 2), "d": (self.d, 1)}

    def resized(self, name: str, value: int) -> Attention:
        """Another number of heads or keys, or another width."""
        return replace(self, **{name: value})


def decide_attention(
    heads: int, kv: int, d: int, device: Device, *, splits: Sequence[int] = (),
    dtype: str = "fp16", queries: int = 1, kv_heads: int | None = None, realise: Realise = "best",
) -> Decision:  # fmt: skip
    """The verdict between a block a head and split-KV; without `splits`, by the best factor.

    Raises DecisionError naming a size, a dtype or a split factor that cannot be.
    """
    question = Attention(heads=heads, kv=kv, d=d, queries=queries, kv_heads=kv_heads, dtype=dtype)
    for split in splits:
        if not 2 <= split <= kv:
            raise DecisionError(f"attention: a split of {split} must be from 2 to kv = {kv}")
    if kv < 2:
        raise DecisionError("attention: kv = 1 leaves nothing to split")
    return decide_split(question, device, splits, realise=realise)
