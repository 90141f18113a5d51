"""The decision corpus: measured fuse-or-split options, and what each option launches and moves.

`families.md` beside the records gives each family's kernels, bytes and FLOPs as formulas over the
record's parameters; a family without them is counted and named.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fuseledger.clock.library_features import Setting
from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.devices import load, names
from fuseledger.validate.corpus import Corpus, CorpusError, Measured

ALIASES = {"a100": "a100-sxm-80"}
"""Devices that a source names loosely → the commonest of that name."""
ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1, "float8": 1,
}  # fmt: skip
LETTERS = {
    "T": "tokens", "H": "hidden", "V": "vocab", "I": ("inter", "ffn"), "K": "top_k",
    "E_": "experts", "hq": "q_heads", "hkv": "kv_heads", "hd": "head_dim", "acc": "accumulate_grad",
    "clone": "clone_in_region", "g1": "upstream_grad_is_one", "dqk": "head_dim_qk",
    "dv": "head_dim_v",
}  # fmt: skip
"""Letters of the formulas → parameters of the record, as the families file defines them."""

_FORMULA = re.compile(
    r"^- (?P<side>Unfused|Fused):.*?Kernels `(?P<kernels>[^`]+)`; bytes `(?P<bytes>[^`]+)`", re.M
)
_FLOPS = re.compile(r"^- FLOP \(both\): `(?P<flops>[^`]+)`", re.M)
_FAMILY = re.compile(r"^## (?P<name>\w+) ", re.M)


@dataclass(frozen=True, slots=True)
class Family:
    """A family's formulas by side: (kernels, bytes); FLOPs where it has GEMMs."""

    sides: Mapping[str, tuple[str, str]]
    flops: str | None


def read_decisions(path: Path) -> Corpus:
    """Two rows, unfused and fused, of every record. Raises CorpusError naming file and line."""
    families = _families(path.parent / "families.md")
    known = set(names())
    corpus = Corpus()
    for line, record in _records(path):
        try:
            _add(corpus, record, families, known)
        except (KeyError, TypeError, ValueError) as error:
            raise CorpusError(f"{path}:{line}: not a decision record: {error!r}") from None
    corpus.notes.append(
        "each option is priced from the kernels, bytes and FLOPs that families.md states"
    )
    return corpus


def _add(
    corpus: Corpus, record: Mapping[str, Any], families: Mapping[str, Family], known: set[str]
) -> None:
    device, family = str(record["device"]), str(record["family"])
    device = ALIASES.get(device, device)
    if record.get("contrast") == "implementation":
        corpus.skip("compares two implementations, no fusion")
        return
    if device not in known:
        corpus.skip(f"device {device} is not in the catalog")
        return
    if family not in families or len(families[family].sides) < 2:
        corpus.skip(f"family {family} has no formulas")
        return
    params = record["params"]
    letters = _letters(params)
    timing = str(record.get("timing", ""))
    for option, side in zip(record["options"][:2], ("unfused", "fused"), strict=True):
        try:
            kernels = _kernels(families[family], side, letters, family)
        except NameError as error:
            corpus.skip(f"family {family}: formula needs {error}")
            return
        setting = Setting(
            device=load(device), host=str(record.get("source_key", "")),
            software=f"{family}-{side}", warm_l2="cold" not in timing,
            mode="eager" if side == "unfused" else "fused",
        )  # fmt: skip
        gain = float(record["gain"])
        outcome = "decisions, true fusions" if gain > 1.05 else "decisions, losses, splits, ties"
        corpus.rows.append(
            Measured(
                corpus="decisions", problem=f"{family} {json.dumps(params, sort_keys=True)}",
                name=str(record["id"]), setting=setting, run=str(record["id"]), class_=family,
                kernels=kernels, time_us=float(option["time_us"]), fused=side == "fused",
                tables=(outcome,),
            )
        )  # fmt: skip


def _kernels(
    family: Family, side: str, letters: Mapping[str, float], name: str
) -> list[LibraryKernel]:
    """As many kernels as the family states, each reading what the one before wrote."""
    count_text, bytes_text = family.sides[side]
    launches = max(1, round(evaluate(count_text, letters)))
    moved = evaluate(bytes_text, letters)
    kernels: list[LibraryKernel] = []
    steps = launches
    if family.flops is not None:
        kernels.append(
            LibraryKernel(
                name="GEMMs", op=name, kind="gemm", reads=(), writes=(),
                flops=evaluate(family.flops, letters), pipe="half",
                shape={"m": 4096, "n": 4096, "k": 4096, "batch": 1, "transposed": 0},
            )
        )  # fmt: skip
    part = round(moved / (2 * steps))
    kind = "pointwise" if side == "unfused" else "fused"
    shape = {"broadcast": 0.0} if kind == "pointwise" else {"reduces": 0.0, "window": 1.0}
    for i in range(steps):
        reads, writes = (Stream(f"t{i}", part),), (Stream(f"t{i + 1}", part),)
        kernels.append(
            LibraryKernel(
                name=f"{side} {i + 1}", op=name, kind=kind, reads=reads, writes=writes, shape=shape
            )
        )
    return kernels


def _letters(params: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for letter, given in LETTERS.items():
        for name in (given,) if isinstance(given, str) else given:
            if isinstance(params.get(name), int | float):
                found[letter] = float(params[name])
    found.update({k: float(v) for k, v in params.items() if isinstance(v, int | float)})
    size = ITEM_BYTES.get(str(params.get("dtype")), 4)
    found["s"] = size
    found["w"] = ITEM_BYTES.get(str(params.get("weight_dtype")), size)
    wide = params.get("unfused_out_dtype") or params.get("out_dtype")
    found["o"] = ITEM_BYTES.get(str(wide), size)
    for flag in ("clone", "acc", "beta", "g1", "residual"):
        found.setdefault(flag, 0.0)
    tokens = found.get("tokens", 1.0)
    if "head_dim" in found:
        heads = found.get("heads", found.get("q_heads", 0.0) + found.get("kv_heads", 0.0))
        found["E"] = tokens * heads * found["head_dim"]
        found["C"] = tokens * found["head_dim"]
    return found


# -- formulas ------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: a**b,
    ast.Lt: operator.lt, ast.Gt: operator.gt, ast.Eq: operator.eq,
}  # fmt: skip


def evaluate(formula: str, letters: Mapping[str, float]) -> float:
    """Value of an arithmetic formula. Raises NameError naming an unknown letter, ValueError."""
    return float(_value(ast.parse(formula, mode="eval").body, letters))


def _value(node: ast.expr, letters: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in letters:
            raise NameError(node.id)
        return letters[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, letters), _value(node.right, letters))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        return float(
            _OPERATORS[type(node.ops[0])](
                _value(node.left, letters), _value(node.comparators[0], letters)
            )
        )
    if isinstance(node, ast.IfExp):
        chosen = node.body if _value(node.test, letters) else node.orelse
        return _value(chosen, letters)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil":
        return math.ceil(_value(node.args[0], letters))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic")


def _families(path: Path) -> dict[str, Family]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from None
    found: dict[str, Family] = {}
    heads = list(_FAMILY.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        section = text[head.end() : following.start() if following else len(text)]
        sides = {m["side"].lower(): (m["kernels"], m["bytes"]) for m in _FORMULA.finditer(section)}
        flops = _FLOPS.search(section)
        found[head["name"]] = Family(sides, flops["flops"] if flops else None)
    return found


def _records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{path}:{number}: not JSON ({error.msg})") from None
        if not isinstance(record, dict):
            raise CorpusError(f"{path}:{number}: not a JSON object")
        found.append((number, cast("dict[str, Any]", record)))
    return found
