"""A verdict for every intermediate tensor of a plan: fused or cut, and the account that decided.

The other choice is priced in the same ledger: for a cut, both kernels, and what lies between them,
as one; for a fusion, the kernel cut behind the tensor's producer. Beside what the plan minimises
stands the rule (`rule.py`): where it differs from the clock the verdict says so, and where it finds
neither choice usable the verdict proposes a schedule that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.graph.graph import Graph
from fuseledger.ledger.account import format_bytes, format_time
from fuseledger.ledger.price import Price, is_small
from fuseledger.planner.partition import Reach
from fuseledger.planner.plan import Planned
from fuseledger.planner.schedules import Choice, ScheduleSearch
from fuseledger.verdict.between import Between
from fuseledger.verdict.flips import Sizes, bandwidth_flips, capacity_flips, launch_flips
from fuseledger.verdict.proposals import Proposals
from fuseledger.verdict.rule import WAITS_FOR, Option, apply_rule, with_clock
from fuseledger.verdict.why import dearer

Group = tuple[int, ...]

Rule = Literal["fused", "cut", "neither"]
FUSED: Rule = "fused"
CUT: Rule = "cut"

GIVEN = "given"
"""The account of an edge that the user's cut decided, against what the ledger says."""


SOLVED = 16
"""Edges of a kernel whose flip points are searched for: a search each, of the kernel and of both
sides, at some thirty sizes of two axes."""


class EdgeVerdict(Struct, frozen=True, kw_only=True):
    """Why one intermediate tensor stays on chip or goes to memory."""

    tensor: str
    producer: str
    consumers: tuple[str, ...]
    kernels: tuple[str, ...]
    """The producer's kernel, and the consumers' where they differ."""
    choice: str
    """`fused` or `cut`."""
    account: str
    """The account that decided; `legality` where no kernel can hold both sides, `given` where the
    user's cut decided against the ledger."""
    reason: str
    rule: Rule
    """What the rule says of the two choices: `fused`, `cut` or `neither`."""
    disagreement: str | None
    """Why rule and clock differ, where they do."""
    proposal: str | None
    """For `neither`, or a kernel that is not usable as it stands: the nearest schedule that is."""
    bytes_delta: float
    """Bytes of the other choice less bytes of this one; inf where it is impossible."""
    time_delta_us: float
    """The same of its time; inf also where it does not fit, and so takes none."""
    flips: tuple[str, ...]


class _Finding(Struct, frozen=True, kw_only=True):
    """What is found of one pair of choices, whatever the tensor's name."""

    account: str
    reason: str
    rule: Rule = CUT
    disagreement: str | None = None
    proposal: str | None = None
    bytes_delta: float = math.inf
    time_delta_us: float = math.inf
    flips: tuple[str, ...] = ()
    options: _Options | None = None
    """What flips can be solved for; None where there is nothing to compare."""


class _Options(Struct, frozen=True, kw_only=True):
    """Two ways of computing the same ops."""

    chosen: Sequence[Group]
    other: Sequence[Group]
    fits: bool = True
    """Whether the other one fits."""


class _Edge(Struct, frozen=True, kw_only=True):
    """A tensor on its way from one kernel to another, or within one."""

    tensor: str
    producer: int
    readers: list[int]
    """Those in the one kernel."""
    mine: int
    """The producer's kernel."""
    home: int
    """The readers'."""


def edge_verdicts(
    planned: Planned, kernel: str | None = None, *, rows: int | None = None
) -> list[EdgeVerdict]:
    """Verdicts in the order of the graph's tensors.

    With the name of a kernel, of its edges alone, and with the flip points that take a search:
    bandwidths and sizes, for the `SOLVED` edges that are nearest to a change. With a number of
    `rows`, those that a report of so many rows tells of: all cuts, or without any, fusions up to
    that number of producers; and kernels that are vetoed.
    """
    judge = _Judge(planned)
    names = [each.name for each in planned.kernels]
    edges = [
        edge for edge in _edges(planned)
        if kernel is None or kernel in (names[edge.mine], names[edge.home])
    ]  # fmt: skip
    if rows is not None:
        edges = _told(edges, planned, rows)
    findings = [judge.finding(edge) for edge in edges]
    if kernel is not None:
        figure = "time_delta_us" if planned.search.objective == "time" else "bytes_delta"
        nearest = sorted(range(len(edges)), key=lambda i: abs(getattr(findings[i], figure)))
        for i in nearest[:SOLVED]:
            findings[i] = judge.solved(findings[i])
    return [judge.verdict(edge, found) for edge, found in zip(edges, findings, strict=True)]


def _edges(planned: Planned) -> Iterator[_Edge]:
    graph, homes = planned.graph, planned.plan.home
    for name, producer in graph.producer.items():
        apart: dict[int, list[int]] = {}
        for reader in graph.consumers.get(name, ()):
            apart.setdefault(homes[reader], []).append(reader)
        for home, readers in apart.items():
            yield _Edge(
                tensor=name, producer=producer, readers=readers, mine=homes[producer], home=home
            )


def _told(edges: list[_Edge], planned: Planned, rows: int) -> list[_Edge]:
    """What a report tells of: see `edge_verdicts`."""
    vetoed = {k for k, kernel in enumerate(planned.kernels) if kernel.vetoes}
    has_cut = any(edge.mine != edge.home for edge in edges)
    first = set[int]() if has_cut else set(list(dict.fromkeys(e.producer for e in edges))[:rows])
    return [
        edge for edge in edges
        if edge.mine != edge.home or edge.mine in vetoed or edge.producer in first
    ]  # fmt: skip


class _Judge:
    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.graph: Graph = planned.graph
        self.device = planned.device
        self.search: ScheduleSearch = planned.search
        self.groups: list[Group] = [k.kernel.ops for k in planned.kernels]
        self.reach = Reach.of(self.graph)
        self.sizes = {axis.name: axis.size for op in self.graph.ops for axis in op.axes}
        self.proposals = Proposals(self.search, self.reach)
        self.size_flips = Sizes(self.search)
        self._between = Between(planned, self.reach)
        self._cuts: dict[tuple[int, ...], _Finding] = {}
        self._prices: dict[Group, Price] = {}

    def finding(self, edge: _Edge) -> _Finding:
        """What is found of one edge; the same object for all between the same kernels."""
        if edge.mine == edge.home:
            return self._fused(edge.tensor, edge.producer, edge.mine)
        involved = self._between.involved(edge.mine, edge.home)
        if involved not in self._cuts:
            self._cuts[involved] = self._cut(edge.mine, edge.home, involved)
        return self._cuts[involved]

    def verdict(self, edge: _Edge, found: _Finding) -> EdgeVerdict:
        """What was found, with the names of the edge."""
        kernels, ops = self.planned.kernels, self.graph.ops
        return EdgeVerdict(
            tensor=edge.tensor,
            producer=ops[edge.producer].name,
            consumers=tuple(ops[i].name for i in edge.readers),
            kernels=tuple(dict.fromkeys((kernels[edge.mine].name, kernels[edge.home].name))),
            choice=FUSED if edge.mine == edge.home else CUT,
            account=found.account, reason=found.reason, rule=found.rule,
            disagreement=found.disagreement, proposal=found.proposal,
            bytes_delta=found.bytes_delta, time_delta_us=found.time_delta_us, flips=found.flips,
        )  # fmt: skip

    # -- fused -----------------------------------------------------------------------------

    def _fused(self, name: str, producer: int, home: int) -> _Finding:
        group = self.groups[home]
        above = self.reach.above[producer] | 1 << producer
        parts = [
            tuple(i for i in group if above >> i & 1),
            tuple(i for i in group if not above >> i & 1),
        ]
        whole, apart = self.search.choose(group), [self.search.choose(p) for p in parts]
        bytes_delta = float(sum(p.bytes for p in apart) - whole.bytes)
        launches = sum(p.launches for p in apart) - whole.launches
        time_delta = sum(p.time_us for p in apart) - whole.time_us
        launch_us = self.device.launch_us(self.planned.options.launch)
        size = format_bytes(self.graph.tensors[name].bytes)
        finding = self._opinion(group, parts)
        vetoes = dict(reversed(whole.vetoes))
        if vetoes:  # a cut that the user gave, or a single op
            account = next(name for name in _ORDER if name in vetoes)
            return replace(
                finding, account=account, reason=f"not usable as it stands: {vetoes[account]}",
                proposal=self.proposals.nearest(group),
                bytes_delta=bytes_delta, time_delta_us=time_delta,
            )  # fmt: skip
        saved = [format_bytes(bytes_delta)] if bytes_delta > 0 else []
        saved += [_launches(launches)] if launches > 0 else []
        by_bytes = self.search.objective == "bytes"
        unusable = [c for c, p in zip(apart, parts, strict=True) if len(p) > 1 and not c.usable]
        if unusable:
            account, why = unusable[0].vetoes[0]
            time_delta = math.inf
            words = f"cut here, one side is no kernel: {why}"
        elif (bytes_delta if by_bytes else time_delta) < 0:
            better = (
                f"move {format_bytes(-bytes_delta)} less" if by_bytes
                else f"be {format_time(-time_delta)} faster"
            )  # fmt: skip
            account = self._open
            words = f"cut here alone the plan would {better}"
            words += "" if account == GIVEN else f", but {self._not_found}"
        else:
            by_launch = time_delta > 0 and launches * launch_us >= 0.5 * time_delta
            account = "launches" if by_launch and not by_bytes else "traffic"
            words = f"saves {' and '.join(saved) or 'nothing'}, {format_time(time_delta)}"
        return replace(
            finding, account=account, reason=f"{name} ({size}) stays on chip: {words}",
            bytes_delta=bytes_delta, time_delta_us=time_delta,
            flips=launch_flips(time_delta, launches, launch_us),
            options=_Options(chosen=[group], other=parts),
        )  # fmt: skip

    # -- cut -------------------------------------------------------------------------------

    def _cut(self, mine: int, home: int, involved: tuple[int, ...]) -> _Finding:
        for k in (mine, home):
            group = self.groups[k]
            if len(group) == 1 and self.graph.ops[group[0]].is_opaque:
                function = self.graph.ops[group[0]].function
                return _never(f"{function} is a barrier: nothing fuses with it")
        between = [k for k in involved if k not in (mine, home)]
        limit = self.planned.options.limits.max_ops
        count = sum(len(self.groups[k]) for k in involved)
        if between and count > 2 * limit:
            named = self.planned.kernels[between[0]].label
            more = len(between) - 1
            others = f" and {more} more kernel{'s' * (more > 1)}" if more else ""
            return _never(
                f"{named}{others} between them: one kernel of {count} ops, or one that "
                f"waits for itself"
            )
        merged = tuple(sorted(op for k in involved for op in self.groups[k]))
        parts = [self.groups[k] for k in involved]
        apart = [self.search.choose(group) for group in parts]
        together = self.search.choose(merged)
        with_these = ""
        if between:
            labels = [self.planned.kernels[k].label for k in between]
            with_these = f" with {', '.join(labels[:2])}{', …' * (len(labels) > 2)}"
        lead = f"together{with_these}"
        vetoes = dict(reversed(together.vetoes))
        if math.isinf(together.time_us):
            return _never(f"{lead}: {vetoes.get('legality', 'no common loop nest')}")
        finding = self._opinion(merged, parts)
        bytes_delta = float(together.bytes - sum(c.bytes for c in apart))
        time_delta = together.time_us - sum(c.time_us for c in apart)
        if "capacity" in vetoes:
            time_delta = math.inf
        launches = together.launches - sum(c.launches for c in apart)
        launch_us = self.device.launch_us(self.planned.options.launch)
        flips = launch_flips(time_delta, launches, launch_us)
        account, words, more = self._why_cut(together, merged, parts, vetoes, lead, time_delta)
        return replace(
            finding, account=account, reason=words, bytes_delta=bytes_delta,
            time_delta_us=time_delta, flips=tuple(dict.fromkeys(more or flips)),
            options=_Options(chosen=parts, other=[merged], fits="capacity" not in vetoes),
        )  # fmt: skip

    def _why_cut(
        self, together: Choice, merged: Group, parts: list[Group], vetoes: dict[str, str],
        lead: str, time_delta: float,
    ) -> tuple[str, str, tuple[str, ...]]:  # fmt: skip
        """Account, sentence, and the flips that are divisions."""
        by_bytes = self.search.objective == "bytes"
        apart = [self.search.choose(group) for group in parts]
        gain = sum(c.cost for c in apart) - together.cost
        owned = together.not_owned
        if owned is not None and together.walks > 1 and ("epilogue" in vetoes or gain <= 0):
            veto = dict(owned.vetoes)["capacity"]
            slower = f"walking twice is {format_time(max(0.0, time_delta))} slower"
            if math.isinf(time_delta):
                slower = "nor does it fit walked twice"
            again = vetoes.get("epilogue", slower)
            flips = capacity_flips(owned, self.device, self.sizes)
            return "capacity", f"{lead}: {veto}; {again}", flips
        for account in _ORDER:
            if account in vetoes:
                price = self._price(merged)
                flips = (
                    capacity_flips(price, self.device, self.sizes) if account == "capacity"
                    else (f"fills a machine of up to {price.blocks} SMs",)
                    if account == "parallelism"
                    else ()
                )  # fmt: skip
                return account, f"{lead}: {vetoes[account]}", flips
        if gain > 0 and self._open == GIVEN:
            return GIVEN, f"{lead} they would save {self._gain(together, parts)}", ()
        if gain > 0:
            saving = self._gain(together, parts)
            return "search", f"{lead} they would save {saving}, but {self._not_found}", ()
        account, words = dearer(
            self.search, self._price(merged), [self._price(group) for group in parts]
        )
        more = f"{format_time(time_delta)} slower"
        if by_bytes:
            moved = together.bytes - sum(c.bytes for c in apart)
            more = f"{format_bytes(moved)} more"
        return account, f"{lead} {more}: {words}", ()

    @property
    def _open(self) -> str:
        """What decided where the other choice would be better: the user, or the search."""
        return "search" if self.planned.partition.candidates else GIVEN

    @property
    def _not_found(self) -> str:
        """Why the search has no kernel that would have made the plan cheaper.

        Several kernels and what lies between them, taken as one, are again a partition: where the
        plan is proved best of its candidates, that one is none of them.
        """
        found = self.planned.partition
        if found.gap == 0.0:
            words = "no such kernel was among the candidates"
            return f"{words}: {found.cut_short[0]}" if found.cut_short else words
        return f"the search was cut short: {found.cut_short[0]}"

    def _gain(self, together: Choice, parts: list[Group]) -> str:
        """What one kernel saves, in what the plan minimises."""
        apart = [self.search.choose(group) for group in parts]
        if self.search.objective == "bytes":
            return format_bytes(sum(c.bytes for c in apart) - together.bytes)
        return format_time(sum(c.time_us for c in apart) - together.time_us)

    # -- both ------------------------------------------------------------------------------

    def _opinion(self, merged: Group, parts: Sequence[Group]) -> _Finding:
        """The rule's choice, why the clock differs where it does, what to do where it has none."""
        sms, stream = self.device.sm_count, self.device.stream_gbs
        options = [self._option(FUSED, [merged]), self._option(CUT, parts)]
        found = with_clock(apply_rule(options, sms, stream), options, sms)
        rule: Rule = CUT if found.winner == CUT else FUSED if found.winner else "neither"
        return _Finding(
            account="", reason="", rule=rule, disagreement=found.disagreement,
            proposal=None if found.winner else self.proposals.nearest(merged),
        )  # fmt: skip

    def _option(self, name: str, groups: Sequence[Group]) -> Option:
        """Kernels in the figures of the rule; where the clock took a grid short of the SMs, with a
        schedule that covers them, if there is one."""
        chosen = [self.search.choose(group) for group in groups]
        choices = [
            self.proposals.usable(group, choice)
            for group, choice in zip(groups, chosen, strict=True)
        ]
        large = [c for c in choices if c.blocks and not is_small(c.bytes, self.device)]
        capacity = [why for c in choices for account, why in c.vetoes if account == "capacity"]
        longest = max(chosen, key=lambda c: c.time_us)
        return Option(
            name=name, bytes=sum(c.bytes for c in choices),
            grid=min((c.blocks for c in large), default=1), is_small=not large,
            on_chip_bytes=max(c.on_chip_bytes for c in choices),
            capacity_veto=capacity[0] if capacity else None,
            launches=sum(c.launches for c in choices), time_us=sum(c.time_us for c in chosen),
            waits_for=WAITS_FOR.get(longest.bound, longest.bound), provenance="modelled",
        )  # fmt: skip

    def _price(self, group: Group) -> Price:
        found = self._prices.get(group)
        if found is None:
            found = self._prices[group] = self.search.price(group)
        return found

    def solved(self, found: _Finding) -> _Finding:
        """With flip points that are solved for: bandwidths with the schedules as they are, and
        sizes."""
        options = found.options
        if options is None:
            return found
        (merged,), parts = sorted((options.chosen, options.other), key=len)
        if any(self.graph.ops[i].kind != "loop" for i in merged):
            return found
        flips: tuple[str, ...] = ()
        if options.fits:
            chosen, other = (
                [self.search.time(group, self._price(group)) for group in groups]
                for groups in (options.chosen, options.other)
            )
            flips = bandwidth_flips(chosen, other, self.device)
        flips += self.size_flips.flips(merged, parts)
        return replace(found, flips=tuple(dict.fromkeys(found.flips + flips)))


_ORDER = ("legality", "capacity", "epilogue", "parallelism")
"""Accounts in the order in which their vetoes are told."""


def _never(reason: str) -> _Finding:
    return _Finding(account="legality", reason=reason)


def _launches(count: int) -> str:
    return "a launch" if count == 1 else f"{count} launches"
