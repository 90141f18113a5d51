"""ATen operators that draw random numbers, in the op that uses them where there is one."""

from __future__ import annotations

from fuseledger.frontends.aten_site import Lowerer, Site
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.scalar import Expr, Read, call
from fuseledger.graph.view import View


def _dropout(s: Site) -> View:
    x = s.view("input" if "input" in s.args else "self")
    p = s.number("p", 0.5)
    if not s.get("train", s.node.packet == "native_dropout") or p == 0:
        return x
    return dropped(s, x, p)


def dropped(s: Site, x: View, p: float) -> View:
    """x·Bernoulli(1−p)/(1−p), with the random number drawn in the op."""

    def body(v: Expr) -> Expr:
        return call(
            "mul", call("mul", v, call("bernoulli", 1.0 - p)), 1.0 / (1.0 - p) if p < 1 else 0.0
        )

    return s.map("dropout", [x], body(Read(0)), dtype=x.dtype)


def _feature_dropout(s: Site) -> View:
    x = s.view("input")
    p = s.number("p", 0.5)
    if not s.get("train", True) or p == 0:
        return x
    shape = [*x.shape[:2], *([1] * (len(x.shape) - 2))]
    kept = random(s, "bernoulli", shape, x.dtype, 1.0 - p)
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0
    body = call("mul", call("mul", Read(0), Read(1)), scale)
    return s.map("feature_dropout", [x, kept], body)


def random(
    s: Site, function: str, shape: list[int] | tuple[int, ...], dtype: str, argument: float = 0.0
) -> View:
    """A tensor of random numbers, drawn in the op."""
    letters, out = dim_letters(shape)
    return s.b.loop(function, letters, [], out, call(function, argument), dtypes=[dtype])[0]


def _random(function: str) -> Lowerer:
    return lambda s: random(s, function, s.out.shape, s.out.dtype)


def _bernoulli(s: Site) -> View:
    if "p" in s.args and s.args["p"] is not None:
        return random(s, "bernoulli", s.out.shape, s.out.dtype, s.number("p"))
    return s.map("bernoulli", [s.view()])


def _scaled_random(function: str, first: str, second: str, default: tuple[float, float]) -> Lowerer:
    """uniform_(from, to) and normal_(mean, std)."""

    def lower(s: Site) -> View:
        low, high = s.number(first, default[0]), s.number(second, default[1])
        scale = high - low if function == "uniform" else high
        letters, out = dim_letters(s.out.shape)
        body = call("fma", call(function, 0.0), scale, low)
        return s.b.loop(function, letters, [], out, body, dtypes=[s.out.dtype])[0]

    return lower


RANDOM = frozenset(
    [
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "bernoulli",
        "uniform",
        "normal",
        "dropout",
        "native_dropout",
        "feature_dropout",
        "randint",
        "randint_like",
        "multinomial",
        "randperm",
    ]
)
"""What is drawn anew at every run depends on no input and is no weight all the same."""

DRAWS: dict[str, Lowerer] = {
    "dropout": _dropout, "native_dropout": _dropout, "feature_dropout": _feature_dropout,
    "bernoulli": _bernoulli, "rand": _random("uniform"), "rand_like": _random("uniform"),
    "randn": _random("normal"), "randn_like": _random("normal"),
    "uniform": _scaled_random("uniform", "from", "to", (0.0, 1.0)),
    "normal": _scaled_random("normal", "mean", "std", (0.0, 1.0)),
}  # fmt: skip
