"""ATen normalisations and losses, kept whole as labelled composites."""

from __future__ import annotations

from collections.abc import Callable

from fuseledger.frontends.aten_pointwise import cast
from fuseledger.frontends.aten_reduce import norm, reduced
from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.graph import compose
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Expr, Read, call
from fuseledger.graph.view import View


def _layer_norm(s: Site) -> View:
    dims = len(s.ints("normalized_shape"))
    eps = s.number("eps", 1e-5)
    return compose.layer_norm(s.b, s.view("input"), dims, s.maybe("weight"), s.maybe("bias"), eps)


_EPSILON = {"fp64": 2.0**-52, "fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}
"""What `rms_norm` adds where no eps is given: the machine epsilon of the input"s dtype."""


def _rms_norm(s: Site) -> View:
    x = s.view("input")
    eps = s.number("eps", _EPSILON.get(x.dtype, 0.0))
    dims = len(s.ints("normalized_shape"))
    return cast(s, compose.rms_norm(s.b, x, dims, s.maybe("weight"), eps), s.out.dtype)


def _rope(s: Site) -> View:
    return cast(s, compose.rope(s.b, s.view("x"), s.view("cos"), s.view("sin")), s.out.dtype)


def _group_norm(s: Site) -> View:
    groups = int(s.get("num_groups", s.get("group")))
    eps = s.number("eps", 1e-5)
    return compose.group_norm(s.b, s.view("input"), groups, s.maybe("weight"), s.maybe("bias"), eps)


def _instance_norm(s: Site) -> View:
    x = s.view("input")
    if not s.get("use_input_stats", True):
        return _batch_norm(s)
    eps = s.number("eps", 1e-5)
    return compose.group_norm(s.b, x, x.shape[1], s.maybe("weight"), s.maybe("bias"), eps)


def _batch_norm(s: Site) -> View:
    packet = s.node.packet
    training = bool(s.get("training", "with_update" in packet)) and "no_training" not in packet
    return compose.batch_norm(
        s.b, s.view("input"), s.maybe("weight"), s.maybe("bias"), s.maybe("running_mean"),
        s.maybe("running_var"), s.number("eps", s.number("epsilon", 1e-5)), training=training,
    )  # fmt: skip


# -- losses --------------------------------------------------------------------------------------


def _finish(s: Site, loss: View) -> View:
    """`reduction`: 0 none, 1 mean, 2 sum."""
    how = int(s.get("reduction", 1))
    dims = list(range(len(loss.shape)))
    if how == 0:
        return loss
    if how == 1:
        return compose.mean(s.b, loss, dims, dtype=s.out.dtype)
    return reduced(s, "sum", loss, dims, "sum")


def _pointwise_loss(label: str, body: Expr) -> Callable[[Site], View]:
    """A loss of `self` and `target`, one value per element."""

    def lower(s: Site) -> View:
        with s.b.labelled(label):
            loss = s.map(label, [s.view(), s.view("target")], body)
            return _finish(s, loss)

    return lower


_DIFFERENCE = call("sub", Read(0), Read(1))


def _smooth_l1(s: Site) -> View:
    huber = s.node.packet == "huber_loss"
    beta = s.number("delta" if huber else "beta", 1.0)
    gap = call("abs", _DIFFERENCE)
    near: Expr = call("mul", call("square", gap), 0.5)
    far: Expr = call("sub", gap, 0.5 * beta)
    if huber:
        far = call("mul", far, beta)
    else:
        near = call("div", near, beta)
    body = call("where", call("lt", gap, beta), near, far)
    return _pointwise_loss(s.node.packet, body)(s)


def _binary_cross_entropy(s: Site) -> View:
    if s.maybe("weight") is not None:
        raise Unlowered("weight")

    def term(p: Expr) -> Expr:
        return call("max", call("log", p), -100.0)

    rest = call("sub", 1.0, Read(1))
    both = call(
        "add",
        call("mul", Read(1), term(Read(0))),
        call("mul", rest, term(call("sub", 1.0, Read(0)))),
    )
    return _pointwise_loss("binary_cross_entropy", call("neg", both))(s)


def _bce_with_logits(s: Site) -> View:
    if s.maybe("weight") is not None or s.maybe("pos_weight") is not None:
        raise Unlowered("weight")
    loss = call("sub", call("softplus", Read(0), 1.0), call("mul", Read(0), Read(1)))
    return _pointwise_loss("binary_cross_entropy", loss)(s)


def _kl_div(s: Site) -> View:
    body = call("mul", Read(1), call("sub", Read(1), Read(0)))
    if s.get("log_target", False):
        body = call("mul", call("exp", Read(1)), call("sub", Read(1), Read(0)))
    else:
        body = call("sub", call("xlogy", Read(1), Read(1)), call("mul", Read(1), Read(0)))
    return _pointwise_loss("kl_div", body)(s)


def _nll(s: Site, log_p: View, target: View) -> View:
    """−log p[target], masked where the target is `ignore_index`; mean over what is counted."""
    if s.maybe("weight") is not None or target.dtype.startswith(("fp", "bf")):
        raise Unlowered("weight")
    ignored, how = float(s.get("ignore_index", -100)), int(s.get("reduction", 1))
    classes = 1 if len(log_p.shape) > 1 else 0
    letters, out = dim_letters(target.shape)
    where: list[Where] = [*out]
    where.insert(classes, Index(lookup=0))
    counted = call("ne", Read(0), ignored)
    body = call("where", counted, call("neg", Read(1)), 0.0)
    reads = [Operand(target, tuple(out)), Operand(log_p, tuple(where), 0.0)]
    (picked,) = s.b.loop("nll", letters, reads, out, body, dtypes=[s.out.dtype])
    if how == 0:
        return picked
    dims = list(range(len(picked.shape)))
    total = reduced(s, "nll.sum", picked, dims, "sum")
    if how == 2:
        return total
    count = reduced(s, "nll.count", target, dims, "sum", body=counted)
    return s.b.map(
        "nll.mean", [total, count], body=call("div", Read(0), Read(1)), dtype=s.out.dtype
    )


def _nll_loss(s: Site) -> View:
    with s.b.labelled("nll_loss"):
        return _nll(s, s.view(), s.view("target"))


def _cross_entropy(s: Site) -> View:
    x = s.view()
    if s.number("label_smoothing", 0.0):
        raise Unlowered("label_smoothing")
    with s.b.labelled("cross_entropy"):
        log_p = compose.softmax(s.b, x, 1 if len(x.shape) > 1 else 0, log=True)
        return _nll(s, log_p, s.view("target"))


def _cosine(s: Site) -> View:
    """x·y / (max(|x|, ε)·max(|y|, ε))."""
    one, two = s.view("x1"), s.view("x2")
    rank = max(len(one.shape), len(two.shape))
    dim, eps = int(s.get("dim", 1)) % rank, s.number("eps", 1e-8)
    with s.b.labelled("cosine_similarity"):
        dot = s.b.reduce(
            "dot",
            [one, two],
            [dim],
            "sum",
            body=call("mul", Read(0), Read(1)),
            dtypes=[s.out.dtype],
        )[0]
        squares = [
            reduced(s, "norm", v, [dim], "sum", body=call("square", Read(0))) for v in (one, two)
        ]
        lengths = [call("max", call("sqrt", Read(i)), eps) for i in (1, 2)]
        body = call("div", Read(0), call("mul", *lengths))
        return s.b.map("cosine_similarity", [dot, *squares], body=body, dtype=s.out.dtype)


def _distance(s: Site, one: View, two: View, order: float, eps: float) -> View:
    gap = s.map("distance", [one, two], call("add", call("sub", Read(0), Read(1)), eps))
    return norm(s, gap, order, [len(gap.shape) - 1], keepdim=False)


def _pairwise_distance(s: Site) -> View:
    gap = _distance(s, s.view("x1"), s.view("x2"), s.number("p", 2.0), s.number("eps", 1e-6))
    return s.b.reshape(gap, s.out.shape)


def _triplet(s: Site) -> View:
    if s.get("swap", False):
        raise Unlowered("swap")
    order, eps, margin = s.number("p", 2.0), s.number("eps", 1e-6), s.number("margin", 1.0)
    with s.b.labelled("triplet_margin_loss"):
        near, far = (
            _distance(s, s.view("anchor"), s.view(n), order, eps) for n in ("positive", "negative")
        )
        hinge = call("max", call("add", call("sub", Read(0), Read(1)), margin), Const(0.0))
        return _finish(s, s.b.map("hinge", [near, far], body=hinge, dtype=s.out.dtype))


def _hinge_embedding(s: Site) -> View:
    margin = s.number("margin", 1.0)
    hinge = call("max", call("sub", margin, Read(0)), 0.0)
    body = call("where", call("eq", Read(1), 1.0), Read(0), hinge)
    return _pointwise_loss("hinge_embedding_loss", body)(s)


NORMS: dict[str, Lowerer] = {
    "layer_norm": _layer_norm, "native_layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "_fused_rms_norm": _rms_norm, "fuseledger.rope": _rope, "group_norm": _group_norm,
    "native_group_norm": _group_norm,
    "instance_norm": _instance_norm, "batch_norm": _batch_norm, "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm, "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm, "cudnn_batch_norm": _batch_norm,
    "_batch_norm_with_update": _batch_norm, "_batch_norm_no_update": _batch_norm,
    "mse_loss": _pointwise_loss("mse_loss", call("square", _DIFFERENCE)),
    "l1_loss": _pointwise_loss("l1_loss", call("abs", _DIFFERENCE)), "smooth_l1_loss": _smooth_l1,
    "huber_loss": _smooth_l1, "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_with_logits": _bce_with_logits, "kl_div": _kl_div,
    "nll_loss": _nll_loss, "nll_loss_forward": _nll_loss, "nll_loss_nd": _nll_loss,
    "nll_loss2d": _nll_loss, "nll_loss2d_forward": _nll_loss, "cross_entropy_loss": _cross_entropy,
    "cosine_similarity": _cosine, "pairwise_distance": _pairwise_distance,
    "triplet_margin_loss": _triplet, "hinge_embedding_loss": _hinge_embedding,
}  # fmt: skip
