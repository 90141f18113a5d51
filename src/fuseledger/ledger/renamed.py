"""The ledger of a kernel that differs from a known one in names alone: eighty equal layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.graph.graph import Graph
from fuseledger.ledger.account import Account
from fuseledger.ledger.kernel import Kernel
from fuseledger.ledger.ledger import KernelLedger, capacity_words, traffic_words
from fuseledger.ledger.price import Price


class Names(Struct, frozen=True, kw_only=True):
    """Names in one kernel → those in its like."""

    ops: Mapping[int, int]
    axes: Mapping[str, str]
    tensors: Mapping[str, str]

    @staticmethod
    def between(graph: Graph, one: Sequence[int], other: Sequence[int]) -> Names:
        """Of two sets of ops with one signature."""
        axes: dict[str, str] = {}
        tensors: dict[str, str] = {}
        for i, j in zip(one, other, strict=True):
            axes.update(zip(graph.structures[i].axes, graph.structures[j].axes, strict=True))
            tensors.update(
                zip(graph.structures[i].tensors, graph.structures[j].tensors, strict=True)
            )
        return Names(ops=dict(zip(one, other, strict=True)), axes=axes, tensors=tensors)


def can_be_renamed(known: KernelLedger, graph: Graph) -> bool:
    """Whether its words name nothing but tensors and axes of its ops, as they are in the graph."""
    names = Names.between(graph, known.kernel.ops, known.kernel.ops)
    tensors = {name for name, _ in (*known.reads, *known.writes)}
    tensors.update(item.name for item in known.price.held)
    return not (
        known.price.vetoes
        or known.price.modelled
        or any(account.provenance == "declared" for account in known.accounts.values())
        or tensors - names.tensors.keys()
        or known.price.tiles.keys() - names.axes.keys()
    )


def renamed(known: KernelLedger, graph: Graph, names: Names, name: str) -> KernelLedger:
    """The ledger of its like, under a name of its own."""
    kernel = _kernel(known.kernel, names)
    price = _price(known.price, names)
    reads = tuple((names.tensors[tensor], count) for tensor, count in known.reads)
    writes = tuple((names.tensors[tensor], count) for tensor, count in known.writes)
    words = {"traffic": traffic_words(reads, writes, price), "capacity": capacity_words(price)}
    accounts: dict[str, Account] = {
        account: replace(each, derivation=words[account]) if account in words else each
        for account, each in known.accounts.items()
    }
    return replace(
        known,
        name=name,
        kernel=kernel,
        ops=tuple(graph.ops[i].name for i in kernel.ops),
        accounts=accounts,
        price=price,
        reads=reads,
        writes=writes,
    )


def _kernel(kernel: Kernel, names: Names) -> Kernel:
    schedule = kernel.schedule
    axes = tuple((names.axes[name], axis) for name, axis in schedule.axes)
    return Kernel(
        ops=tuple(names.ops[i] for i in kernel.ops),
        schedule=replace(schedule, axes=axes),
        parts=tuple(_kernel(part, names) for part in kernel.parts),
    )


def _price(price: Price, names: Names) -> Price:
    held = [
        replace(
            item,
            name=names.tensors[item.name],
            extents=tuple((names.axes.get(axis, axis), extent) for axis, extent in item.extents),
        )
        for item in price.held
    ]
    tiles = {names.axes[name]: tile for name, tile in price.tiles.items()}
    rows = tuple(names.axes[name] for name in price.calls.rows)
    calls = replace(price.calls, rows=rows) if rows else price.calls
    return replace(price, tiles=tiles, held=held, calls=calls)
