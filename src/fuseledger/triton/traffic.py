"""The traffic account of a kernel before L2, tensor by tensor, and what the interpreter counted."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fuseledger.graph.graph import Graph
from fuseledger.ledger.footprint import ACCUMULATOR_BYTES
from fuseledger.ledger.kernel import Kernel
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.nest import Nest, analyse, rewalked
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.pricer import bounds_of, walks_of
from fuseledger.ledger.tiled import TiledLoads
from fuseledger.planner.side_by_side import parts_of
from fuseledger.triton.partials import Partial, buffer_of, partials_of, split_tile

Bytes = dict[str, int]


class Traffic(Struct, frozen=True, kw_only=True):
    """Bytes of a kernel, its combine kernel included, on the checked shape."""

    account: int
    """What the account says that all blocks load and store."""
    interpreted: int
    """What the interpreter's blocks loaded and stored: each element once a block and walk."""
    requested: int
    """The same with every lane of every load, which L1 and shared memory serve in part."""
    differences: tuple[str, ...] = ()
    """The tensors where account and interpreter differ, with both figures."""

    @property
    def is_equal(self) -> bool:
        """Whether both agree on every tensor."""
        return not self.differences


def tiled_traffic(
    graph: Graph, kernel: Kernel, folded: Mapping[str, Partial], at_once: int = LOOP_POINTS
) -> tuple[Bytes, Bytes]:
    """(loads, stores) of a kernel and its combine kernel by tensor, before any cache, where loops
    over up to so many points are none."""
    loads: Bytes = {}
    stores: Bytes = {}
    nest = analyse(graph, kernel.ops)
    for part in parts_of(graph, kernel):
        found = _loads(analyse(graph, part.ops), part, at_once)
        for partial in {folded[n].results: folded[n] for n in found if n in folded}.values():
            read = [name for name in partial.results if name in found]
            count = max(found.pop(n) * 8 // _bits(graph, n) for n in read)
            written = count * partial.parts * ACCUMULATOR_BYTES
            found |= {buffer_of(result): written for result in partial.results}
        for name, count in found.items():
            loads[name] = loads.get(name, 0) + count
    stores |= {name: graph.tensors[name].bytes for name in nest.outputs}
    for partial in partials_of(graph, kernel).values():
        for result in partial.results:
            written = partial.parts * graph.tensors[result].elements * ACCUMULATOR_BYTES
            loads[buffer_of(result)] = stores[buffer_of(result)] = written
    return loads, stores


def _bits(graph: Graph, name: str) -> int:
    tensor = graph.tensors[name]
    return tensor.bytes * 8 // tensor.elements


def _loads(nest: Nest, kernel: Kernel, at_once: int) -> Bytes:
    """Bytes that all blocks of one part load of each external tensor."""
    schedule = kernel.schedule
    tiles: dict[str, int] = {}
    given = dict(schedule.axes)
    for axis in nest.open_axes:
        size, choice = nest.sizes[axis], given.get(axis)
        tiles[axis] = size
        if choice is not None and choice.treatment == "grid":
            tiles[axis] = choice.tile
        elif choice is not None and choice.treatment == "split":
            tiles[axis] = split_tile(size, choice.tile)
    carried = (online_variant(nest) if schedule.online else None) or nest
    if schedule.walks == 1:
        tiled = TiledLoads(nest, bounds_of(nest), at_once=at_once)
        return {name: tiled.bytes_of(name, tiles) for name in nest.external}
    walks, again = walks_of(carried, at_once), rewalked(carried)
    return {
        name: walks.bytes_of(name, tiles, schedule.walks, again=name in again)
        for name in nest.external
    }


def compared(account: tuple[Bytes, Bytes], counted: Mapping[str, Bytes]) -> Traffic:
    """The account beside what the interpreter counted."""
    loads, stores = account
    differences: list[str] = []
    for word, said, found in (
        ("loads", loads, counted.get("load", {})),
        ("stores", stores, counted.get("store", {})),
    ):
        differences += [
            f"{word} {found.get(name, 0):,} B of {name}, account {said.get(name, 0):,} B"
            for name in dict.fromkeys((*said, *found))
            if said.get(name, 0) != found.get(name, 0)
        ]
    stored = sum(counted.get("store", {}).values())
    return Traffic(
        account=sum(loads.values()) + sum(stores.values()),
        interpreted=sum(counted.get("load", {}).values()) + stored,
        requested=sum(counted.get("requested", {}).values()) + stored,
        differences=tuple(differences),
    )
