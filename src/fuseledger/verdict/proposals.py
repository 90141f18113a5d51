"""Where nothing is usable: the nearest schedule that is, found by the search that plans use."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from fuseledger.ledger.account import format_bytes, format_kib
from fuseledger.ledger.kernel import Kernel
from fuseledger.ledger.price import is_small
from fuseledger.planner.partition import Reach
from fuseledger.planner.schedules import Choice, ScheduleSearch

Group = tuple[int, ...]


class Proposals(Struct, dict=True):
    """Proposes schedules by the rule: it fits, its grid covers the machine, it adds little work."""

    search: ScheduleSearch
    reach: Reach

    @cached_property
    def _strict(self) -> ScheduleSearch:
        given = self.search
        return ScheduleSearch(given.graph, given.device, given.clock, "bytes")

    def usable(self, group: Group, choice: Choice) -> Choice:
        """The choice, or one whose grid covers the machine where there is one and it does not."""
        sms = self.search.device.sm_count
        if sms is None or not 0 < choice.blocks < sms or is_small(choice.bytes, self.search.device):
            return choice
        other = self._strict.choose(group)
        return other if other.usable else choice

    def nearest(self, group: Group) -> str | None:
        """For ops that share a kernel: other tiles or splits, else the cut that costs fewest bytes.

        None where no schedule of the ops is usable, not even one cut.
        """
        choice = self._strict.choose(group)
        if choice.usable:
            return self._words(group, choice)
        priced = [
            (sum(self._strict.choose(part).bytes for part in cut), cut) for cut in self._cuts(group)
        ]
        found = min(priced, default=None)
        if found is None:
            return None
        first, second = found[1]
        name = self.search.graph.ops[first[-1]].name
        words = [self._words(part, self._strict.choose(part)) for part in (first, second)]
        return f"cut behind {name}: {words[0]}; then {words[1]}"

    def _cuts(self, group: Group) -> list[tuple[Group, Group]]:
        """Usable ways of making two kernels of it: all that an op needs, and the rest."""
        found: list[tuple[Group, Group]] = []
        for last in group[:-1]:
            above = self.reach.above[last] | 1 << last
            first = tuple(i for i in group if above >> i & 1)
            second = tuple(i for i in group if not above >> i & 1)
            if second and all(self._is_usable(part) for part in (first, second)):
                found.append((first, second))
        return found

    def _is_usable(self, group: Group) -> bool:
        return self._strict.choose(group).usable

    def _words(self, group: Group, choice: Choice) -> str:
        """Tiles, splits, stages, grid and bytes of a schedule."""
        kernel: Kernel = self._strict.kernel(group)
        axes = [
            f"{name} split in {axis.tile}" if axis.treatment == "split"
            else f"{name} in tiles of {axis.tile}"
            for name, axis in kernel.schedule.axes
            if axis.treatment in ("split", "grid")
        ]  # fmt: skip
        walks = f", walked {choice.walks} times" if choice.walks > 1 else ""
        stages = kernel.schedule.pipeline.stages
        return (
            f"{', '.join(axes) or 'one block'}{walks}: {choice.blocks:,} blocks of "
            f"{format_kib(choice.on_chip_bytes)} in {stages} stage{'s' * (stages > 1)}, "
            f"{format_bytes(choice.bytes)}"
        )
