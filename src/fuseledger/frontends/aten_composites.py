"""Composites that a model spells out in single operators: RMS norm, rotary embedding, tanh GELU.

Each is a pattern over ATen calls. Casts between float dtypes inside a pattern are looked through,
operands of commutative operators may stand in either order. A composite lowers to the same ops as
if the model had called it whole, so that models compare however they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isclose, pi, sqrt
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref, Value, is_in_place, references
from fuseledger.graph.tensor import is_float

Env = dict[str, Any]


class Any_(Struct, frozen=True):  # noqa: N801  reads as the wildcard that it is
    """A tensor or number, the same wherever the name occurs."""

    name: str


class Half(Struct, frozen=True):
    """The first (0) or second (1) half of a tensor's last dimension."""

    name: str
    which: int


class Op(Struct, frozen=True):
    """A call of one of `packets` whose leading arguments match."""

    packets: str
    args: tuple[Pattern, ...]
    accepts: Callable[[AtenNode], bool] = lambda node: True


Pattern = Any_ | Half | Op | float | Sequence["Pattern"]

COMMUTATIVE = frozenset({"add", "mul"})


def _last_dim_mean(node: AtenNode) -> bool:
    rank = len(node.outputs[0].shape)
    return node.args.get("dim") in ([-1], [rank - 1]) and bool(node.args.get("keepdim"))


def _square(x: Pattern) -> tuple[Op, ...]:
    return Op("pow", (x, 2.0)), Op("square", (x,)), Op("mul", (x, x))


_X, _W = Any_("x"), Any_("weight")
_NORMALISED = [
    Op("mul", (_X, Op("rsqrt", (Op("add", (Op("mean", (square,), _last_dim_mean), Any_("eps"))),))))
    for square in _square(_X)
]
_ROTATED = Op("cat", ([Op("neg", (Half("x", 1),)), Half("x", 0)],))
_CUBIC = Op("add", (_X, Op("mul", (Op("pow", (_X, 3.0)), 0.044715))))
_TANH = Op("add", (Op("tanh", (Op("mul", (_CUBIC, sqrt(2.0 / pi))),)), 1.0))

RULES: tuple[tuple[str, Op], ...] = (
    *(("rms_norm", Op("mul", (_W, normalised))) for normalised in _NORMALISED),
    *(("rms_norm", normalised) for normalised in _NORMALISED),
    ("rope", Op("add", (Op("mul", (_X, Any_("cos"))), Op("mul", (_ROTATED, Any_("sin")))))),
    ("gelu", Op("mul", (Op("mul", (_X, 0.5)), _TANH))),
)
"""Composite and pattern; the first that matches wins."""


def recognised(source: AtenGraph) -> AtenGraph:
    """The graph with spelled-out composites as single calls, and a note of how many."""
    return _Recogniser(source).run()


class _Recogniser:
    def __init__(self, source: AtenGraph) -> None:
        self.source = source
        self.maker = {value.name: node for node in source.nodes for value in node.outputs}
        self.value: dict[str, Value] = {v.name: v for n in source.nodes for v in n.outputs}
        self.value |= {value.name: value for _, value in (*source.inputs, *source.weights)}
        self.users: dict[str, list[str]] = {name: ["output"] for name in source.outputs}
        self.mutated: set[str] = set()
        for node in source.nodes:
            if not node.outputs:
                continue  # an assertion reads a value and makes none
            for name in references(node.args.values()):
                self.users.setdefault(name, []).append(node.name)
                if is_in_place(node.packet):
                    self.mutated.add(name)

    def run(self) -> AtenGraph:
        found: dict[str, AtenNode] = {}
        consumed: set[str] = set()
        counts: dict[str, int] = {}
        for node in reversed(self.source.nodes):
            if node.name in consumed or node.packet not in COMMUTATIVE:
                continue
            for composite, pattern in RULES:
                call = self._matched(node, composite, pattern, consumed)
                if call is not None:
                    found[node.name] = call
                    counts[composite] = counts.get(composite, 0) + 1
                    break
        if not found:
            return self.source
        nodes = tuple(found.get(node.name, node) for node in self.source.nodes)
        listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        note = f"read as composites though spelled out in single operators: {listed}"
        return replace(self.source, nodes=nodes, notes=(*self.source.notes, note))

    def _matched(
        self, node: AtenNode, composite: str, pattern: Op, consumed: set[str]
    ) -> AtenNode | None:
        for env in self._call(pattern, node, {"nodes": (), "casts": ()}):
            inside = {n.name for n in env["nodes"]} | {n.name for n in env["casts"]}
            inner = [v.name for n in env["nodes"] if n is not node for v in n.outputs]
            if any(user not in inside for name in inner for user in self.users.get(name, [])):
                continue
            names = [arg.name for arg in env.values() if isinstance(arg, Ref)]
            if self.mutated & {*names, *inner}:
                continue
            call = _BUILD[composite](self, node, env)
            if call is not None:
                consumed.update(n.name for n in env["nodes"])
                return call
        return None

    # -- matching: each function yields every way to match -----------------------------------

    def _match(self, pattern: Pattern, arg: Any, env: Env) -> Iterator[Env]:
        if isinstance(pattern, Any_):
            bound = env.get(pattern.name)
            if bound is None and arg is not None:
                yield {**env, pattern.name: arg}
            elif self._plain(bound) == self._plain(arg):
                narrow = min(bound, arg, key=self._bytes)
                yield {**env, pattern.name: narrow}
        elif isinstance(pattern, int | float):
            if isinstance(arg, int | float) and isclose(float(arg), pattern, rel_tol=1e-6):
                yield env
        elif isinstance(pattern, Half):
            yield from self._half(pattern, arg, env)
        elif isinstance(pattern, Op):
            node, casts = self._through_casts(arg)
            if node is not None:
                yield from self._call(pattern, node, {**env, "casts": (*env["casts"], *casts)})
        elif isinstance(arg, list) and len(arg) == len(pattern):  # pyright: ignore[reportUnknownArgumentType]
            yield from self._all(pattern, arg, env)  # pyright: ignore[reportUnknownArgumentType]

    def _call(self, pattern: Op, node: AtenNode, env: Env) -> Iterator[Env]:
        if node.packet != pattern.packets or not pattern.accepts(node):
            return
        args = list(node.args.values())[: len(pattern.args)]
        if len(args) < len(pattern.args) or node.args.get("alpha", 1) != 1:
            return
        env = {**env, "nodes": (*env["nodes"], node)}
        yield from self._all(pattern.args, args, env)
        if node.packet in COMMUTATIVE:
            yield from self._all(pattern.args, args[::-1], env)

    def _all(self, patterns: Sequence[Pattern], args: Sequence[Any], env: Env) -> Iterator[Env]:
        if not patterns:
            yield env
            return
        for partial in self._match(patterns[0], args[0], env):
            yield from self._all(patterns[1:], args[1:], partial)

    def _half(self, pattern: Half, arg: Any, env: Env) -> Iterator[Env]:
        """A slice, chunk or split that takes one half of the last dimension."""
        node = self.maker.get(arg.name) if isinstance(arg, Ref) else None
        whole = next(iter(node.args.values()), None) if node is not None else None
        if node is None or not isinstance(whole, Ref) or whole.name not in self.value:
            return
        shape = self.value[whole.name].shape
        half = shape[-1] // 2
        last = node.args.get("dim", 0) in (-1, len(shape) - 1)
        if not last or self.value[arg.name].shape[-1] != half or shape[-1] % 2:
            return
        if node.packet == "slice":
            start = node.args.get("start") or 0
            which = 1 if start in (half, -half) else 0 if start in (0, -2 * half) else -1
        elif node.packet in ("chunk", "split") and len(node.outputs) == 2:
            which = [value.name for value in node.outputs].index(arg.name)
        else:
            return
        if which == pattern.which:
            yield from self._match(Any_(pattern.name), whole, env)

    def _through_casts(self, arg: Any) -> tuple[AtenNode | None, tuple[AtenNode, ...]]:
        casts: list[AtenNode] = []
        node = self.maker.get(arg.name) if isinstance(arg, Ref) else None
        while node is not None and self._is_cast(node):
            casts.append(node)
            node = self.maker.get(node.args["self"].name)
        return node, tuple(casts)

    def _plain(self, arg: Any) -> Any:
        """The value before casts."""
        while isinstance(arg, Ref):
            node = self.maker.get(arg.name)
            if node is None or not self._is_cast(node):
                return arg
            arg = node.args["self"]
        return arg

    def _is_cast(self, node: AtenNode) -> bool:
        given = node.args.get("self")
        return (
            node.packet in ("to", "_to_copy", "float")
            and isinstance(given, Ref)
            and given.name in self.value
            and is_float(self.value[given.name].dtype)
            and is_float(node.outputs[0].dtype)
        )

    def _bytes(self, arg: Any) -> int:
        from fuseledger.graph.tensor import DTYPE_BITS

        return DTYPE_BITS[self.value[arg.name].dtype] if isinstance(arg, Ref) else 0

    def shape(self, arg: Any) -> tuple[int, ...]:
        """Shape of an argument; a number has none."""
        return self.value[arg.name].shape if isinstance(arg, Ref) else ()

    def source_of(self, arg: Ref, dtype: str) -> Ref:
        """The argument before its casts, where that has the dtype of the result."""
        before = self._plain(arg)
        return before if self.value[before.name].dtype == dtype else arg


def _rms_norm(r: _Recogniser, node: AtenNode, env: Env) -> AtenNode | None:
    size = node.outputs[0].shape[-1]
    eps, weight = env["eps"], env.get("weight")
    if not isinstance(eps, int | float) or (weight is not None and r.shape(weight) != (size,)):
        return None
    args: dict[str, Any] = {"input": r.source_of(env["x"], node.outputs[0].dtype)}
    args |= {"normalized_shape": [size], "weight": weight, "eps": float(eps)}
    return replace(node, op="aten.rms_norm.default", args=args)


def _rope(r: _Recogniser, node: AtenNode, env: Env) -> AtenNode | None:
    shape = node.outputs[0].shape
    tables = [env["cos"], env["sin"]]
    if r.shape(env["x"]) != shape or any(r.shape(t)[-1:] != shape[-1:] for t in tables):
        return None
    return replace(
        node, op="fuseledger.rope.default", args={n: env[n] for n in ("x", "cos", "sin")}
    )


def _gelu(r: _Recogniser, node: AtenNode, env: Env) -> AtenNode | None:
    if not isinstance(env["x"], Ref):
        return None
    return replace(node, op="aten.gelu.default", args={"self": env["x"], "approximate": "tanh"})


_BUILD: dict[str, Callable[[_Recogniser, AtenNode, Env], AtenNode | None]] = {
    "rms_norm": _rms_norm, "rope": _rope, "gelu": _gelu,
}  # fmt: skip
