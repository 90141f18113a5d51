"""Walks of generated kernels, read off their loops."""

from __future__ import annotations

from fuseledger.peers.inductor_walks import kept_inside, looked_up, places_read, read_again, walks

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


STORED = """
@triton.jit
def triton_red_1(in_ptr0, out_ptr0, out_ptr2, xnumel, r0_numel, R0_BLOCK : tl.constexpr):
    xnumel = 64
    r0_numel = 4096
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + 4096*x0), None)
        tl.store(out_ptr0 + (r0_1 + 4096*x0), tmp0 * 2, None)
    tmp2 = tl.sum(_tmp1, 1)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp4 = tl.load(out_ptr0 + (r0_1 + 4096*x0), None)
        tl.store(out_ptr2 + (r0_1 + 4096*x0), tmp4 - tmp2, None)
"""


def test_what_a_kernel_stores_for_itself_is_found() -> None:
    """buf1 is stored in one loop and loaded in the next; no node reads or writes it besides."""
    arguments = ["buf0", "buf1", "buf2", "64", "4096"]
    assert kept_inside(STORED, arguments, {"buf0", "buf2"}) == {"buf1": 1}
    assert kept_inside(STORED, arguments, {"buf0", "buf1", "buf2"}) == {}


LOOKED_UP = """
@triton.jit
def triton_red_2(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, r0_numel, R0_BLOCK : tl.constexpr):
    xnumel = 4
    r0_numel = 8192
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1 + 8192*x0), r0_mask & xmask, other=0.0)
        tmp6 = tl.load(in_ptr1 + (tmp4 + 4096*r0_1 + 33554432*x0), r0_mask & xmask, other=0.0)
        tmp7 = tl.load(in_ptr2 + (r0_1 + 8192*tmp4), r0_mask & xmask, other=0.0)
"""


def test_looked_up_places_are_counted() -> None:
    """4·8192 labels pick an element each of in_ptr1, a sector of 32 B; in_ptr2 is read by rows, 4 B
    an element; in_ptr0 is walked."""
    points = 4 * 8192
    assert looked_up(LOOKED_UP) == {"in_ptr1": (points, True), "in_ptr2": (points, False)}
    reads = {"a": points * 8, "b": 2**29, "c": 2**29}
    found = places_read(LOOKED_UP, ["a", "b", "c", "d"], reads, lambda _: 4)
    assert found == {"a": points * 8, "b": points * 32, "c": points * 4}
