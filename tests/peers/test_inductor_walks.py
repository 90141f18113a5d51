"""Walks of generated kernels, read off their loops."""

from __future__ import annotations

from fuseledger.peers.inductor_walks import read_again, walks

LOOPED = """
@triton.jit
def triton_red_0(in_out_ptr0, in_ptr1, out_ptr2, xnumel, r0_numel, R0_BLOCK : tl.constexpr):
    xnumel = 64
    tmp9 = tl.load(in_ptr1 + (x0), None)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_out_ptr0 + (r0_1 + 4096*x0), None)
        tmp1 = tl.load(in_out_ptr0 + (r0_1 + 4096*x0), None)
    tmp2 = tl.sum(_tmp1, 1)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp4 = tl.load(in_out_ptr0 + (r0_1 + 4096*x0), None)
        tl.store(in_out_ptr0 + (r0_1 + 4096*x0), tmp4 - tmp2, None)
"""


def test_each_loop_that_loads_is_a_walk() -> None:
    """Two loads in one loop are one walk; a load outside of all loops is one too."""
    assert walks(LOOPED) == {"in_ptr1": 1, "in_out_ptr0": 2}


def test_a_second_walk_is_counted_for_its_buffer() -> None:
    """The call names the operand by the result that overwrites it: it is the one not named."""
    reads = {"buf0": 64 * 4096 * 4, "arg1_1": 256}
    found = read_again(LOOPED, ["buf3", "arg1_1", "64", "4096"], reads)
    assert found == {"buf0": 2 * 64 * 4096 * 4, "arg1_1": 256}


def test_a_kernel_without_source_is_read_once() -> None:
    """A library call says nothing of its loops."""
    assert read_again("", [], {"a": 8}) == {"a": 8}
