"""The shape of a convolution, read off its loop nest: what a library's speed depends on."""

from __future__ import annotations

from math import prod

from msgspec import Struct

from fuseledger.graph.axis import Index
from fuseledger.graph.op import Access, Op
from fuseledger.graph.tensor import Tensor


class Convolution(Struct, frozen=True, kw_only=True):
    """Sizes of one convolution; channels are those of one group."""

    batch: int
    channels_in: int
    channels_out: int
    groups: int
    rank: int
    """Spatial dimensions, without those of one element."""
    spatial: int
    """Points of a result's channel."""
    window: int
    stride: int
    """Product over the dimensions, like `window` and `dilation`."""
    dilation: int
    transposed: bool
    channels_last: bool
    """Whether the input stores its channels innermost."""
    x_bytes: int
    y_bytes: int

    @property
    def depthwise(self) -> bool:
        """Whether each group has one channel."""
        return self.groups > 1 and self.channels_in == 1


def convolution_of(op: Op, x_tensor: Tensor, y_tensor: Tensor) -> Convolution:
    """The shape of an op that is a convolution: Σ of a windowed read times another."""
    x, weight = op.reads
    if not is_windowed(x):
        x, weight = weight, x
    size, taps = op.sizes, set(weight.axes) & op.reduces
    batch = _plain(x, 0)
    strides, dilations, channels, groups = [1], [1], [1], [1]
    rank, last = 0, False
    for place, index in enumerate(x.index):
        name = index.axis
        if name is None and index.terms:
            rank += 1
            last = False
            # an axis that a pool behind it splits slides in two steps: the smaller is the stride
            kept = [abs(step) for axis, step in index.terms if axis not in taps]
            strides.append(index.divisor if index.divisor > 1 else min(kept, default=1))
            dilations += [abs(step) for axis, step in index.terms if axis in taps]
        elif name in taps:
            channels.append(size[name])
            last = True
        elif name in weight.axes:
            groups.append(size[name])
        elif name is not None and place:
            rank += 1
            last = False
    windowed = {name for index in x.index if index.axis is None for name, _ in index.terms}
    outside = set(op.kept) - set(weight.axes)
    return Convolution(
        batch=size[batch] if batch in outside else 1,
        channels_in=prod(channels), groups=prod(groups),
        channels_out=prod(size[name] for name in op.kept if name not in x.axes),
        rank=min(3, max(1, rank)),
        spatial=prod(size[name] for name in outside if name != batch),
        window=prod(size[name] for name in windowed & taps),
        stride=prod(strides), dilation=prod(dilations),
        transposed=any(index.divisor > 1 or _backwards(index.terms, taps) for index in x.index),
        channels_last=last and rank > 0, x_bytes=x_tensor.bytes, y_bytes=y_tensor.bytes,
    )  # fmt: skip


def is_windowed(access: Access) -> bool:
    """Whether a coordinate slides a window: two axes, or a divisor."""
    return any(len(index.terms) > 1 or index.divisor > 1 for index in access.index)


def slides(op: Op, access: Access) -> bool:
    """Whether an op's read slides a window. Where one axis alone is reduced, and no place of a
    coordinate is reached twice, the coordinate is a dimension that falls into parts (the heads of a
    packed projection), and the op a product of matrices with strides of their own."""
    if len(op.reduces) > 1:
        return is_windowed(access)
    return any(index.divisor > 1 or _overlaps(op, index) for index in access.index)


def _overlaps(op: Op, index: Index) -> bool:
    reached = 1
    for name, step in sorted(index.terms, key=lambda term: abs(term[1])):
        if abs(step) < reached:
            return True
        reached = abs(step) * op.sizes[name]
    return False


def _plain(access: Access, place: int) -> str | None:
    return access.index[place].axis if access.index else None


def _backwards(terms: tuple[tuple[str, int], ...], taps: set[str]) -> bool:
    """Whether a tap moves the place back: a transposed convolution of stride one."""
    return any(step < 0 for name, step in terms if name in taps)
