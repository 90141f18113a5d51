"""Decision files in TOML: options and the machine they are for. See `docs/decide.md`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from fuseledger.devices import Device, load, replace_figures
from fuseledger.errors import DecisionError
from fuseledger.verdict.options import Decision, DeclaredOption, Derived, Part, decide_declared

DEFAULT_DEVICE = "h100-sxm"

_FILE_BYTES_MAX = 1 << 20

_LINE = r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*\Z"

Text = Annotated[str, msgspec.Meta(pattern=_LINE, max_length=200)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e18)]
Natural = Annotated[float, msgspec.Meta(ge=0, lt=1e18)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1, lt=10**18)]
NaturalInt = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


class OptionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[option]]` of a decision file."""

    name: Text
    bytes: NaturalInt
    """DRAM bytes read and written; 0 where it adds none to what all options move."""
    grid: PositiveInt
    on_chip_bytes: PositiveInt
    capacity_limit_bytes: PositiveInt | None = None
    launches: PositiveInt = 1
    flops: Natural = 0.0
    time_us: Positive | None = None
    choice: Literal["fuse", "split"] | None = None
    derivation: Text | None = None
    """How the bytes come about."""


class DecisionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision file."""

    title: Text | None = None
    device: Text | None = None
    bandwidth_gbs: Positive | None = None
    sm_count: PositiveInt | None = None
    option: Annotated[list[OptionTable], msgspec.Meta(min_length=1, max_length=1000)]


def decide_file(
    path: Path, *, device: str | None = None, bandwidth_gbs: float | None = None,
    sm_count: int | None = None,
) -> Decision:  # fmt: skip
    """The verdict on a decision file; the arguments override what the file says of the machine.

    Raises DecisionError, in one line, naming the file and the field.
    """
    table = read_decision(path)
    machine = machine_of(
        device or table.device or DEFAULT_DEVICE,
        table.bandwidth_gbs if bandwidth_gbs is None else bandwidth_gbs,
        table.sm_count if sm_count is None else sm_count,
    )
    declared = [_declared(option) for option in table.option]
    return decide_declared(table.title or path.stem, declared, machine)


def machine_of(device: str, bandwidth_gbs: float | None, sm_count: int | None) -> Device:
    """A device of the catalog with the figures that the user sets."""
    figures: dict[str, float] = {}
    if bandwidth_gbs is not None:
        figures["dram_bandwidth_gbs"] = bandwidth_gbs
    if sm_count is not None:
        figures["sm_count"] = sm_count
    machine = load(device)
    return replace_figures(machine, **figures) if figures else machine


def read_decision(path: Path) -> DecisionTable:
    """The file checked against the schema; raises DecisionError naming the file and the field."""
    try:
        table = msgspec.convert(_read_toml(path), DecisionTable)
    except msgspec.ValidationError as error:
        raise DecisionError(f"{path}: {_explain(str(error))}") from error
    names = [option.name for option in table.option]
    if len(names) < 2:
        raise DecisionError(f"{path}: option: one alone decides nothing, add a second [[option]]")
    for number, name in enumerate(names):
        if name in names[:number]:
            first = names.index(name)
            raise DecisionError(
                f"{path}: option[{number}].name: {name!r} is the name of option[{first}] already"
            )
    return table


def _declared(option: OptionTable) -> DeclaredOption:
    moved = (Part("all bytes", option.bytes, "uint8"),) if option.bytes else ()
    return DeclaredOption(
        name=option.name, reads=moved, grid=Derived(option.grid, "as declared"),
        on_chip=Derived(option.on_chip_bytes, "as declared"),
        budget_bytes=option.capacity_limit_bytes, launches=option.launches, flops=option.flops,
        time_us=option.time_us, choice=option.choice,
        traffic_words=option.derivation or "as declared",
    )  # fmt: skip


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise DecisionError(f"{path}: more than 1 MiB, which is no decision file")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise DecisionError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DecisionError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise DecisionError(f"{path}: not valid TOML: {_one_line(str(error))}") from error


_EXPECTED = (
    (re.compile(r"expected `(?:int|float)` ([<>]=?) ([\d.e+]+)", re.I), r"must be \1 \2"),
    (re.compile(r"expected `str` matching regex.*", re.I), "must be text of one line, not blank"),
    (re.compile(r"expected `str` of length <= (\d+)", re.I), r"must be at most \1 characters"),
    (re.compile(r"expected `array` of length >= 1", re.I), "add two [[option]] tables"),
    (re.compile(r"invalid enum value (.*)", re.I), r"must be 'fuse' or 'split', not \1"),
)
"""What msgspec says of a value, and what a file's author can act on."""


def _explain(message: str) -> str:
    """Field first: msgspec writes "Expected `int` >= 1 - at `$.option[0].grid`"."""
    what, _, place = message.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    named = re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what, re.S)
    if named is not None:
        name = f"{field}.{named[2]}" if field else named[2]
        if named[1] == "missing required":
            return _one_line(f"{name}: missing")
        return _one_line(f"{name}: unknown field{_nearest(named[2], field)}")
    for pattern, words in _EXPECTED:
        what = pattern.sub(words, what)
    return _one_line(f"{field}: {what[:1].lower()}{what[1:]}".replace("`", ""))


def _nearest(name: str, place: str) -> str:
    from difflib import get_close_matches

    known = (OptionTable if place.startswith("option") else DecisionTable).__struct_fields__
    near = get_close_matches(name, known, n=1)
    return f" (nearest: {near[0]})" if near else f": one of {', '.join(known)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
