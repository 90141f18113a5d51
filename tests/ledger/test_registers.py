from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.ledger.kernel import SHALLOW, Pipeline
from fuseledger.ledger.live_values import Loop
from fuseledger.ledger.matrix_units import Chain, Share, product_unit, share_of_warp
from fuseledger.ledger.nest import analyse
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.registers import AMOUNTS, fitted_arch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"


def _pricer(source: str, device: str = "h100-sxm") -> Pricer:
    graph = load(source, dtype="fp16", dims={})
    return Pricer(analyse(graph, tuple(range(len(graph.ops)))), load_device(device))


def _amounts(pricer: Pricer, tiles: dict[str, int], warps: int) -> dict[str, float]:
    model = pricer.footprint.registers
    block = model.block(pricer.regions(tiles), tiles, owning=True, pipeline=SHALLOW)
    found = model.amounts(block, warps, owning=True)
    return dict(zip(AMOUNTS, found, strict=True))


def _price(source: str, tiles: dict[str, int], device: str = "h100-sxm") -> Price:
    return _pricer(source, device).price(tiles)


def test_amounts_of_a_gemm_with_an_epilogue() -> None:
    """A thread of 4 warps has 128 of 128·128 accumulators, and a residual of 64 packed words."""
    found = _amounts(_pricer(CHAIN), {"m": 128, "n": 128}, warps=4)
    assert (found["accumulators"], found["held"]) == (128 * 128 / 128, 0)
    assert found["stored"] == 128 / 2  # fp16: two to a register
    assert found["words_special"] == 128 / 2 + 1 / 2  # the residual, and 128 biases on 128 threads
    assert found["fragments"] == pytest.approx((128 * 128 / 4) ** 0.5)
    # one step loads 64 bytes of each row of A and B: 128·32 + 32·128 fp16, 32 + 32 a thread
    assert found["operand_words"] == (32 + 32) / 2
    assert found["operand_vectors"] == (32 + 32) / 8
    # most is live where the residual is added: the product, the residual and their sum
    assert found["live_special"] == 3 * 128


def test_amounts_of_a_pointwise_tile_are_rounded_to_powers_of_two() -> None:
    """Tiles of 3·100 elements are held as 512: four for each of 128 threads."""
    found = _amounts(_pricer("x[300,1000] | relu"), {"d": 3, "d1": 100}, warps=4)
    assert (found["tile"], found["words"], found["vectors"]) == (4.0, 2.0, 0.5)
    assert found["special"] == found["words_special"] == 0


def test_a_warp_has_its_rows_and_columns_of_a_product() -> None:
    """256×64 on 4 warps: rows are dealt out twice, down to 64×64 a warp; all warps of 16×128 have
    the same rows."""
    assert share_of_warp("mma", 256, 64, 4) == Share(64, 64, 32)
    assert share_of_warp("mma", 16, 128, 4) == Share(16, 32, 32)
    assert share_of_warp("wgmma", 64, 128, 8) == Share(16, 64, 32)
    found = _amounts(_pricer(CHAIN), {"m": 256, "n": 64}, warps=4)
    assert found["sides"] == 256 / 4 + 64
    assert found["accumulators"] == 256 * 64 / 128


@pytest.mark.parametrize(
    ("tile", "warps", "share"),
    [
        ((128, 64), 4, (64, 64)),  # two wavefronts, one below the other
        ((64, 128), 8, (64, 32)),  # four side by side
        ((32, 64), 8, (32, 64)),  # two instructions of 32×32: four wavefronts compute the same
        ((16, 128), 8, (16, 32)),  # instructions of 16×16
    ],
)
def test_wavefronts_have_a_share_of_a_tile(
    tile: tuple[int, int], warps: int, share: tuple[int, int]
) -> None:
    """As `warpsPerCTA` and `instrShape` of Triton's layout say, compiled for gfx942."""
    assert share_of_warp("mfma", *tile, warps) == Share(*share, 64)


@pytest.mark.parametrize(
    ("unit", "second", "warps", "shares"),
    [
        ("mma", (32, 32), 4, ((16, 64), (16, 32))),  # all warps along the rows of both
        ("mma", (16, 16), 8, ((16, 64), (16, 16))),  # of one fragment: all compute the same
        ("mma", (16, 32), 8, ((16, 8), (16, 8))),  # all side by side
        ("wgmma", (128, 32), 8, ((16, 64), (16, 32))),
        ("mfma", (16, 32), 8, ((16, 64), (16, 16))),  # the first by rows, the second by columns
    ],
)
def test_products_of_one_loop_are_dealt_alike(
    unit: str, second: tuple[int, int], warps: int, shares: tuple[tuple[int, int], ...]
) -> None:
    """Scores of 64 columns and a product that takes them: as `warpsPerCTA` of Triton's layouts
    says, compiled for sm_120, sm_90 and gfx942; the second tile decides on NVIDIA."""
    lanes = 64 if unit == "mfma" else 32
    first = (second[0], 64)
    for tile, share, is_last in ((first, shares[0], False), (second, shares[1], True)):
        chain = Chain(*second, is_last=is_last)
        assert share_of_warp(unit, *tile, warps, chain) == Share(*share, lanes)


def test_loops_of_products_have_their_amounts_one_at_a_time() -> None:
    """(a @ b) @ c, 128×64 on 4 warps: c is walked 32 rows at a time, so a @ b is made in tiles of
    128×32 in a loop of its own, while the other's accumulators wait."""
    pricer = _pricer("(a[4096,1024] @ b[1024,128]) @ c[128,1024]", "a100-sxm-80")
    rows, columns = [n for n in pricer.nest.open_axes if n not in pricer.nest.split_axes]
    found = _amounts(pricer, {rows: 128, columns: 64}, warps=4)
    assert found["accumulators"] == (128 * 64 + 128 * 32) / 128
    assert found["sides"] == 128 / 2 + 64 / 2  # of 128×64: two warps by two; 128×32 has 32 + 32
    assert found["operand_words"] == (128 * 32 + 32 * 32) / 2 / 128  # a step of a and of b


def test_rows_and_what_is_reduced_are_rounded_up_apart() -> None:
    """Windows of 3×3 over 56 outputs are 64 rows of 16 lanes: 8 elements for each of 128
    threads."""
    pricer = _pricer("conv(x[8,128,56,56],w[128,1,3,3],padding=1,groups=128)")
    rows = [name for name in pricer.nest.open_axes if name not in pricer.nest.split_axes]
    tiles = dict.fromkeys(rows, 1) | {"x": 56}
    assert _amounts(pricer, tiles, warps=4)["tile"] == 64 * 16 / 128


def test_long_functions_have_temporaries_of_a_pair_of_elements() -> None:
    """tanh takes a quotient, gelu branches: for two of eight elements of a thread, and all eight
    are live across a branch."""
    quotient = _amounts(_pricer("x[1024,1024] | tanh"), {"d": 1, "d1": 1024}, warps=4)
    branch = _amounts(_pricer("x[1024,1024] | gelu"), {"d": 1, "d1": 1024}, warps=4)
    assert (quotient["divides"], quotient["branches"], quotient["branched"]) == (2, 0, 0)
    assert (branch["divides"], branch["branches"], branch["branched"]) == (0, 2, 8)


def test_short_loops_are_unrolled() -> None:
    """4 elements of one FLOP for each of 128 threads, and 16 instructions more, are 24: six steps
    have room in 150, four are taken; 12 steps (288) are all of a loop; 20 elements, 56
    instructions, leave no room for three."""
    assert Loop(512, 100, 1).unrolled(128) == 4
    assert Loop(512, 12, 1).unrolled(128) == 12
    assert Loop(2560, 100, 1).unrolled(128) == 1


def test_what_varies_along_a_row_is_loaded_for_every_row() -> None:
    """Rows of two tiled axes are one: a bias along the first is loaded for all 64·64 of them, 32 a
    thread of 128 beside 256 of x; where a block has one of that axis, one is for all."""
    b = GraphBuilder("bias")
    x, bias = b.input("x", (64, 64, 64), "fp16"), b.input("bias", (64, 1, 1), "fp16")
    b.output(b.map("add", [x, bias]), "out")
    pricer = Pricer(analyse(b.finish(), (0,)), load_device("h100-sxm"))
    first, second, third = pricer.nest.open_axes
    assert _amounts(pricer, {first: 64, second: 64, third: 8}, warps=4)["words"] == (256 + 32) / 2
    assert _amounts(pricer, {first: 1, second: 64, third: 8}, warps=4)["words"] == (4 + 1) / 2


def test_values_of_an_epilogue_add_to_a_loop_that_is_over() -> None:
    """128×128 in 4 warps: 3·128 live values of the epilogue, beyond the 128 accumulators and 32."""
    found = _amounts(_pricer(CHAIN), {"m": 128, "n": 128}, warps=4)
    assert found["beyond_live_special"] == 3 * 128 - 128 - 32


def test_an_operand_made_in_the_kernel_lies_with_every_warp() -> None:
    """silu(x) @ w, 64 rows and 16 columns on 4 warps of rows: each has 16 rows by 32 points of a
    step, in fp16, on 32 threads."""
    pricer = _pricer("(x[4096,2048] | silu) @ w[2048,4096]")
    rows, columns = [n for n in pricer.nest.open_axes if n not in pricer.nest.split_axes]
    found = _amounts(pricer, {rows: 64, columns: 16}, warps=4)
    assert found["made"] == 16 * 32 / 2 / 32


def test_what_is_read_elsewhere_is_live_twice() -> None:
    """Rows reversed and added to a product as it is: the product, itself turned, and their sum."""
    b = GraphBuilder("turned")
    x, w = b.input("x", (64, 64), "fp16"), b.weight("w", (64, 64), "fp16")
    product = b.contract("gemm", "mk,kn->mn", [x, w])
    b.output(b.map("add", [product, b.slice(product, 0, 63, 64, -1)]), "y")
    pricer = Pricer(analyse(b.finish(), (0, 1)), load_device("h100-sxm"))
    assert _amounts(pricer, {"m": 64, "n": 64}, warps=4)["live"] == 3 * 64 * 64 / 128


def test_a_batch_is_taken_one_by_one() -> None:
    """Four products of 64×64 in a block of 4 warps, one by one: 32 accumulators a thread."""
    pricer = _pricer("gemm(1024,1024,512,batch=16)")
    (batch,) = set(pricer.nest.open_axes) - {"m", "n", "k"}
    found = _amounts(pricer, {batch: 4, "m": 64, "n": 64}, warps=4)
    assert found["accumulators"] == 32


def test_looped_products_hold_one_step_of_the_loop() -> None:
    """Attention's scores are as many columns at a time as a step of the keys, however many there
    are: 32 of fp16 in 64 bytes, 64 in 128."""
    pricer = _pricer("attention(q[8,16,2048,64],k[8,16,2048,64],v[8,16,2048,64])")
    tiles = {"a": 1, "b": 1, "m": 64, "d1": 64}
    model = pricer.footprint.registers
    for step_bytes, keys in ((64, 32), (128, 64)):
        pipeline = Pipeline(step_bytes)
        block = model.block(pricer.regions(tiles), tiles, owning=True, pipeline=pipeline)
        assert block.sides == [(64, keys), (64, 64)]


def test_what_is_held_beside_a_product_lies_in_registers() -> None:
    """(layer_norm(x) @ w): 64 rows of 512 held whole are 256 values for each of 128 threads."""
    pricer = _pricer("layer_norm(x[4096,512]) @ w[512,1024]")
    rows, columns = [n for n in pricer.nest.open_axes if n not in pricer.nest.split_axes]
    found = _amounts(pricer, {rows: 64, columns: 64}, warps=4)
    assert found["accumulators"] == 64 * 64 / 128
    assert found["held"] >= 64 * 512 / 128


def test_what_the_compiler_spills_the_model_spills() -> None:
    """Compiled with Triton 3.9.0: 255 registers and 344 B, 255 and 528 B; without, 63 and 0."""
    chain = _price(CHAIN, {"m": 256, "n": 128})
    assert chain.registers == 255
    assert chain.spill_bytes > 0
    softmax = _price("softmax(x[4096,8192])", {"d": 4})
    assert softmax.warps > 4  # 256 values a thread of 4 warps do not fit
    norm = _price("layer_norm(x[4096,4096])", {"d": 1})
    assert norm.spill_bytes == 0
    assert abs(norm.registers / 63 - 1) < 0.5


def test_fewer_columns_avoid_the_spill() -> None:
    """128×128 has half the accumulators of 256×128, and nothing spills."""
    assert _price(CHAIN, {"m": 128, "n": 128}).spill_bytes == 0


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [("sm_75", "sm_80"), ("sm_89", "sm_80"), ("sm_90", "sm_90"), ("sm_103", "sm_100"),
     ("sm_120", "sm_120"), ("gfx90a", "gfx942"), ("gfx950", "gfx942")],
)  # fmt: skip
def test_every_architecture_has_a_fit(arch: str, nearest: str) -> None:
    """An architecture that was not swept takes the fit of the nearest older one."""
    assert fitted_arch(arch) == nearest


def test_units_are_those_that_triton_takes() -> None:
    """wgmma wants 64 rows and a warp group, tcgen05 64 rows; fp32 is multiplied on the lanes."""
    assert product_unit("sm_90", "fp16", 64, 64, 4) == "wgmma"
    assert product_unit("sm_90", "fp16", 32, 64, 4) == "mma"
    assert product_unit("sm_100", "bf16", 128, 64, 4) == "tcgen05"
    assert product_unit("sm_120", "bf16", 128, 64, 4) == "mma"
    assert product_unit("sm_90", "fp32", 128, 64, 4) == "fma"
    assert product_unit("gfx942", "fp32", 128, 64, 4) == "mfma"


def test_the_model_on_kernels_it_was_not_fitted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held out by family and tile, the median error is within 10 %, spills right on 95 %."""
    pytest.importorskip("highspy")
    np = pytest.importorskip("numpy")
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import register_fit

    rows = register_fit.rows()
    assert len(rows) >= 500
    register_fit.cross_validate(rows)
    errors = [row.error for row in rows if not row.spills]
    assert np.median(errors) <= 0.10
    right = [(row.predicted > row.limit) == row.spills for row in rows]
    assert np.mean(right) >= 0.95
