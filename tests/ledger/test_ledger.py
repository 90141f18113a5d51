"""The six accounts of a kernel: values, words, limits and vetoes."""

from __future__ import annotations

import pytest
from nests import DEVICE, pricer_of

from fuseledger.clock.roofline import Roofline
from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.view import View
from fuseledger.ledger.account import ACCOUNTS
from fuseledger.ledger.kernel import Kernel, Schedule
from fuseledger.ledger.ledger import KernelLedger, Totals, kernel_ledger, label_of
from fuseledger.ledger.pricer import Pricer


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def ledger_of(pricer: Pricer, tiles: dict[str, int]) -> KernelLedger:
    """The ledger of one kernel under these tiles."""
    nest = pricer.nest
    price = pricer.price(tiles)
    kernel = Kernel(ops=nest.positions, schedule=Schedule(axes=()))
    time = Roofline(DEVICE).time(price)
    return kernel_ledger(nest.graph, kernel, nest, price, time, DEVICE, "k0")


def test_six_accounts_in_order():
    """A kernel has the six accounts, none bare."""
    ledger = ledger_of(pricer_of(gemm, (4096, 4096), (4096, 4096)), {"m": 128, "n": 128})
    assert tuple(ledger.accounts) == ACCOUNTS
    for account in ledger.accounts.values():
        assert account.unit
        assert account.derivation
        assert account.provenance == "modelled"


def test_traffic_names_every_tensor():
    """The derivation of a GEMM's traffic is the sum of its tensors."""
    ledger = ledger_of(pricer_of(gemm, (4096, 4096), (4096, 4096)), {"m": 128, "n": 128})
    traffic = ledger.accounts["traffic"]
    assert traffic.value == 100_663_296 == ledger.bytes
    assert traffic.derivation == "read x0 33.6 MB + x1 33.6 MB, write out 33.6 MB"


def test_a_split_names_its_partials():
    """Split-K says what its partials cost, and that a combine kernel follows."""
    pricer = pricer_of(gemm, (1024, 16384), (16384, 1024))
    ledger = ledger_of(pricer, {"m": 128, "n": 128, "k": 2048})
    assert ledger.accounts["traffic"].derivation.endswith("; partials 67.1 MB")
    assert ledger.accounts["epilogue"].value == 2 * 8 * 1024 * 1024 * 4
    words = "8 partials: 67.1 MB, merged by a second kernel"
    assert ledger.accounts["epilogue"].derivation == words
    assert ledger.launches == 2
    assert ledger.accounts["launches"].derivation.startswith("kernel and combine, 2 × ")


def test_an_op_of_unknown_kind_has_no_grid_and_fills_the_machine():
    """What is not known is not made up; the clock takes such an op for a stream of its bytes: one
    block could draw 1/132 of what 132 SMs do at 32 B a clock each."""
    pricer = pricer_of(
        lambda b, x: b.opaque("sort", [x], [((4096, 4096), "fp16")])[0], (4096, 4096)
    )
    ledger = ledger_of(pricer, {})
    assert ledger.accounts["parallelism"].value == 0
    assert ledger.accounts["registers"].value == 0
    streamed = 2 * 4096 * 4096 * 2 / (3010 * 1e3)
    assert dict(ledger.time.terms)["dram"] == pytest.approx(streamed)


def test_parallelism_is_the_grid():
    """⌈4096/128⌉·⌈4096/128⌉ = 1,024 blocks on 132 SMs, as many at a time as fit, in waves."""
    ledger = ledger_of(pricer_of(gemm, (4096, 4096), (4096, 4096)), {"m": 128, "n": 128})
    parallelism = ledger.accounts["parallelism"]
    assert (parallelism.value, parallelism.limit) == (1024, 132)
    at_once = ledger.price.blocks_per_sm
    waves = f"{1024 / (132 * at_once):.2f} waves"
    words = f"⌈4096/128⌉·⌈4096/128⌉ blocks on 132 SMs × {at_once} = {waves}"
    assert parallelism.derivation == words


def test_capacity_says_who_holds_what():
    """The capacity account lists staged operands and the holder of each tensor."""
    ledger = ledger_of(pricer_of(gemm, (4096, 4096), (4096, 4096)), {"m": 128, "n": 128})
    words = ledger.accounts["capacity"].derivation
    assert words == "operands 16 KB × 2 buffers; out 128·128·4 B in registers"


def test_a_veto_is_in_its_account():
    """What does not fit is a veto of the capacity account, and of the kernel."""
    ledger = ledger_of(pricer_of(gemm, (4096, 4096), (4096, 4096)), {"m": 512, "n": 512})
    ((name, reason),) = ledger.vetoes
    assert name == "capacity"
    assert reason == ledger.accounts["capacity"].veto


def test_labels_are_the_ops_own_words():
    """A kernel is called after its ops, a composite by its name once."""

    def build(b: GraphBuilder, x: View, y: View) -> View:
        return compose.softmax(b, b.map("relu", [b.map("relu", [gemm(b, x, y)])]), -1)

    graph = pricer_of(build, (64, 32), (32, 64)).nest.graph
    assert label_of(graph, (0, 1, 2, 3, 4)) == "gemm+2·relu+softmax"
    assert label_of(graph, (3,)) == "softmax.statistic"


def test_a_part_of_a_composite_does_not_carry_its_name():
    """One op of a softmax says which, two of an attention's are a part of it; all ops of two
    softmaxes are two softmaxes."""

    def build(b: GraphBuilder, x: View) -> View:
        heads = b.reshape(x, [2, 32, 32])
        first, second = (compose.softmax(b, x, axis) for axis in (0, 1))
        both = b.reshape(b.map("add", [first, second]), [2, 32, 32])
        return b.map("add", [both, compose.attention(b, heads, heads, heads)])

    graph = pricer_of(build, (64, 32)).nest.graph
    softmaxes, attention = (
        tuple(i for i, op in enumerate(graph.ops) if op.label == label)
        for label in ("softmax", "attention")
    )
    assert label_of(graph, softmaxes) == "2·softmax"
    assert label_of(graph, softmaxes[:3]) == "softmax+softmax.statistic"
    assert label_of(graph, attention[:2]) == "part of attention"
    assert label_of(graph, attention) == "attention"


def test_totals_are_sums():
    """Totals add bytes, launches and time of kernels that run one after the other."""
    pricer = pricer_of(gemm, (1024, 16384), (16384, 1024))
    one = ledger_of(pricer, {"m": 128, "n": 128, "k": 16384})
    two = ledger_of(pricer, {"m": 128, "n": 128, "k": 2048})
    totals = Totals.of((one, two))
    assert totals.kernels == 2
    assert totals.bytes == one.bytes + two.bytes
    assert totals.launches == 3
    assert totals.time_us == one.time.total_us + two.time.total_us
