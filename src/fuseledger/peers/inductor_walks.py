"""How often a kernel that TorchInductor generates walks what it reads.

Its scheduler counts each buffer once. A reduction whose row does not fit a block is a loop, and
what is read again after it is loaded by a second loop: the two walks that our own ledger charges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_LOOP = re.compile(r"^    for \w+offset in ")
_LOAD = re.compile(r"tl\.load\((\w+) \+")
_DEFINITION = re.compile(r"@triton\.jit\s+def \w+\((.*?)\):", re.S)


def walks(source: str) -> dict[str, int]:
    """Pointer parameter → loops of the generated function that load from it, at least one."""
    definition = _DEFINITION.search(source)
    if definition is None:
        return {}
    found: dict[str, int] = {}
    inside: set[str] = set()
    for line in source[definition.end() :].splitlines():
        if line[:5].strip() or _LOOP.match(line):  # a statement outside the loop ends it
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
    definition = _DEFINITION.search(source)
    if definition is None:
        return dict(reads)
    parameters = [part.split(":")[0].strip() for part in definition[1].split(",")]
    named: dict[str, str] = {}
    for parameter, argument in zip(parameters, arguments, strict=False):
        buffer = next((n for n in re.findall(r"[A-Za-z_]\w*", argument) if n in reads), None)
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
