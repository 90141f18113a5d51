"""How often a kernel that TorchInductor generates walks what it reads.

Its scheduler counts each buffer once, and none that one node both makes and uses up. A reduction
whose row does not fit a block is a loop, and what is read again after it is loaded by a second
loop: the two walks that our own ledger charges. What the first loop computes on the way may be
stored for the second one: bytes written and read like any others. A tensor that is looked up by
value counts whole with the scheduler; here the places that are looked up count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set

from fuseledger.ledger.price import SECTOR_BYTES

_LOAD = re.compile(r"tl\.load\((\w+) \+")
_STORE = re.compile(r"tl\.store\((\w+) \+")
_INDEX = re.compile(r"tl\.load\((\w+) \+ \((.*?)\), ")
_VALUE = re.compile(r"\btmp\d+\b")
"""In an index: a value that was loaded or computed."""
_POINTS = re.compile(r"^    \w+numel = (\d+)$", re.M)
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(r"@triton\.jit\s+def \w+\((.*?)\):", re.S)


def walks(source: str) -> dict[str, int]:
    """Pointer parameter → loops of the generated function that load from it, at least one."""
    definition = _DEFINITION.search(source)
    if definition is None:
        return {}
    found: dict[str, int] = {}
    inside: set[str] = set()
    for line in source[definition.end() :].splitlines():
        if line[:5].strip():  # a statement of the function itself ends a loop, or starts one
            inside = set()
        for pointer in set(_LOAD.findall(line)) - inside:
            inside.add(pointer)
            in_loop = line.startswith("     ")
            found[pointer] = found.get(pointer, 0) + in_loop
    return {pointer: max(1, count) for pointer, count in found.items()}


def read_again(source: str, arguments: Sequence[str], reads: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each buffer with every walk counted; `arguments` are the call's, in order.

    A result that is written over an operand goes by the result's name in the call: the operand is
    the one buffer that is read and not named there.
    """
    named: dict[str, str] = {}
    for parameter, argument in _call(source, arguments):
        buffer = next((n for n in _NAME.findall(argument) if n in reads), None)
        if buffer is not None:
            named[parameter] = buffer
    unnamed = [buffer for buffer in reads if buffer not in named.values()]
    counted = walks(source)
    found = dict(reads)
    for parameter, count in counted.items():
        buffer = named.get(parameter)
        if buffer is None and parameter.startswith("in_out_ptr") and len(unnamed) == 1:
            buffer = unnamed[0]
        if buffer is not None:
            found[buffer] = reads[buffer] * count
    return found


def looked_up(source: str) -> dict[str, tuple[int, bool]]:
    """Pointer parameter → (points at which it is read, whether each is a place of its own), for
    those that are read at looked-up places alone; else neighbours are read side by side."""
    points = math.prod(int(size) for size in _POINTS.findall(source))
    found: dict[str, tuple[int, bool]] = {}
    walked: set[str] = set()
    for pointer, index in _INDEX.findall(source):
        if not _VALUE.search(index):
            walked.add(pointer)
            continue
        count, is_alone = found.get(pointer, (0, False))
        alone = any(_VALUE.fullmatch(term) for term in index.split(" + "))
        found[pointer] = (count + points, is_alone or alone)
    return {pointer: each for pointer, each in found.items() if pointer not in walked}


def places_read(
    source: str, arguments: Sequence[str], reads: Mapping[str, int], width_of: Callable[[str], int]
) -> dict[str, int]:
    """Bytes of each buffer, no more than the places that are looked up in it: a sector for a place
    of its own, else elements of `width_of` bytes."""
    places = looked_up(source)
    found = dict(reads)
    for parameter, argument in _call(source, arguments):
        buffer = next((n for n in _NAME.findall(argument) if n in reads), None)
        if buffer is not None and parameter in places:
            points, is_alone = places[parameter]
            each = SECTOR_BYTES if is_alone else width_of(buffer)
            found[buffer] = min(reads[buffer], points * each)
    return found


def kept_inside(source: str, arguments: Sequence[str], counted: Set[str]) -> dict[str, int]:
    """Buffers that the kernel stores and loads itself, none of `counted` → loops that load it."""
    stored, loaded = set(_STORE.findall(source)), walks(source)
    found: dict[str, int] = {}
    for parameter, argument in _call(source, arguments):
        names = _NAME.findall(argument)
        if parameter in stored and parameter in loaded and counted.isdisjoint(names):
            found[argument] = loaded[parameter]
    return found


def _call(source: str, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """(parameter, argument) of the launch."""
    definition = _DEFINITION.search(source)
    if definition is None:
        return []
    parameters = [part.split(":")[0].strip() for part in definition[1].split(",")]
    return list(zip(parameters, arguments, strict=False))
