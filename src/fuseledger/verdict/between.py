"""What lies between two kernels of a plan: to make one of them, all of it has to be part of it."""

from __future__ import annotations

from collections.abc import Sequence

from fuseledger.planner.partition import Reach
from fuseledger.planner.plan import Planned
from fuseledger.planner.starting import lowest


class Between:
    """Answers from masks of each kernel's ops, of what they need and of what needs them: a step a
    kernel that is found, and not one an op."""

    def __init__(self, planned: Planned, reach: Reach) -> None:
        self._home = planned.plan.home
        groups = [kernel.kernel.ops for kernel in planned.kernels]
        self._marks = [
            (sum(1 << i for i in ops), _union(reach.above, ops), _union(reach.below, ops))
            for ops in groups
        ]
        self._found: dict[tuple[int, int], tuple[int, ...]] = {}

    def involved(self, one: int, other: int) -> tuple[int, ...]:
        """The kernels of both sides and all that lie on a way from one to the other."""
        found = self._found.get((one, other))
        if found is None:
            kernels = {one}
            ops, above, below = self._marks[one]
            left, _, _ = self._marks[other]
            while left:
                kernel = self._home[lowest(left)]
                kernels.add(kernel)
                more, more_above, more_below = self._marks[kernel]
                ops, above, below = ops | more, above | more_above, below | more_below
                left = above & below & ~ops
            found = self._found[one, other] = tuple(sorted(kernels))
        return found


def _union(masks: Sequence[int], ops: Sequence[int]) -> int:
    found = 0
    for i in ops:
        found |= masks[i]
    return found
