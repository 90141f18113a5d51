"""Sums over blocks against walking every block and every element of it."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st
from nests import pricer_of

from fuseledger.graph.axis import Index
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.compose import layer_norm
from fuseledger.graph.op import Access
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.view import View
from fuseledger.graph.window import concat
from fuseledger.ledger.block_sums import Driver, Image, Union, Walk, block_sum
from fuseledger.ledger.digits import digits
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.points import coordinates

DRIVERS = (Driver(6, 2), Driver(5, 3), Driver(8, 3))

tiles = st.integers(0, len(DRIVERS) - 1)
fixed = st.builds(range, st.integers(0, 3), st.integers(4, 9))
steps = st.sampled_from([-2, -1, 1, 2, 3])
images = st.builds(
    Image,
    st.lists(st.tuples(st.one_of(tiles, fixed), steps), min_size=1, max_size=2).map(tuple),
    st.integers(-3, 3),
    st.sampled_from([1, 1, 2]),
    st.integers(4, 9),
)
simple = st.one_of(tiles, fixed, images)
walks = st.one_of(simple, st.lists(simple, min_size=2, max_size=3).map(lambda w: Union(tuple(w))))


def taken(walk: Walk, at: tuple[range, ...]) -> set[int]:
    """Coordinates of a walk in one block, one by one."""
    if isinstance(walk, int):
        return set(at[walk])
    if isinstance(walk, Union):
        return set[int]().union(*(taken(inner, at) for inner in walk.walks))
    if isinstance(walk, Image):
        found: set[int] = set()
        for points in product(*(taken(inner, at) for inner, _ in walk.terms)):
            value = walk.offset + sum(p * s for p, (_, s) in zip(points, walk.terms, strict=True))
            if not value % walk.divisor and 0 <= value // walk.divisor < walk.size:
                found.add(value // walk.divisor)
        return found
    return set(walk)


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[walks] * n), min_size=1, max_size=3))
)
def test_a_sum_is_what_walking_every_block_counts(boxes: list[tuple[Walk, ...]]):
    """Unions of tiles, halos, slices and phases in one to three dimensions, over all blocks."""
    sizes = tuple(12 for _ in boxes[0])
    expected = 0
    for where in product(*(range(driver.blocks) for driver in DRIVERS)):
        at = tuple(driver.block(k) for driver, k in zip(DRIVERS, where, strict=True))
        expected += len({e for box in boxes for e in product(*(taken(walk, at) for walk in box))})
    assert block_sum(sizes, tuple(boxes), DRIVERS) == expected


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 48),
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.sampled_from("abc"), st.sampled_from([1, 2, 3, 4, 6, 12])),
                max_size=3,
                unique_by=lambda term: term[0],
            ),
            st.integers(-4, 12),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_digits_are_the_dimension(size: int, maps: list[tuple[list[tuple[str, int]], int]]):
    """What all reads take of the digits, put together again, is what they take of the dimension."""
    extents = {"a": 2, "b": 3, "c": 4}
    indices = [Index(tuple(terms), offset) for terms, offset in maps]
    found = digits(size, indices, extents)
    assert prod(each for each, _ in found) == size
    for k, index in enumerate(indices):
        values: set[int] = {0}
        for each, parts in found:
            values = {v * each + p for v in values for p in _walked(parts[k], extents, each)}
        assert values == _walked(index, extents, size)


def _walked(index: Index, extents: dict[str, int], size: int) -> set[int]:
    terms = tuple((range(extents[name]), stride) for name, stride in index.terms)
    return set(coordinates(terms, index.offset, index.divisor, size))


def loaded(nest: Nest, name: str, chosen: dict[str, int]) -> int:
    """Elements of a tensor that all blocks load, every point of every op visited.

    Along each axis an op walks its tile, or what its readers want, or all.
    """
    total = 0
    for where in product(*(range(-(-nest.sizes[n] // chosen[n])) for n in nest.open_axes)):
        at = dict(zip(nest.open_axes, where, strict=True))
        walked: dict[int, dict[str, set[int]]] = {}
        for i in reversed(nest.positions):
            walked[i] = {name: set(range(size)) for name, size in nest.ops[i].sizes.items()}
            edges = [edge for edge in nest.edges if edge.producer == i]
            for axis, size in nest.ops[i].sizes.items():
                if not edges and axis in at:
                    ends = at[axis] * chosen[axis], (at[axis] + 1) * chosen[axis]
                    walked[i][axis] = set(range(ends[0], min(size, ends[1])))
                elif edges and axis in nest.ops[i].kept:
                    walked[i][axis] = {
                        e[[a.name for a in edge.tensor.axes].index(axis)]
                        for edge in edges
                        for e in elements(edge.access, walked[edge.consumer], edge.tensor)
                    }
        tensor = nest.graph.tensors[name]
        reads = nest.external[name]
        total += len({e for i, access in reads for e in elements(access, walked[i], tensor)})
    return total


def elements(access: Access, walked: dict[str, set[int]], tensor: Tensor) -> set[tuple[int, ...]]:
    """Elements that an access takes where its op walks so."""
    found: set[tuple[int, ...]] = set()
    for point in product(*walked.values()):
        values = dict(zip(walked, point, strict=True))
        element = tuple(ix.offset + sum(values[n] * s for n, s in ix.terms) for ix in access.index)
        if all(0 <= e < axis.size for e, axis in zip(element, tensor.axes, strict=True)):
            found.add(element)
    return found


def merged_patches(b: GraphBuilder, x: View) -> View:
    """Swin's patch merging and the norm behind it: a norm over four neighbours' channels."""
    parts = b.reshape(x, [2, 2, 2, 2, 2, 6]).transpose([0, 1, 3, 4, 2, 5])
    flat = b.reshape(parts, [2, 4, 24])
    return layer_norm(b, flat, 1, None, None, 1e-5)


def shifted_windows(b: GraphBuilder, x: View) -> View:
    """Swin's shift: rows and columns rolled by one, then added to themselves in windows of two."""
    for dim in (1, 2):
        x = concat(b, [b.slice(x, dim, 1, 5), b.slice(x, dim, 0, 1)], dim)
    return b.map("add", [x, x])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_loads_of_shifted_and_merged_windows_are_those_of_every_point(data: st.DataObject):
    """Rolls are parts of a concatenation, merged patches one flat dimension of six axes."""
    build, shape = data.draw(
        st.sampled_from([(merged_patches, (2, 4, 4, 6)), (shifted_windows, (2, 6, 6, 3))])
    )
    pricer = pricer_of(build, shape)
    nest = pricer.nest
    chosen = {axis: data.draw(st.integers(1, nest.sizes[axis])) for axis in nest.open_axes}
    price = pricer.price(chosen)
    read = 2 * sum(loaded(nest, name, price.tiles) for name in nest.external)
    assert price.l2_bytes - price.write_bytes - price.partial_bytes == read
