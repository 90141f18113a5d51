"""The decision corpus: measured fuse-or-split options, and what each option launches and moves.

A family without formulas, and a record that they do not price, is counted and named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.clock.library_features import Setting
from fuseledger.clock.library_fit import Prior
from fuseledger.clock.library_kernel import LibraryKernel, Pipe, Stream
from fuseledger.devices import Device, load, names
from fuseledger.errors import InputError
from fuseledger.validate.corpus import Corpus, CorpusError, Measured
from fuseledger.validate.figures import WITHIN
from fuseledger.validate.formula import evaluate
from fuseledger.validate.records import Family, Record, read_families, read_records
from fuseledger.validate.split_records import FAMILIES as SPLIT_FAMILIES
from fuseledger.validate.split_records import priced_options

ALIASES = {"a100": "a100-sxm-80", "mi355": "mi355x"}
"""Devices that a source names loosely → the commonest of that name."""
ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1, "float8": 1,
}  # fmt: skip
GRADIENT_FLAG = "upstream_grad_is_one"
"""A record with this parameter has a fused side whose backward asks whether its upstream gradient
is one, and so waits for the GPU: `torch.equal` in `*_backward` of Liger-Kernel's `ops/`."""
LETTERS = {
    "T": "tokens", "H": "hidden", "V": "vocab", "I": ("inter", "ffn"), "K": "top_k",
    "E_": "experts", "hq": "q_heads", "hkv": "kv_heads", "hd": "head_dim", "acc": "accumulate_grad",
    "clone": "clone_in_region", "g1": GRADIENT_FLAG, "dqk": "head_dim_qk",
    "dv": "head_dim_v",
}  # fmt: skip
"""Letters of the formulas → parameters of the record, as the families file defines them."""


class _Unpriced(Exception):
    """Why a record has no price: it is counted, and the others go on."""


def read_decisions(path: Path) -> Corpus:
    """Two rows, unfused and fused, of every record. Raises CorpusError naming file and line."""
    families = read_families(path.parent / "families.md")
    corpus = Corpus()
    for line, record in read_records(path):
        try:
            corpus.rows += _rows(record, families, run=f"{record.id} {line}")
        except _Unpriced as reason:
            corpus.skip(str(reason))
        except (InputError, ValueError) as error:
            raise CorpusError(f"{path}:{line}: {record.family}: {error}") from None
    corpus.notes.append(
        "each option is priced from the kernels, bytes and FLOPs that families.md states; splits "
        "by the schedules of `plan`, fitted on nothing"
    )
    return corpus


def _rows(record: Record, families: Mapping[str, Family], run: str) -> list[Measured]:
    """Both sides of a record. Raises _Unpriced, ValueError where a parameter makes no sense."""
    name, family = ALIASES.get(record.device, record.device), record.family
    if record.contrast == "implementation":
        raise _Unpriced("compares two implementations, no fusion")
    if name not in names():
        raise _Unpriced(f"device {name} is not in the catalog")
    device = load(name)
    if family in SPLIT_FAMILIES:
        priced = priced_options(record, device)
        sides = [
            ((option.kernel,), Setting(device=device, mode=mode), option.time_us)
            for mode, option in zip(("eager", "fused"), priced, strict=True)
        ]
    elif family not in families or len(families[family].sides) < 2:
        raise _Unpriced(f"family {family} has no formulas")
    else:
        kernels = _kernels_by_side(families[family], record)
        sides = [(made, _setting(record, device, side), None) for side, made in kernels.items()]
    return [
        Measured(
            corpus="decisions", problem=f"{family} {json.dumps(record.params, sort_keys=True)}",
            name=record.id, run=run, class_=family, setting=setting, kernels=kernels,
            time_us=option.time_us, priced_us=priced_us, fused=setting.mode == "fused",
            tables=(outcome_of(record.gain, family),),
        )
        for (kernels, setting, priced_us), option in zip(sides, record.options[:2], strict=True)
    ]  # fmt: skip


def _kernels_by_side(family: Family, record: Record) -> dict[str, list[LibraryKernel]]:
    letters = _letters(record)
    try:
        products = _products(family, letters)
        return {
            side: _kernels(family, side, letters, record.family, products)
            for side in ("unfused", "fused")
        }
    except NameError as letter:
        raise _Unpriced(f"family {record.family}: formula needs {letter}") from None


def _setting(record: Record, device: Device, side: str) -> Setting:
    return Setting(
        device=device, host=record.source_key or "", software=f"{record.family}-{side}",
        warm_l2="cold" not in (record.timing or ""), mode="eager" if side == "unfused" else "fused",
    )  # fmt: skip


def decision_priors(measured: Sequence[Measured], priors: Mapping[str, Prior]) -> dict[str, Prior]:
    """The priors, with room for what implementations of one chain reach of the bandwidth.

    They range from 0.2 of it (rope in eager PyTorch on B200) to 0.98 (KL divergence on the same):
    half of log(0.98/0.2) is a deviation of 0.8. Products have none: both sides call one library.
    """
    tags = {m.setting.software for m in measured if m.setting.software}
    wide = {f"stream.pass@software-{tag}": Prior(0.0, IMPLEMENTATION_DEVIATION) for tag in tags}
    same = {f"{role}.gemm@software-{tag}": NONE for role in ("stream", "compute") for tag in tags}
    return {**priors, **wide, **same}


IMPLEMENTATION_DEVIATION = 0.8
NONE = Prior(0.0, 1e-4)
"""No deviation to speak of."""


def outcome_of(gain: float, family: str) -> str:
    """The table that a decision belongs to besides that of all."""
    if gain <= WITHIN:
        return "decisions, losses and ties"
    pays = "splits that pay" if family in SPLIT_FAMILIES else "true fusions"
    return f"decisions, {pays}"


class Products(Struct, frozen=True):
    """GEMMs of a family's chain, which a library runs on both sides."""

    count: int
    m: float
    n: float
    k: float
    pipe: Pipe
    activation_bytes: float = 0.0
    weight_bytes: float = 0.0
    result_bytes: float = 0.0

    @property
    def bytes(self) -> float:
        """Of their operands and results, all of them together; 0 where sizes are not known."""
        return self.count * (self.activation_bytes + self.weight_bytes + self.result_bytes)


def _products(family: Family, letters: Mapping[str, float]) -> Products | None:
    """The chain's GEMMs, where its FLOPs are those of equal ones; None for decode attention."""
    if family.flops is None or letters.get("q_len") == 1.0:
        return None
    flops = evaluate(family.flops, letters)
    size, wide = letters["s"], letters["o"]
    pipe: Pipe = "fp8" if size == 1 else "half"
    for sizes in (("m", "n", "k"), ("tokens", "inter", "hidden")):
        if all(name in letters for name in sizes):
            m, n, k = (letters[name] for name in sizes)
            if min(m, n, k) < 1:
                raise ValueError(f"params {', '.join(sizes)} are {m:g}, {n:g}, {k:g}")
            count = max(1, round(flops / (2 * m * n * k)))
            return Products(count, m, n, k, pipe, size * m * k, size * n * k, wide * m * n)
    return Products(1, 4096.0, 4096.0, 4096.0, pipe)


def _kernels(
    family: Family, side: str, letters: Mapping[str, float], name: str, products: Products | None
) -> list[LibraryKernel]:
    """As many kernels as the family states, each reading what the one before wrote.

    An intermediate dies when its reader has run, and a caching allocator hands its memory to the
    result after: two buffers take turns, and what fits L2 stays there. GEMMs move their own bytes
    while they compute; the other kernels share the rest.
    """
    count_text, bytes_text = family.sides[side]
    launches = max(1, round(evaluate(count_text, letters)))
    moved = evaluate(bytes_text, letters)
    if moved <= 0:
        raise ValueError(f"with these params {bytes_text} is {moved:g} bytes")
    if products is None or family.flops is None:
        made = _passes(side, launches, moved, name, "input")
        return _waiting(made) if side == "fused" and letters["asks"] else made
    each = evaluate(family.flops, letters) / products.count
    passes = max(0, launches - products.count)
    rest = max(0.0, moved - products.bytes)
    if not products.bytes:  # the products' sizes are not known: the passes share the bytes
        return [
            *_gemms(products, each, name, ""),
            *_passes(side, passes, rest, name, "projection 0"),
        ]
    between = _between(side, passes, rest, products, name)
    behind = between[-1].writes[0].storage if between else "projection 0"
    gemms = _gemms(products, each, name, behind)
    before = max(1, products.count - 1)
    return [*gemms[:before], *between, *gemms[before:]]


def _passes(side: str, count: int, moved: float, name: str, first: str) -> list[LibraryKernel]:
    """Kernels that stream, equal shares of the bytes each; the first one reads `first`."""
    part = round(moved / (2 * count)) if count else 0
    return [
        _pass(side, i, name, (Stream(first if i == 0 else f"buffer {i % 2}", part),), part)
        for i in range(count)
    ]


def _between(
    side: str, count: int, moved: float, products: Products, name: str
) -> list[LibraryKernel]:
    """Passes over what products wrote: each writes one result of a product's size.

    It reads the result before it, the first one the first product's; what is left of the bytes
    the last one reads from the other products.
    """
    size = round(products.result_bytes)
    left = max(0.0, moved - count * size)
    made: list[LibraryKernel] = []
    for i in range(count):
        reads = [Stream("projection 0" if i == 0 else f"buffer {i % 2}", round(min(left, size)))]
        left -= reads[0].bytes
        if i == count - 1 and left > 0:
            other = f"projection {products.count - 2}" if products.count > 2 else "operand"
            reads.append(Stream(other, round(left)))
        made.append(_pass(side, i, name, tuple(reads), size))
    return made


def _pass(side: str, i: int, name: str, reads: tuple[Stream, ...], written: int) -> LibraryKernel:
    unfused = side == "unfused"
    return LibraryKernel(
        name=f"{side} {i + 1}", op=name, kind="pointwise" if unfused else "fused", reads=reads,
        writes=(Stream(f"buffer {(i + 1) % 2}", written),),
        shape={"broadcast": 0.0} if unfused else {"reduces": 0.0, "window": 1.0},
    )  # fmt: skip


def _waiting(kernels: list[LibraryKernel]) -> list[LibraryKernel]:
    """The kernels, the host waiting for the GPU once on the way."""
    return [*kernels[:-1], replace(kernels[-1], shape={**kernels[-1].shape, "syncs": 1.0})]


def _gemms(products: Products, flops: float, name: str, behind: str) -> list[LibraryKernel]:
    """The family's GEMMs; of several the last one reads what the passes before it wrote."""
    shape = {
        "m": products.m, "n": products.n, "k": products.k, "batch": 1, "transposed": 0,
    }  # fmt: skip
    made: list[LibraryKernel] = []
    for i in range(products.count):
        down = products.count > 1 and i == products.count - 1
        read, written = products.activation_bytes, products.result_bytes
        x, y = (behind, "result") if down else ("activation", f"projection {i}")
        if down:  # from the products' width back to that of their input
            read, written = written, read
        made.append(
            LibraryKernel(
                name=f"GEMM {i + 1}", op=name, kind="gemm", flops=flops, pipe=products.pipe,
                shape=shape, writes=(Stream(y, round(written)),),
                reads=(Stream(x, round(read)), Stream(f"weight {i}", round(products.weight_bytes))),
            )
        )  # fmt: skip
    return made


def _letters(record: Record) -> dict[str, float]:
    params = record.params
    found: dict[str, float] = {}
    for letter, given in LETTERS.items():
        for name in (given,) if isinstance(given, str) else given:
            if isinstance(params.get(name), int | float):
                found[letter] = float(params[name])
    found.update({k: float(v) for k, v in params.items() if isinstance(v, int | float)})
    size = _item_bytes(record, params.get("dtype"))
    found["s"] = size
    found["w"] = _item_bytes(record, params.get("weight_dtype"), size)
    wide = params.get("unfused_out_dtype") or params.get("out_dtype")
    found["o"] = _item_bytes(record, wide, size)
    found["asks"] = float(GRADIENT_FLAG in params)
    for flag in ("clone", "acc", "beta", "g1", "residual"):
        found.setdefault(flag, 0.0)
    tokens = found.get("tokens", 1.0)
    if "head_dim" in found:
        heads = found.get("heads", found.get("q_heads", 0.0) + found.get("kv_heads", 0.0))
        found["E"] = tokens * heads * found["head_dim"]
        found["C"] = tokens * found["head_dim"]
    return found


def _item_bytes(record: Record, dtype: Any, default: float | None = None) -> float:
    """Bytes of an element; `default` where no dtype is given. Raises _Unpriced."""
    if dtype is None and default is not None:
        return default
    if str(dtype) not in ITEM_BYTES:
        raise _Unpriced(f"family {record.family}: dtype {dtype} has no known size")
    return ITEM_BYTES[str(dtype)]
