"""R5: what a block holds at once, who holds it, and the occupancy that remains."""

from __future__ import annotations

from nests import DEVICE, pricer_of

from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution, pool


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def batch_norm(b: GraphBuilder, x: View, y: View) -> View:
    """Batch norm in training of x·y."""
    return compose.batch_norm(b, gemm(b, x, y), None, None, None, None, 1e-5, training=True)


def test_an_accumulator_is_fp32():
    """A 128×128 tile accumulates in 65,536 bytes of registers, 128 for each thread of 4 warps."""
    price = pricer_of(gemm, (4096, 4096), (4096, 4096)).price({"m": 128, "n": 128})
    (held,) = price.held
    assert (held.name, held.holder) == ("out", "registers")
    assert held.register_bytes == price.register_bytes == 128 * 128 * 4
    # 65,536/(4·128) = 128 of a thread's 255 registers leave room for addresses: 4 warps do
    assert (price.warps, price.spill_bytes) == (4, 0)
    assert 128 < price.registers < 255


def test_operands_are_staged():
    """A stage holds 64 bytes along k of 128 rows and of 128 columns; two stages are 32 KB."""
    price = pricer_of(gemm, (4096, 4096), (4096, 4096)).price({"m": 128, "n": 128})
    assert price.staged is not None
    assert price.staged.step_bytes == 2 * 128 * 64
    assert price.shared_bytes == price.staged_bytes == 2 * 2 * 128 * 64


def test_batch_norm_after_a_gemm_owns_all_rows():
    """The product is whole along 1,024 rows: 32 columns of it are 131,072 bytes in fp32 registers,
    too many for the registers' small share, so 65,536 bytes of fp16 in shared memory."""
    price = pricer_of(batch_norm, (1024, 64), (64, 512)).price({"n": 32})
    held = next(item for item in price.held if item.name == "gemm")
    assert held.register_bytes == 1024 * 32 * 4
    assert held.shared_bytes == 1024 * 32 * 2
    assert dict(held.extents) == {"m": 1024, "n": 32}
    assert held.holder == "shared memory"
    assert not price.vetoes


def test_what_fits_nowhere_is_vetoed_in_figures():
    """16,384 rows of 16 columns are 512 KB in fp16: no memory has room, and the veto says so."""
    price = pricer_of(batch_norm, (16384, 64), (64, 512)).price({"n": 16})
    ((account, reason),) = price.vetoes
    assert account == "capacity"
    assert reason.startswith("gemm needs 16384·16·2 B = 512 KB a block; ")


def test_softmax_owns_its_rows_in_registers():
    """Four rows of 1,024 fp16 take 16,384 bytes as fp32 registers, and the statistic 2·4·4."""
    pricer = pricer_of(lambda b, x: compose.softmax(b, x, -1), (64, 1024))
    (rows,) = pricer.nest.open_axes
    price = pricer.price({rows: 4})
    found = {item.name: item for item in price.held}
    assert found["x0"].register_bytes == 4 * 1024 * 4
    assert found["x0"].shared_bytes == 4 * 1024 * 2
    assert found["x0"].holder == "registers"
    assert found["softmax.statistic"].register_bytes == 4 * 4


def test_two_walks_hold_no_rows():
    """A softmax that walks its rows twice holds the statistic alone."""
    pricer = pricer_of(lambda b, x: compose.softmax(b, x, -1), (64, 1024))
    price = pricer.price({}, walks=2)
    assert {item.name for item in price.held} == {"softmax.statistic", "softmax.statistic.sumexp"}


def test_a_second_accumulator_is_whole():
    """GEMM→GEMM: 64 rows of all 256 columns accumulate through the loop over 128 (64 at a time)."""

    def build(b: GraphBuilder, x: View, y: View, z: View) -> View:
        return b.contract("gemm", "mn,no->mo", [gemm(b, x, y), z])

    price = pricer_of(build, (512, 64), (64, 128), (128, 256)).price({"m": 64})
    found = {item.name: item.register_bytes for item in price.held}
    assert found == {"gemm": 64 * 64 * 4, "out": 64 * 256 * 4}


def test_a_pointwise_chain_holds_a_fragment():
    """Without accumulators a block has 8 elements a thread of 4 warps in flight: 4,096 bytes."""
    pricer = pricer_of(lambda b, x: b.map("exp", [b.map("relu", [x])]), (1 << 20,))
    price = pricer.price({"d": 1024})
    assert price.held == []
    assert price.register_bytes == 8 * 128 * 4
    assert (price.warps, price.spill_bytes) == (4, 0)
    # 2²⁰ elements in one block are 2,048 for each thread of the most warps
    assert pricer.price({}).spill_bytes > 4 * (2048 - 128)


def test_too_large_an_accumulator_does_not_fit():
    """A 512×512 tile would be 1 MiB of accumulators, over the 192 KB that a block may have."""
    price = pricer_of(gemm, (4096, 4096), (4096, 4096)).price({"m": 512, "n": 512})
    assert DEVICE.accumulator_bytes_per_block == 192 * 1024
    assert [account for account, _ in price.vetoes] == ["capacity"]
    assert "out needs 512·512·4 B = 1,024 KB a block; 192 KB of registers" in price.vetoes[0][1]


def test_occupancy_is_the_least_of_all_limits():
    """Registers of 128 threads allow 2 or 3 blocks of a 65,536-register SM, 33 KB each 6."""
    price = pricer_of(gemm, (4096, 4096), (4096, 4096)).price({"m": 128, "n": 128})
    by_registers = 65536 // (price.registers * 128)
    assert by_registers in (2, 3)
    assert 228 * 1024 // (price.shared_bytes + 1024) == 6
    assert price.blocks_per_sm == by_registers


def test_a_window_in_a_split_sum_is_walked():
    """Rows of a pool inside a sum are a loop of the block, also where the sum is in parts: what the
    pool reads is held 64 points at a time, and not as the part's 32·32 window."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        image = convolution(b, x, w, [Window(kernel=3, before=1, after=1)] * 2)
        pooled = pool(b, b.map("exp", [image]), [Window(kernel=4, stride=4)] * 2, "max")
        (total,) = b.reduce("sum", [pooled], [2, 3], "sum")
        return total

    pricer = pricer_of(build, (2, 8, 65, 65), (16, 8, 3, 3), dtype="fp32")
    assert {pricer.nest.sizes[name] for name in pricer.nest.split_axes} == {16}
    price = pricer.price(dict.fromkeys(pricer.nest.split_axes, 8))
    held = {item.name: dict(item.extents) for item in price.held}
    assert held["conv"] == {"b": 2, "o": 16, "loop": 64}
