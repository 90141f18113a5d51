"""A verdict for every edge: the account, the other choice's price, the rule's word, the flips."""

from __future__ import annotations

import itertools
import random
import re

import networkx as nx
import pytest
from msgspec.structs import replace

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import load as load_device
from fuseledger.devices import replace_figures
from fuseledger.frontends.source import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.resize import free_axes, part_of, resized
from fuseledger.ledger.price import Padding
from fuseledger.planner.partition import Reach
from fuseledger.planner.plan import (
    Planned,
    PlanOptions,
    cut_groups,
    make_plan,
    new_search,
    plan_of_groups,
)
from fuseledger.planner.schedules import ScheduleSearch
from fuseledger.verdict import edges
from fuseledger.verdict.between import Between
from fuseledger.verdict.edges import EdgeVerdict, edge_verdicts
from fuseledger.verdict.proposals import Proposals
from fuseledger.verdict.why import dearer

DEVICE = load_device("h100-sxm")
SKINNY = "relu(x[128,65536] @ w[65536,128])"
ROW_NORM = "x[4096,4096] @ w[4096,16384] | softmax"
BLOCK = "x[8192,4096] | rms_norm | linear(12288) | swiglu | quantise(fp8)"


def planned(source: str, **options: str) -> Planned:
    """The plan of an expression on an H100."""
    return make_plan(load(source), DEVICE, PlanOptions(**options))  # type: ignore[arg-type]


def given(source: str, cut: list[int], **options: str) -> Planned:
    """The plan that a cut makes."""
    graph = load(source)
    return plan_of_groups(graph, DEVICE, cut_groups(graph, cut), PlanOptions(**options))  # type: ignore[arg-type]


def of(verdicts: list[EdgeVerdict], tensor: str) -> EdgeVerdict:
    """The verdict on a tensor."""
    return next(verdict for verdict in verdicts if verdict.tensor == tensor)


@pytest.mark.parametrize("source", [SKINNY, ROW_NORM, BLOCK])
@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_every_edge_has_a_verdict(source: str, objective: str) -> None:
    """Each tensor between ops has an account, a price of the other choice, and the rule's word."""
    plan = planned(source, objective=objective)
    verdicts = edge_verdicts(plan)
    assert {v.tensor for v in verdicts} == {
        name for name in plan.graph.producer if name in plan.graph.consumers
    }
    for verdict in verdicts:
        assert verdict.account
        assert verdict.reason
        assert verdict.rule in ("fused", "cut", "neither")
        assert verdict.bytes_delta != float("inf") or verdict.account == "legality"


def test_a_short_grid_is_priced_by_the_clock() -> None:
    """Where time is minimised a grid short of the SMs vetoes nothing, and its account says so."""
    plan = given("max(x[100,4000000], axis=1) | relu", [2])
    account = plan.kernels[0].accounts["parallelism"]
    assert account.value < 132
    assert account.veto is None
    assert account.derivation.endswith("short of the SMs: priced by the clock")


def test_rule_and_clock_disagree_in_words() -> None:
    """With the ReLU in the kernel k cannot be split: 8·16 tiles leave SMs without a block. The rule
    cuts for that, whatever the clock says."""
    verdict = of(edge_verdicts(given(SKINNY, [2])), "gemm")
    assert verdict.rule == "cut"
    assert verdict.choice == "fused"
    assert verdict.time_delta_us < 0


def test_where_neither_is_usable_a_schedule_is_proposed() -> None:
    """A product of 4,096 rows of 16,384 fits no block; walked twice it is all computed again. The
    search finds two kernels that fit, cover the SMs and compute nothing again."""
    plan = given(ROW_NORM, [3], objective="bytes")
    verdict = of(edge_verdicts(plan), "gemm")
    assert verdict.account == "epilogue"
    assert verdict.proposal is not None
    assert verdict.proposal.startswith("cut behind gemm: ")
    first, second = (
        new_search(plan.graph, DEVICE, PlanOptions(objective="bytes")).choose(group)
        for group in ((0,), (1, 2))
    )
    assert first.usable
    assert second.usable
    assert f"{first.blocks:,} blocks" in verdict.proposal
    assert f"{second.blocks:,} blocks" in verdict.proposal


def test_a_split_is_proposed_for_a_skinny_product() -> None:
    """A 128×128 product in tiles of 16×8 has 128 blocks: the proposal splits k."""
    graph = load("x[128,65536] @ w[65536,128]")
    search = new_search(graph, DEVICE, PlanOptions())
    words = Proposals(search, Reach.of(graph)).nearest((0,))
    assert words is not None
    found = re.search(r"k split in (\d+): ([\d,]+) blocks", words)
    assert found is not None
    assert int(found[1]) > 1
    assert int(found[2].replace(",", "")) >= 132


def test_what_lies_between_is_priced_too() -> None:
    """A residual around two products: one kernel would hold what lies between, and the verdict
    prices that kernel."""
    plan = planned("x[4096,4096] | linear(4096) | gelu | linear(4096) | linear(4096) + x")
    for verdict in edge_verdicts(plan):
        assert "lies between" not in verdict.reason
        assert verdict.bytes_delta != float("inf")


def test_the_launch_cost_at_which_a_verdict_flips() -> None:
    """With a launch at the flip point both choices take as long, with the schedules they have."""
    plan = given("relu(x[64,16384] @ w[16384,64])", [1, 1])
    verdict = of(edge_verdicts(plan), "gemm")
    (flip,) = [flip for flip in verdict.flips if "launch costs" in flip]
    value = float(re.search(r"than ([\d.]+) µs", flip)[1])  # type: ignore[index]
    dear = replace_figures(DEVICE, **{"launch_us.queued": value})
    clock = Roofline(dear)
    apart = sum(clock.time(plan.search.price(group)).total_us for group in ((0,), (1,)))
    together = clock.time(plan.search.price((0, 1))).total_us
    assert together == pytest.approx(apart, abs=0.02)


def test_a_report_of_rows_is_told_of_cuts() -> None:
    """Where a plan has cuts, the verdicts for a report of rows are those of its cuts, as they are
    among all."""
    plan = planned(ROW_NORM)
    cuts = [verdict for verdict in edge_verdicts(plan) if verdict.choice == "cut"]
    assert cuts
    assert edge_verdicts(plan, rows=1) == cuts


def test_a_report_of_rows_is_told_of_the_first_fusions_where_there_is_no_cut() -> None:
    """Of one kernel, as many ops have verdicts on what they make as the report has rows."""
    plan = planned("gemm(4096,4096,4096) + bias + gelu + residual")
    assert len(plan.kernels) == 1
    assert edge_verdicts(plan, rows=2) == edge_verdicts(plan)[:2]


def test_flips_are_searched_for_on_the_edges_nearest_to_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one edge to solve, it is the one whose cut costs least, and it says what all solved
    say of it."""
    plan = planned("gemm(4096,4096,4096) + bias + gelu + residual")
    everything = edge_verdicts(plan, "k1")
    monkeypatch.setattr(edges, "SOLVED", 1)
    one = edge_verdicts(plan, "k1")
    nearest = min(everything, key=lambda verdict: verdict.time_delta_us)
    plain = {verdict.tensor: verdict for verdict in edge_verdicts(plan)}
    assert of(one, nearest.tensor) == nearest != plain[nearest.tensor]
    assert all(v == plain[v.tensor] for v in one if v.tensor != nearest.tensor)


@pytest.mark.parametrize("seed", range(20))
def test_what_lies_between_two_kernels(seed: int) -> None:
    """It is every kernel with an op on a way between two ops of those found, as a search along
    edges finds them."""
    draw = random.Random(seed)
    b = GraphBuilder("random")
    values = [b.input("x", (256, 256), "fp32")]
    for _ in range(20):
        values.append(b.map("add", [draw.choice(values[-4:]), draw.choice(values[-4:])]))
    b.output(values[-1], "y")
    graph = b.finish()
    count = len(graph.ops)
    plan = plan_of_groups(
        graph, DEVICE, [tuple(range(i, min(i + 3, count))) for i in range(0, count, 3)]
    )
    between = Between(plan, Reach.of(graph))
    ways = nx.transitive_closure_dag(
        nx.DiGraph((j, i) for i, before in enumerate(graph.predecessors) for j in before)
    )
    home = plan.plan.home
    kernels = range(len(plan.kernels))
    for one, other in itertools.combinations(kernels, 2):
        found = {one, other}
        while True:
            ops = [i for i in ways if home[i] in found]
            more = {
                home[i] for i in ways
                if any(ways.has_edge(a, i) for a in ops) and any(ways.has_edge(i, z) for z in ops)
            } | found  # fmt: skip
            if more == found:
                break
            found = more
        assert between.involved(one, other) == tuple(sorted(found))


def test_the_bandwidth_at_which_a_verdict_flips() -> None:
    """A product walked twice for its softmax is bound by L2 and arithmetic, cut it waits for DRAM:
    at the bandwidth of the flip point, and not 3 % above, one kernel is the faster."""
    plan = planned("x[4096,192] @ w[192,16384] | softmax")
    verdict = next(v for v in edge_verdicts(plan, "k1") if v.choice == "cut")
    (flip,) = [flip for flip in verdict.flips if "below" in flip]
    value = float(re.search(r"below ([\d,]+) GB/s", flip)[1].replace(",", ""))  # type: ignore[index]
    whole = tuple(range(len(plan.graph.ops)))
    parts = [kernel.kernel.ops for kernel in plan.kernels]
    for bandwidth, is_faster in ((value, True), (1.03 * value, False)):
        clock = Roofline(replace_figures(DEVICE, dram_bandwidth_gbs=bandwidth))
        apart = sum(clock.time(plan.search.price(group)).total_us for group in parts)
        assert (clock.time(plan.search.price(whole)).total_us < apart) is is_faster


def test_sizes_flip_where_the_plan_does() -> None:
    """A size that flips a verdict is one at which the planner itself changes its mind."""
    plan = planned("x[4096,4096] @ w[4096,16384] | softmax")
    groups = [kernel.kernel.ops for kernel in plan.kernels]
    assert len(groups) == 2
    verdict = next(v for v in edge_verdicts(plan, "k2") if v.choice == "cut")
    found = [re.search(r"(\w+) = ([\d,]+); at \w+ = ([\d,]+): (\w+)", f) for f in verdict.flips]
    flips = [(m[1], int(m[2].replace(",", "")), int(m[3].replace(",", "")), m[4])
             for m in found if m]  # fmt: skip
    assert flips
    for axis, last, first, becomes in flips:
        assert abs(first - last) == 1
        assert becomes == "fused"
        graph = resized(plan.graph, {axis: first})
        search = ScheduleSearch(graph, DEVICE, Roofline(DEVICE))
        whole = search.choose((0, 1, 2))
        parts = [search.choose(group) for group in groups]
        assert whole.usable
        assert whole.cost <= sum(part.cost for part in parts)


def test_free_axes_are_those_no_window_reads() -> None:
    """All axes of a product are free; a part of a graph has what it reads as its inputs."""
    graph = load("x[64,32] @ w[32,48] | relu | softmax")
    part = part_of(graph, (1, 2, 3))
    assert {t.name: t.role for t in part.tensors.values() if t.is_external} == {"gemm": "input"}
    assert set(free_axes(graph)) == {"m", "n", "k"}
    assert resized(graph, {"m": 128}).tensors["x"].shape == (128, 32)
    assert replace(graph, name=graph.name).floor_bytes == graph.floor_bytes


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_a_cut_that_the_user_gave_is_no_choice_of_the_search(objective: str) -> None:
    """Where `--cut` decides against the ledger the account is `given`, with the other's gain."""
    plan = given("gemm(4096,4096,4096) + bias + gelu + residual", [2, 2], objective=objective)
    apart = of(edge_verdicts(plan), "bias_1")
    saved = {"bytes": 2 * 2 * 4096 * 4096, "time": apart.time_delta_us}[objective]
    words = f"{saved / 1e6:.1f} MB" if objective == "bytes" else f"{-saved:.1f} µs"
    assert (apart.choice, apart.account) == ("cut", "given")
    assert apart.reason == f"together they would save {words}"
    whole = given("rms_norm(x[8192,4096]) @ w[4096,12288]", [3], objective="time")
    fused = of(edge_verdicts(whole), "rms_norm.apply")
    assert (fused.choice, fused.account) == ("fused", "given")
    assert "cut here alone the plan would be" in fused.reason
    chosen = edge_verdicts(planned("gemm(4096,4096,4096) + bias + gelu + residual"))
    assert "given" not in {verdict.account for verdict in chosen}


def test_a_plan_cut_short_blames_the_search_not_its_neighbours() -> None:
    """Kernels and what lies between them, as one, leave a partition: where that would be cheaper
    it was no candidate, and what ended the search is told."""
    hurried = make_plan(load("gemm(64,64,64) + bias"), DEVICE, PlanOptions(time_limit_s=0.0))
    (verdict,) = edge_verdicts(hurried)
    assert (verdict.choice, verdict.account) == ("cut", "search")
    assert verdict.time_delta_us < 0
    assert verdict.reason.endswith(
        "but no such kernel was among the candidates: the time limit ended the search for "
        "candidates"
    )


@pytest.mark.parametrize(("loads", "account"), [(2.0, "capacity"), (0.9, "parallelism")])
def test_loads_are_blamed_only_where_there_are_more_of_them(loads: float, account: str) -> None:
    """A grid of 133 leaves the second wave of 132 SMs empty: L2 is slower, whatever is loaded."""
    search = new_search(load("gemm(4096,4096,4096) + bias"), DEVICE, PlanOptions())
    parts = [search.price(group) for group in ((0,), (1,))]
    bytes_ = int(loads * sum(part.l2_bytes for part in parts))
    together = replace(search.price((0, 1)), blocks=DEVICE.sm_count + 1, l2_bytes=bytes_)
    found, words = dearer(search, together, parts)
    assert found == account
    assert "-" not in words


@pytest.mark.parametrize("has_library", [True, False])
def test_padded_tiles_are_blamed(has_library: bool) -> None:
    """SiLU takes the product to generated code, here on tiles that do three times the work."""
    search = new_search(load("gemm(4096,4096,4096) + silu"), DEVICE, PlanOptions())
    product, chain, together = (search.price(group) for group in ((0,), (1,), (0, 1)))
    if not has_library:
        product = replace(product, calls=together.calls)
    together = replace(together, padding=Padding(generated=3.0, library=1.0))
    account, words = dearer(search, together, [product, chain])
    if has_library:
        assert account == "realisation"
        assert words.endswith("; its tiles are padded by 200% more")
    else:
        assert (account, words) == ("epilogue", "its tiles are padded by 200%")
