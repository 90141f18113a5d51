"""A verdict for every intermediate tensor of a plan: fused or cut, and the account that decided.

The other choice is priced in the same ledger: for a cut, both kernels as one; for a fusion, the
kernel cut behind the tensor's producer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuseledger.graph.graph import Graph
from fuseledger.ledger.account import format_bytes, format_time
from fuseledger.ledger.price import Price
from fuseledger.planner.partition import Reach
from fuseledger.planner.plan import Planned
from fuseledger.planner.schedules import ScheduleSearch
from fuseledger.verdict.flips import capacity_flips, grid_flips

Groups = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeVerdict:
    """Why one intermediate tensor stays on chip or goes to memory."""

    tensor: str
    producer: str
    consumers: tuple[str, ...]
    kernels: tuple[str, ...]
    """The producer's kernel, and the consumers' where they differ."""
    choice: str
    """`fused` or `cut`."""
    account: str
    """The account that decided; `legality` where no kernel can hold both sides."""
    reason: str
    bytes_delta: float
    """Bytes of the other choice less bytes of this one; inf where it is impossible."""
    time_delta_us: float
    flips: tuple[str, ...]


def edge_verdicts(planned: Planned) -> list[EdgeVerdict]:
    """Verdicts in the order of the graph's tensors."""
    judge = _Judge(planned)
    graph = planned.graph
    found: list[EdgeVerdict] = []
    for name, producer in graph.producer.items():
        readers = graph.consumers.get(name, ())
        apart: dict[int, list[int]] = {}
        for reader in readers:
            apart.setdefault(planned.plan.home[reader], []).append(reader)
        for home, mine in apart.items():
            found.append(judge.verdict(name, producer, mine, home))
    return found


class _Judge:
    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.graph: Graph = planned.graph
        self.search: ScheduleSearch = planned.search
        self.groups: Groups = [k.kernel.ops for k in planned.kernels]
        self.reach = Reach.of(self.graph)
        self.sizes = {axis.name: axis.size for op in self.graph.ops for axis in op.axes}
        self._cuts: dict[tuple[int, ...], tuple[str, str, float, float, tuple[str, ...]]] = {}

    def verdict(self, name: str, producer: int, readers: list[int], home: int) -> EdgeVerdict:
        mine = self.planned.plan.home[producer]
        kernels = self.planned.kernels
        if mine == home:
            account, reason, bytes_delta, time_delta, flips = self._fused(name, producer, mine)
        else:
            merged = tuple(sorted(self.groups[mine] + self.groups[home]))
            if merged not in self._cuts:
                self._cuts[merged] = self._cut(merged, mine, home)
            account, reason, bytes_delta, time_delta, flips = self._cuts[merged]
        return EdgeVerdict(
            tensor=name,
            producer=self.graph.ops[producer].name,
            consumers=tuple(self.graph.ops[i].name for i in readers),
            kernels=(kernels[mine].name,)
            if mine == home
            else (kernels[mine].name, kernels[home].name),
            choice="fused" if mine == home else "cut",
            account=account,
            reason=reason,
            bytes_delta=bytes_delta,
            time_delta_us=time_delta,
            flips=flips,
        )

    def _fused(
        self, name: str, producer: int, home: int
    ) -> tuple[str, str, float, float, tuple[str, ...]]:
        group = self.groups[home]
        above = self.reach.above[producer] | 1 << producer
        first = tuple(i for i in group if above >> i & 1)
        second = tuple(i for i in group if not above >> i & 1)
        whole, parts = self.search.choose(group), [self.search.choose(p) for p in (first, second)]
        bytes_delta = sum(p.bytes for p in parts) - whole.bytes
        launches = sum(p.launches for p in parts) - whole.launches
        time_delta = sum(p.time_us for p in parts) - whole.time_us
        launch_us = launches * self.planned.device.launch_us(self.planned.options.launch)
        account = "launches" if time_delta and launch_us >= 0.5 * time_delta else "traffic"
        size = format_bytes(self.graph.tensors[name].bytes)
        if time_delta < 0:  # fused for the sake of another edge of the same kernel
            reason = (
                f"{name} ({size}) stays on chip; cut here alone the plan would be "
                f"{format_time(-time_delta)} faster, but a neighbouring fusion needs it"
            )
        else:
            reason = (
                f"{name} ({size}) stays on chip: saves {format_bytes(bytes_delta)} and "
                f"{_launches(launches)}, {format_time(time_delta)}"
            )
        return account, reason, float(bytes_delta), time_delta, ()

    def _cut(
        self, merged: tuple[int, ...], mine: int, home: int
    ) -> tuple[str, str, float, float, tuple[str, ...]]:
        apart = [self.search.choose(self.groups[k]) for k in (mine, home)]
        for group in (self.groups[mine], self.groups[home]):
            if len(group) == 1 and self.graph.ops[group[0]].is_opaque:
                function = self.graph.ops[group[0]].function
                return "legality", f"{function} is a barrier: nothing fuses with it", *_NEVER
        between = self._between(merged)
        if between:
            return "legality", f"{between} lies between: one kernel would wait for itself", *_NEVER
        together = self.search.choose(merged)
        vetoes = dict(reversed(together.vetoes))
        if math.isinf(together.time_us):
            return "legality", vetoes.get("legality", "no common loop nest"), *_NEVER
        price = self.search.price(merged)
        bytes_delta = float(together.bytes - sum(c.bytes for c in apart))
        time_delta = together.time_us - sum(c.time_us for c in apart)
        objective = self.planned.options.objective
        owned = together.not_owned
        if owned is not None and together.walks > 1:
            veto = dict(owned.vetoes)["capacity"]
            again = vetoes.get(
                "epilogue", f"walking twice is {format_time(max(0.0, time_delta))} slower"
            )
            if "epilogue" in vetoes or time_delta > 0:
                return (
                    "capacity",
                    f"together: {veto}; {again}",
                    bytes_delta,
                    time_delta,
                    self._capacity_flips(owned),
                )
        for account in ("capacity", "epilogue", "parallelism"):
            if account in vetoes and (account == "capacity" or objective == "bytes"):
                flips = self._capacity_flips(price) if account == "capacity" else grid_flips(price)
                return account, f"together: {vetoes[account]}", bytes_delta, time_delta, flips
        gain = sum(c.cost for c in apart) - together.cost
        if gain > 0:
            limit = self.planned.options.max_ops
            why = (
                f"{len(merged)} ops are more than the {limit} that one kernel is searched for"
                if len(merged) > limit
                else "another partition of their neighbours saves more"
            )
            return (
                "search",
                f"together they would save {format_time(-time_delta)}, but {why}",
                bytes_delta,
                time_delta,
                (),
            )
        account, words = self._why_dearer(
            price, [self.search.price(self.groups[k]) for k in (mine, home)]
        )
        reason = f"together {format_time(time_delta)} slower: {words}"
        if objective == "bytes":
            reason = f"together {format_bytes(bytes_delta)} more: {words}"
        return account, reason, bytes_delta, time_delta, ()

    def _capacity_flips(self, price: Price) -> tuple[str, ...]:
        return capacity_flips(price, self.planned.device, self.sizes)

    def _between(self, merged: tuple[int, ...]) -> str | None:
        inside = sum(1 << i for i in merged)
        above = below = 0
        for i in merged:
            above |= self.reach.above[i]
            below |= self.reach.below[i]
        path = above & below & ~inside
        return self.graph.ops[(path & -path).bit_length() - 1].name if path else None

    def _why_dearer(self, together: Price, apart: list[Price]) -> tuple[str, str]:
        """The account that worsens most in time when two kernels become one."""
        clock = self.search.clock
        stream = self.planned.device.stream_gbs or 1.0
        once = max(1.0, together.work_once)
        extra = together.extra_flops - sum(p.extra_flops for p in apart)
        slower = dict(clock.time(together).terms)
        before: dict[str, float] = {}
        for price in apart:
            for name, us in clock.time(price).terms:
                before[name] = before.get(name, 0.0) + us
        work_us = max(slower.get(n, 0) - before.get(n, 0) for n in ("matrix", "lanes", "special"))
        bytes_us = (together.dram_bytes - sum(p.dram_bytes for p in apart)) / stream / 1e3
        l2_us = slower.get("l2", 0.0) - before.get("l2", 0.0)
        if extra > 0.01 * once and work_us >= max(bytes_us, l2_us):
            return "epilogue", f"{extra / 1e9:.3g} GFLOP ({extra / once:.0%}) are computed again"
        if bytes_us > 0 and bytes_us >= l2_us:
            walked = f", walked {together.walks} times" if together.walks > 1 else ""
            return "traffic", f"{format_bytes(bytes_us * stream * 1e3)} more are moved{walked}"
        if together.blocks < min(p.blocks for p in apart) and together.blocks < (
            self.planned.device.sm_count or 1
        ):
            return "parallelism", f"a grid of {together.blocks} leaves SMs idle"
        if l2_us > 0:
            return "capacity", (
                f"what must be held leaves room for small tiles only, and operands are loaded "
                f"{format_bytes(together.l2_bytes - sum(p.l2_bytes for p in apart))} more often"
            )
        return "parallelism", f"a grid of {together.blocks} blocks fills the machine less well"


_NEVER: tuple[float, float, tuple[str, ...]] = (math.inf, math.inf, ())


def _launches(count: int) -> str:
    return "no launch" if count == 0 else "a launch" if count == 1 else f"{count} launches"
