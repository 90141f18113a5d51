"""Rules R1 to R3 from axes alone: what may be tiled, what must be whole, what is walked again."""

from __future__ import annotations

from nests import nest_of

from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.compose import softmax
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution, take, take_along


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def test_a_gemm_may_tile_all_three_axes():
    """Of a GEMM alone the grid may tile m and n, and k makes the result partial (R3)."""
    nest = nest_of(gemm, (64, 32), (32, 48))
    assert set(nest.open_axes) == {"m", "n", "k"}
    assert nest.split_axes == {"k"}
    assert not nest.carried


def test_an_epilogue_closes_the_split():
    """With a reader in the kernel the reduced axis is looped in the block: no split-K."""
    nest = nest_of(lambda b, x, y: b.map("relu", [gemm(b, x, y)]), (64, 32), (32, 48))
    assert set(nest.open_axes) == {"m", "n"}
    assert not nest.split_axes


def test_softmax_owns_its_rows():
    """Softmax reads x before and after the statistic over n: x is whole along n (R2)."""
    nest = nest_of(lambda b, x: compose.softmax(b, x, -1), (64, 512))
    (columns,) = (axis.name for axis in nest.graph.tensors["x0"].dims[1])
    assert nest.carried == {"x0": frozenset({columns})}
    assert columns not in nest.open_axes


def test_values_of_an_attention_are_not_carried():
    """What only the second pass over n needs is made in it: x is whole along n, relu(v) is not."""
    nest = nest_of(
        lambda b, x, v: b.contract(
            "gemm", "mn,no->mo", [compose.softmax(b, x, -1), b.map("relu", [v])]
        ),
        (64, 128),
        (128, 32),
    )
    assert set(nest.carried) == {"x0"}


def test_a_statistic_alone_carries_nothing():
    """One pass over x holds nothing but its results."""
    nest = nest_of(lambda b, x: compose.softmax(b, x, -1), (64, 512), ops=(0,))
    assert not nest.carried
    assert len(nest.split_axes) == 1
    assert set(nest.outputs) == {"softmax.statistic", "softmax.statistic.sumexp"}


def test_a_norm_after_a_gemm_carries_the_product():
    """Layer norm of a GEMM's rows needs the product whole along n, not the GEMM's operands."""
    nest = nest_of(
        lambda b, x, y: compose.layer_norm(b, gemm(b, x, y), 1, None, None, 1e-5),
        (64, 32),
        (32, 48),
    )
    assert nest.carried == {"gemm": frozenset({"n"})}


def test_batch_norm_after_a_gemm_carries_the_rows():
    """Batch norm reduces m, so the product is whole along m and only n may be tiled."""
    nest = nest_of(
        lambda b, x, y: compose.batch_norm(
            b, gemm(b, x, y), None, None, None, None, 1e-5, training=True
        ),
        (1024, 32),
        (32, 48),
    )
    assert nest.carried == {"gemm": frozenset({"m"})}
    assert nest.open_axes == ("n",)


def test_a_gemm_after_a_gemm_holds_all_its_columns():
    """The second accumulator lives through the loop over the first one's columns (R5)."""
    nest = nest_of(
        lambda b, x, y, z: b.contract("gemm", "mn,no->mo", [gemm(b, x, y), z]),
        (64, 32),
        (32, 48),
        (48, 24),
    )
    (columns,) = (axis.name for axis in nest.graph.tensors["out"].dims[1])
    assert nest.held_through == {"out": frozenset({columns})}


def test_an_axis_of_an_outside_operand_holds_nothing():
    """Bias, activation and residual after a GEMM carry nothing."""
    nest = nest_of(
        lambda b, x, y, r: b.map("add", [b.map("gelu", [gemm(b, x, y)]), r]),
        (64, 32),
        (32, 48),
        (64, 48),
    )
    assert not nest.carried
    assert not nest.held_through


def test_outputs_are_what_others_read():
    """A kernel writes graph outputs and what other kernels read, nothing else."""
    nest = nest_of(
        lambda b, x, y: b.map("exp", [b.map("relu", [gemm(b, x, y)])]), (8, 4), (4, 8), ops=(0, 1)
    )
    assert nest.outputs == ["relu"]
    assert set(nest.external) == {"x0", "x1"}


def test_barriers_share_no_kernel():
    """R1: an op of unknown kind runs alone."""

    def build(b: GraphBuilder, x: View) -> View:
        return b.map("relu", b.opaque("sort", [x], [((8,), "fp16")]))

    assert nest_of(build, (8,)).veto == "an op of unknown kind is a barrier"
    assert nest_of(build, (8,), ops=(0,)).veto is None


def test_a_pointwise_table_is_computed_where_it_is_looked_up():
    """exp of a table [64, 8] looked up at 16 places runs at these places alone."""
    nest = nest_of(lambda b, t, i: take(b, b.map("exp", [t]), i, 0), (64, 8), (16,))
    assert nest.veto is None
    assert nest.members == (0, 1)
    assert nest.positions == (1,)
    assert not nest.edges
    assert set(nest.open_axes) == set(nest.ops[1].sizes)


def test_a_selected_axis_is_not_put_on_the_grid():
    """x·w [64, 16] looked up along its columns: a selection reduces them and has a reader here."""

    def build(b: GraphBuilder, x: View, w: View, i: View) -> View:
        return take_along(b, b.contract("gemm", "mk,kn->mn", [x, w]), i, 1)

    nest = nest_of(build, (64, 32), (32, 16), (64, 2))
    assert nest.members == (0, 1)
    assert nest.positions == (0, 2, 1)
    (walked,) = nest.ops[2].reduces
    assert nest.sizes[walked] == 16
    assert walked not in nest.open_axes
    assert not nest.carried


def test_a_selection_shares_the_walk_of_the_statistic():
    """softmax(x·w) looked up along its columns: the logit is selected while the statistic is made,
    so that no column is walked again (R2)."""

    def build(b: GraphBuilder, x: View, w: View, i: View) -> View:
        return take_along(b, softmax(b, b.contract("gemm", "mk,kn->mn", [x, w]), -1), i, 1)

    nest = nest_of(build, (64, 32), (32, 16), (64, 2))
    assert nest.veto is None
    assert not nest.carried


def test_a_lookup_along_the_axis_itself_is_vetoed():
    """Row sums that are read in order and looked up along the same axis must be whole in memory."""

    def build(b: GraphBuilder, x: View, i: View) -> View:
        (sums,) = b.reduce("sum", [x], [1], "sum")
        return b.map("add", [take(b, sums, i, 0), sums])

    veto = nest_of(build, (64, 8), (64,)).veto
    assert veto is not None
    assert "it must be whole in memory" in veto


def test_windows_link_other_axes():
    """A convolution walks its input by windows, a pointwise op walks it as it is."""

    def build(b: GraphBuilder, x: View, w: View, v: View) -> View:
        padded = Window(kernel=3, before=1, after=1)
        first = b.map("relu", [convolution(b, x, w, [padded] * 2)])
        return convolution(b, first, v, [padded] * 2)

    nest = nest_of(build, (1, 4, 16, 16), (4, 4, 3, 3), (4, 4, 3, 3))
    assert [edge.is_linked for edge in nest.edges] == [False, True]
