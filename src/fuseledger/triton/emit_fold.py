"""Merging the parts of a split result, where they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseledger.triton.partials import Partial, buffer_of
from fuseledger.triton.scope import Scope, Text

if TYPE_CHECKING:
    from fuseledger.triton.emit_body import Writer

PART = "part"
_SIMPLE: dict[str, str] = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "any": "tl.maximum({0}, {1})",
    "all": "tl.minimum({0}, {1})",
}


def fold(w: Writer, tensor: str, offset: Text, mask: Text | None) -> Text:
    """The value of a tensor that arrives as parts: a loop over them, in the block of the offset."""
    partial = w.folded[tensor]
    depth = max(offset.depth, mask.depth if mask is not None else 0)
    masked = f", mask={mask.text}, other=0.0" if mask is not None else ""
    key = ("fold", partial.results, offset.text, masked)
    found = w.known(key)
    if found is None:
        found = _loop(w, partial, offset.text, masked, depth)
        w.scopes[depth].known[key] = found
    slot = [buffer_of(result) for result in partial.results].index(buffer_of(tensor))
    places = offset.places | (mask.places if mask is not None else frozenset[int]())
    return Text(found.text.split(",")[slot], depth, places)


def _loop(w: Writer, partial: Partial, offset: str, masked: str, depth: int) -> Text:
    """Lines that merge all parts; the names of the merged results, joined by commas."""
    elements = w.nest.graph.tensors[_present(w, partial.results[0])].elements
    pointers = [w.pointers[_present(w, result)] for result in partial.results]
    names = [w.names.new(result.lower()) for result in partial.results]
    parts = w.names.new("PARTS")
    w.constants[parts] = partial.parts
    part = w.names.new(PART)
    here = w.scopes[depth].lines
    for name, pointer in zip(names, pointers, strict=True):
        here.append(f"{name} = tl.load({pointer} + {offset}{masked})")
    loop = Scope(depth + 1, f"for {part} in range(1, {parts}):")
    states = [w.names.new(f"{name}_part") for name in names]
    for state, pointer in zip(states, pointers, strict=True):
        loop.lines.append(
            f"{state} = tl.load({pointer} + ({part} * {elements} + {offset}){masked})"
        )
    if partial.combine == "moments":
        count = w.names.new("count")
        here.append(f"{count} = {partial.count_text('0')}")
        loop.lines += _moments(w, partial.count_text(part), count, names, states)
    elif partial.combine == "max_sumexp":
        loop.lines += _max_sumexp(w, names, states)
    else:
        merged = _SIMPLE[partial.combine].format(names[0], states[0])
        loop.lines.append(f"{names[0]} = {merged}")
    here.append(loop)
    return Text(",".join(names), depth)


def _present(w: Writer, result: str) -> str:
    """The tensor of the kernel at hand that a result is read as."""
    buffer = buffer_of(result)
    return buffer if buffer in w.nest.external else result


def _moments(w: Writer, points: str, count: str, names: list[str], states: list[str]) -> list[str]:
    """(mean, M2), merged as Chan et al. (1979)."""
    (mean, m2), (mean_part, m2_part) = names, states
    part_count, delta, share = (w.names.new(f"{mean}_{word}") for word in ("n", "delta", "share"))
    return [
        f"{part_count} = {points}",
        f"{delta} = {mean_part} - {mean}",
        f"{share} = {part_count} / ({count} + {part_count})",
        f"{mean} += {delta} * {share}",
        f"{m2} += {m2_part} + {delta} * {delta} * {count} * {share}",
        f"{count} += {part_count}",
    ]


def _max_sumexp(w: Writer, names: list[str], states: list[str]) -> list[str]:
    """(max, Σexp): what was summed under a lower maximum is rescaled."""
    (top, total), (top_part, total_part) = names, states
    new, shift = w.names.new(f"{top}_new"), w.names.new(f"{top}_shift")
    return [
        f"{new} = tl.maximum({top}, {top_part})",
        f"{shift} = rising({new})",
        f"{total} = {total} * tl.exp({top} - {shift})",
        f"{total} += {total_part} * tl.exp({top_part} - {shift})",
        f"{top} = {new}",
    ]
