"""The validator: each rule, broken once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fuseledger.errors import InvalidGraph
from fuseledger.graph.axis import Axis, Index
from fuseledger.graph.graph import Graph, Result
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Coord, Read, call
from fuseledger.graph.tensor import Role, Tensor
from fuseledger.graph.validate import validate
from fuseledger.graph.view import View

M, N = Axis("m", 4), Axis("n", 8)
X = (Index.of("m"), Index.of("n"))


def tensor(name: str, role: Role, *axes: Axis) -> Tensor:
    """A tensor of one axis a dimension."""
    return Tensor(name=name, dims=tuple((axis,) for axis in axes), dtype="fp32", role=role)


def graph() -> Graph:
    """y = relu(x), then s = Σ_n y."""
    relu = Op(
        name="relu",
        function="relu",
        axes=(M, N),
        reads=(Access(tensor="x", index=X),),
        writes=(Access(tensor="y", index=X),),
        body=call("relu", Read(0)),
    )
    total = Op(
        name="sum",
        function="sum",
        axes=(M, N),
        reduces=frozenset({"n"}),
        reads=(Access(tensor="y", index=X),),
        writes=(Access(tensor="s", index=(Index.of("m"),)),),
        body=Read(0),
        combine="sum",
    )
    tensors = (
        tensor("x", "input", M, N),
        tensor("y", "intermediate", M, N),
        tensor("s", "output", M),
    )
    return Graph(
        name="g",
        ops=(relu, total),
        tensors={t.name: t for t in tensors},
        results=(Result("s", View.whole("s", (4,), "fp32")),),
    )


def changed(position: int, change: Callable[[Op], Op]) -> Graph:
    """The graph with one op replaced."""
    whole = graph()
    ops = list(whole.ops)
    ops[position] = change(ops[position])
    return replace(whole, ops=tuple(ops))


def fails(broken: Graph, message: str) -> None:
    """Assert that the validator refuses the graph with this message."""
    with pytest.raises(InvalidGraph, match=message):
        validate(broken)


def test_a_valid_graph_is_returned():
    """The validator returns the graph that it was given."""
    whole = graph()
    assert validate(whole) is whole


def test_read_before_written():
    """Rule 1: an op reads external tensors and what ops before it wrote."""
    whole = graph()
    fails(replace(whole, ops=whole.ops[::-1]), "sum reads y before it is written")


def test_written_twice():
    """Rule 1: a tensor has one writer."""
    whole = graph()
    again = replace(whole.ops[0], name="again")
    fails(replace(whole, ops=(*whole.ops, again)), "y is written twice")


def test_external_is_not_written():
    """Rule 1: nothing writes an input."""
    broken = changed(0, lambda op: replace(op, writes=(Access(tensor="x", index=X),)))
    fails(broken, "x is external")


def test_unknown_result():
    """Rule 1: a write needs a tensor of the graph."""
    broken = changed(0, lambda op: replace(op, writes=(Access(tensor="z", index=X),)))
    fails(broken, "relu writes unknown z")


def test_outputs_exist():
    """Rule 1: an output is a tensor that something makes."""
    whole = graph()
    fails(replace(whole, ops=whole.ops[:1]), "output s is not made")
    missing = (Result("q", View.whole("q", (4,), "fp32")),)
    fails(replace(whole, results=missing), "output q does not exist")


def test_two_ops_of_one_name():
    """Rule 1: messages name ops, so names are unique."""
    fails(changed(1, lambda op: replace(op, name="relu")), "relu: two ops have this name")


def test_one_size_per_axis():
    """Rule 2: an axis has one size in the whole graph."""
    broken = changed(1, lambda op: replace(op, axes=(M, Axis("n", 9))))
    fails(broken, "sum: axis n has two sizes")


def test_an_axis_twice():
    """Rule 2: an op lists an axis once."""
    fails(changed(0, lambda op: replace(op, axes=(M, N, N))), "relu: an axis twice")


def test_one_index_per_axis():
    """Rule 3: an access has an index for every axis of its tensor."""
    broken = changed(0, lambda op: replace(op, reads=(Access(tensor="x", index=X[:1]),)))
    fails(broken, "relu: x: one index per axis")


def test_foreign_axis():
    """Rule 3: an index runs over the op's own axes."""
    index = (Index.of("m"), Index.of("q"))
    broken = changed(0, lambda op: replace(op, reads=(Access(tensor="x", index=index),)))
    fails(broken, "relu: x: foreign axis")


@pytest.mark.parametrize("offset", [-1, 1])
def test_read_outside_without_fill(offset: int):
    """Rule 3: a read that can leave its tensor says what it finds there."""
    index = (Index.of("m"), Index((("n", 1),), offset))
    access = Access(tensor="x", index=index)
    fails(changed(0, lambda op: replace(op, reads=(access,))), "relu: x: .* leaves it")
    validate(changed(0, lambda op: replace(op, reads=(replace(access, fill=0.0),))))


def test_divided_read_without_fill():
    """Rule 3: a coordinate between two elements needs a fill too."""
    access = Access(tensor="x", index=(Index.of("m"), Index((("n", 1),), 0, 2)))
    fails(changed(0, lambda op: replace(op, reads=(access,))), "leaves it")


def test_lookup_of_no_read():
    """Rule 3: a lookup names one of the op's reads, and a write has none."""
    index = (Index.of("m"), Index(lookup=3))
    broken = changed(0, lambda op: replace(op, reads=(Access(tensor="x", index=index),)))
    fails(broken, "relu: x: bad lookup")
    index = (Index.of("m"), Index(lookup=0))
    broken = changed(0, lambda op: replace(op, writes=(Access(tensor="y", index=index),)))
    fails(broken, "relu: y: bad lookup")


def test_write_outside():
    """Rule 3: a fill does not make a write outside its tensor legal."""
    index = (Index.of("m"), Index((("n", 1),), 1))
    access = Access(tensor="y", index=index, fill=0.0)
    fails(changed(0, lambda op: replace(op, writes=(access,))), "relu: y: n\\+1 leaves it")


def test_write_covers_once():
    """Rule 3: a write of one row is no write of the tensor."""
    access = Access(tensor="y", index=(Index(), Index.of("n")))
    fails(changed(0, lambda op: replace(op, writes=(access,))), "does not cover it once")


def test_reduced_axes_are_own():
    """Rule 4: an op reduces axes that it has."""
    broken = changed(1, lambda op: replace(op, reduces=frozenset({"q"})))
    fails(broken, "sum: reduces a foreign axis")


def test_reduction_has_a_combine():
    """Rule 4: a reduction has a combine, and a combine reduces or scans something."""
    fails(changed(1, lambda op: replace(op, combine=None)), "sum: combine")
    fails(changed(0, lambda op: replace(op, combine="sum")), "relu: combine")


def test_unknown_combine():
    """Rule 4: the combine is one of the table."""
    fails(changed(1, lambda op: replace(op, combine="median")), "unknown combine median")


def test_more_results_than_the_combine_has():
    """Rule 4: a sum has one result."""
    whole = graph()
    extra = tensor("s2", "intermediate", M)
    write = Access(tensor="s2", index=(Index.of("m"),))
    ops = (whole.ops[0], replace(whole.ops[1], writes=(*whole.ops[1].writes, write)))
    fails(replace(whole, ops=ops, tensors={**whole.tensors, "s2": extra}), "sum: results")


def test_write_along_a_reduced_axis():
    """Rule 4: what is reduced is in no result."""
    broken = changed(1, lambda op: replace(op, reduces=frozenset({"m"})))
    fails(broken, "sum: writes along a reduced axis")


def test_kept_axes_are_in_the_result():
    """Rule 4: an axis that is not reduced is in every result."""
    extra = Axis("k", 2)
    broken = changed(1, lambda op: replace(op, axes=(M, N, extra)))
    fails(broken, "sum: a result lacks an axis that is not reduced")


def test_body_reads_what_the_op_reads():
    """Rule 5: a body names existing reads."""
    fails(changed(0, lambda op: replace(op, body=Read(1))), "relu: no read 1")


def test_body_uses_own_axes():
    """Rule 5: a loop index in a body is an axis of the op."""
    fails(changed(0, lambda op: replace(op, body=Coord("q"))), "relu: foreign axis q")


def test_body_uses_known_functions():
    """Rule 5: a body calls functions of the table."""
    body = Call("no_such", (Read(0),))
    fails(changed(0, lambda op: replace(op, body=body)), "relu: unknown function no_such")


def test_every_loop_has_a_body():
    """Rule 6: a loop nest says what it computes."""
    fails(changed(0, lambda op: replace(op, body=None)), "relu: body")


def test_an_opaque_op_has_no_body():
    """Rule 6: of a barrier only its tensors are known."""
    fails(changed(0, lambda op: replace(op, kind="opaque")), "relu: body")
    validate(changed(0, lambda op: replace(op, kind="opaque", body=None)))
