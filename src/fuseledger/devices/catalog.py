"""The catalog of GPUs: one TOML file each, with what an architecture shares kept in one place.

A device file may leave out what its `arch` (`catalog/_sm_90.toml`) or its vendor
(`catalog/_nvidia.toml`) gives; the source of an inherited figure says where it comes from.
"""

import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from fuseledger.devices.device import ARCH_PATTERN, Device, Vendor
from fuseledger.devices.figure import FIELDS, TEXT_PATTERN, AnyFigure, Figures, nested
from fuseledger.errors import DeviceError

T = TypeVar("T")

_CATALOG = Path(__file__).with_name("catalog")
_IDENTITY = ("name", "title", "vendor", "arch")
_FILE_BYTES_MAX = 1 << 20

# What msgspec says a field should hold, and what a device file's author can act on.
_WORDS = (
    ("`object | null`", "a table with `value` and `source`"),
    ("`object`", "a table of figures"),
    (f"`str` matching regex {TEXT_PATTERN!r}", "text that is not blank"),
    (f"`str` matching regex {ARCH_PATTERN!r}", "an architecture such as `sm_90` or `gfx942`"),
    ("Invalid enum value", f"expected one of {', '.join(get_args(Vendor))}, got"),
)


def names() -> list[str]:
    """Names of the devices in the catalog, sorted."""
    return sorted(path.stem for path in _CATALOG.glob("[!_]*.toml"))


def load(name_or_path: str) -> Device:
    """Device of that name in the catalog, or the one that a `.toml` file describes.

    Raises `DeviceError`, in one line, for an unknown name, and for a file that cannot be read or
    breaks the schema; the line names the file and the field.
    """
    if name_or_path.endswith(".toml"):
        return _read_device(Path(name_or_path))
    return _load_name(name_or_path)


def replace_figures(device: Device, **values: float) -> Device:
    """Device with some figures set by the user, such as `dram_bandwidth_gbs=4502.4`.

    Names are dotted where the file nests: `**{"launch_us.graph": 1.0}`. A bandwidth that the user
    sets is the one that accounts use: it replaces a measured one and is taken whole.

    Raises `DeviceError` for an unknown field or a value that a file could not hold.
    """
    given = dict(values)
    kept = device.figures.flat()
    if "dram_bandwidth_gbs" in given and "dram_measured_gbs" not in given:
        kept.pop("dram_measured_gbs", None)
        given.setdefault("stream_efficiency", 1.0)
    for field in given:
        if field not in FIELDS:
            raise DeviceError(f"no device has a figure named {field!r}{_nearest(field, FIELDS)}")
    source = "set on the command line"
    flat = kept | {field: {"value": value, "source": source} for field, value in given.items()}
    figures = _convert(nested(flat), Figures, f"device {device.name}")
    return msgspec.structs.replace(device, figures=figures)


@functools.cache
def _load_name(name: str) -> Device:
    known = names()
    if name not in known:
        raise DeviceError(
            f"unknown device {name!r}{_nearest(name, known)}: "
            "`fuseledger devices` lists them, and a file of your own ends in .toml"
        )
    return _read_device(_CATALOG / f"{name}.toml")


def _read_device(path: Path) -> Device:
    table = _read_toml(path)
    identity = {key: table.pop(key) for key in _IDENTITY if key in table}
    device = _convert(identity, Device, str(path))
    own = _convert(table, Figures, str(path))
    generation = re.sub(r"^(sm_\d+)[a-z]$", r"\1", device.arch)  # sm_90a is an sm_90
    inherited = _shared(device.vendor) | _shared(generation)
    figures = _convert(nested(inherited | own.flat()), Figures, str(path))
    return msgspec.structs.replace(device, figures=figures)


@functools.cache
def _shared(owner: str) -> dict[str, AnyFigure]:
    """Figures common to an architecture or a vendor, each source saying so; none without a file."""
    path = _CATALOG / f"_{owner}.toml"
    if not path.exists():
        return {}
    figures = _convert(_read_toml(path), Figures, str(path)).flat()
    return {
        field: msgspec.structs.replace(figure, source=f"{figure.source} (inherited from {owner})")
        for field, figure in figures.items()
    }


def _read_toml(path: Path) -> dict[str, Any]:
    """Tables of a TOML file; `DeviceError` names the file and what is wrong with it."""
    try:
        if not path.exists():
            raise DeviceError(f"{path}: no such file")
        if not path.is_file():
            raise DeviceError(f"{path}: not a file")
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise DeviceError(f"{path}: more than 1 MiB, which is no device file")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DeviceError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{path}: not valid TOML: {_one_line(error)}") from error


def _convert(table: dict[str, Any], kind: type[T], place: str) -> T:
    """Table checked against a struct; `DeviceError` gives the place and the dotted field."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise DeviceError(f"{place}: {_explain(str(error))}") from error


def _explain(message: str) -> str:
    """Put the field first, and say what it should hold.

    msgspec writes "Object missing required field `source` - at `$.l2_bytes`".
    """
    what, _, path = message.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    named = re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what, re.S)
    if named is None:
        for theirs, ours in _WORDS:
            what = what.replace(theirs, ours)
        return _one_line(f"{field}: {what[0].lower()}{what[1:]}")
    name = f"{field}.{named[2]}" if field else named[2]
    if named[1] == "missing required":
        return _one_line(f"{name}: missing")
    return _one_line(f"{name}: unknown field{_nearest(name, (*_IDENTITY, *FIELDS))}")


def _nearest(word: str, known: Iterable[str]) -> str:
    import difflib  # only a mistake needs it, and it is a sixth of this package's import time

    near = difflib.get_close_matches(word.lower(), list(known), n=3, cutoff=0.5)
    return f" (nearest: {', '.join(near)})" if near else ""


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
