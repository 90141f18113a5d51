"""What becomes of a tensor whose view is written in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseledger.frontends.aten_graph import AtenNode
from fuseledger.frontends.aten_shape import joined, on_diagonal
from fuseledger.frontends.aten_site import Site
from fuseledger.frontends.aten_views import PURE, RESHAPES, VIEWS, bounds
from fuseledger.graph.view import View

if TYPE_CHECKING:
    from fuseledger.frontends.aten import Lowering


def written_back(lowering: Lowering, node: AtenNode, parent: View, new: View) -> View | None:
    """The parent of a view after the view was overwritten by `new`, or None where unknown."""
    args = {n: parent if i == 0 else a for i, (n, a) in enumerate(node.args.items())}
    s = Site(lowering, node, args)
    packet = node.packet
    if packet in PURE or packet.endswith("_"):
        return new
    if packet in RESHAPES:
        return s.b.reshape(new, parent.shape)
    if packet in ("transpose", "swapaxes", "swapdims", "t", "permute", "numpy_T", "mT"):
        probe = View.whole(parent.base, parent.shape, parent.dtype)
        s = Site(lowering, node, {**args, next(iter(args)): probe})
        moved = VIEWS[packet](s)
        assert isinstance(moved, View)
        order = (
            [probe.dims.index(dim) for dim in moved.dims]
            if len(set(probe.dims)) == len(probe.dims)
            else None
        )
        if order is None:
            return None
        return new.transpose([order.index(i) for i in range(len(order))])
    if packet == "diagonal" and len(parent.shape) == 2:
        return on_diagonal(s, new, parent.shape, int(s.get("offset", 0)), parent)
    if packet == "slice":
        dim, start, _, step = bounds(s, parent)
        return joined(s, parent, new, dim, start, step) if step == 1 else None
    if packet == "select":
        dim = int(s.get("dim", 0)) % len(parent.shape)
        return joined(s, parent, new.unsqueeze(dim), dim, int(s.get("index")) % parent.shape[dim])
    return None
