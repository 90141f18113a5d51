"""Decode attention: one query per head against a long cache, a block a head or split-KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuseledger.devices import Device
from fuseledger.errors import DecisionError
from fuseledger.graph.tensor import DTYPE_BITS, is_float
from fuseledger.ledger.account import format_kib
from fuseledger.verdict.flip_points import flips_of_size
from fuseledger.verdict.options import (
    Decision,
    DeclaredOption,
    Derived,
    Part,
    decide_declared,
    priced_option,
    product,
)
from fuseledger.verdict.rule import apply_rule

KEYS_PER_TILE = 128
"""Keys and values that a block holds of one pipeline stage."""
STAGES = 2
MAX_SPLIT = 1024
SIZE_MAX = 1 << 24


def attention_options(
    heads: int, kv: int, d: int, splits: Sequence[int], *, dtype: str = "fp16",
    budget_bytes: int | None = None,
) -> list[DeclaredOption]:  # fmt: skip
    """One block a head, then split-KV by each factor, with their bytes by formula.

    A part leaves its unnormalised result and its (max, Σexp) in fp32; a second kernel reads and
    combines them.
    """
    k, v = (Part(name, heads * kv * d, dtype) for name in ("k", "v"))
    q, out = (Part(name, heads * d, dtype) for name in ("q", "out"))
    flops = 4.0 * heads * kv * d
    held = _held(d, dtype)
    options = [
        DeclaredOption(
            name="one block a head", reads=(q, k, v), writes=(out,), flops=flops, on_chip=held,
            grid=product(heads, of="heads"), budget_bytes=budget_bytes,
        )
    ]  # fmt: skip
    for split in splits:
        partials = Part("partials", heads * split * d, "fp32")
        statistics = Part("statistics", heads * split * 2, "fp32")
        again = (Part(f"{p.name} again", p.elements, p.dtype) for p in (partials, statistics))
        options.append(
            DeclaredOption(
                name=f"split-KV={split}", reads=(q, k, v, *again),
                writes=(partials, statistics, out),
                flops=flops, on_chip=held, launches=2, choice="split", budget_bytes=budget_bytes,
                grid=product(heads, split, of="heads × parts"),
            )
        )  # fmt: skip
    return options


def decide_attention(
    heads: int, kv: int, d: int, device: Device, *, splits: Sequence[int] = (), dtype: str = "fp16"
) -> Decision:
    """The verdict between a block a head and split-KV; without `splits`, by the best factor.

    Raises DecisionError naming a size, a dtype or a split factor that cannot be.
    """
    for name, size in (("heads", heads), ("kv", kv), ("d", d)):
        if not 1 <= size <= SIZE_MAX:
            raise DecisionError(f"attention: {name} is {size}, and must be from 1 to {SIZE_MAX:,}")
    if dtype not in DTYPE_BITS or not is_float(dtype):
        raise DecisionError(f"attention: {dtype!r} is no floating-point dtype")
    for split in splits:
        if not 2 <= split <= kv:
            raise DecisionError(f"attention: a split of {split} must be from 2 to kv = {kv}")
    if kv < 2:
        raise DecisionError("attention: kv = 1 leaves nothing to split")
    factors = tuple(dict.fromkeys(splits)) or (best_split(heads, kv, d, device, dtype),)

    def options(h: int, n: int, w: int, parts: Sequence[int]) -> list[DeclaredOption]:
        return attention_options(h, n, w, parts, dtype=dtype)

    def choice(h: int, n: int, w: int, parts: Sequence[int]) -> str:
        priced = [priced_option(o, device, warn_small=True) for o in options(h, n, w, parts)]
        return apply_rule(priced, device.sm_count, device.stream_gbs).choice

    title = f"decode attention, {heads:,} heads, kv {kv:,}, d {d:,}, {dtype}"
    decision = decide_declared(
        title, options(heads, kv, d, factors), device, notes=_NOTES, warn_small=True,
        propose=lambda: _usable(heads, kv, d, device, dtype),
    )  # fmt: skip
    now = decision.verdict.choice
    flips = [
        *flips_of_size("heads", heads, 1, SIZE_MAX, now, lambda h: choice(h, kv, d, factors)),
        *flips_of_size("d", d, 1, SIZE_MAX, now, lambda w: choice(heads, kv, w, factors)),
    ]
    if len(factors) == 1:
        flips += flips_of_size(
            "split", factors[0], 2, max(2, min(kv, MAX_SPLIT)), now,
            lambda parts: choice(heads, kv, d, (parts,)),
        )  # fmt: skip
    verdict = replace(decision.verdict, flips=(*decision.verdict.flips, *flips))
    return replace(decision, verdict=verdict)


def best_split(heads: int, kv: int, d: int, device: Device, dtype: str = "fp16") -> int:
    """The fastest factor by the clock, of those whose grid covers the machine where any does."""
    longest = max(2, min(MAX_SPLIT, kv // KEYS_PER_TILE))
    _, *options = attention_options(heads, kv, d, range(2, longest + 1), dtype=dtype)
    sms = device.sm_count or 1

    def key(item: tuple[int, DeclaredOption]) -> tuple[bool, float, int]:
        split, option = item
        return option.grid.value < sms, priced_option(option, device).time_us or 0.0, split

    return min(zip(range(2, longest + 1), options, strict=True), key=key)[0]


_NOTES = ("bytes, grid and bytes on chip are by formula: declared, not planned",)


def _held(d: int, dtype: str, keys: int = KEYS_PER_TILE) -> Derived:
    bits = DTYPE_BITS[dtype]
    held = product(2, STAGES, keys, d, bits, of="k and v × stages × keys × d × bits")
    return Derived(-(-held.value // 8), held.words)


def _usable(heads: int, kv: int, d: int, device: Device, dtype: str) -> str | None:
    """Tiles that fit and a factor that covers the machine, where both exist."""
    room, sms = device.shared_memory_per_block_bytes, device.sm_count or 1
    keys = KEYS_PER_TILE
    while keys > 1 and room is not None and _held(d, dtype, keys).value > room:
        keys //= 2
    held = _held(d, dtype, keys).value
    split = best_split(heads, kv, d, device, dtype)
    if (room is not None and held > room) or heads * split < sms:
        return None
    grid = f"a grid of {heads * split:,} on {sms:,} SMs"
    return f"split-KV={split} with tiles of {keys} keys: {format_kib(held)} a block fit, {grid}"
