"""SOURCE on the command line: an expression, a model file, or a factory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fuseledger.errors import SourceError
from fuseledger.frontends.names import is_text
from fuseledger.graph.graph import Graph

ACCEPTED = "a SOURCE is an expression, a .onnx, .pt2 or .json file, onnx:NAME, or module.py:factory"

_SHIPPED = re.compile(r"onnx:(?P<name>[\w.-]*)")
"""A model that the onnx package ships."""

_FACTORY = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<factory>\w*)")
_PATH_LIKE = re.compile(r"[^\s()\[\]+*@|=;,]*(/|\\|\.[A-Za-z])[^()\[\]+*@|=;,]*")
"""No sign of an expression but a division, and a separator or a suffix."""

_WRITTEN = frozenset("()[]|=;")
"""Signs of an expression."""

Dims = Mapping[str, int]


def load(source: str, *, dtype: str = "fp16", dims: Dims | None = None) -> Graph:
    """The graph of a SOURCE.

    `dtype` is that of an expression's tensors; files say their own. `dims` gives symbolic sizes
    of an ONNX file or an expression. Raises SourceError, naming the source, for what cannot be
    read, and MissingExtra where a reader needs a package that is not installed.
    """
    if not is_text(source):
        raise SourceError(f"{source!a}: a name that is no UTF-8 text; rename the file")
    shipped = _SHIPPED.fullmatch(source.strip())
    if shipped is not None:
        from fuseledger.frontends.onnx_shipped import shipped_model

        return _onnx(shipped_model(shipped["name"]), dims)
    factory = _FACTORY.fullmatch(source.strip())
    if factory is not None:
        return _from_factory(source.strip(), factory["module"], factory["factory"], dims)
    path = Path(source)
    reader = _READERS.get(path.suffix.lower())
    if _exists(path) or (reader is not None and not _WRITTEN & set(source)):
        return _from_file(source, path, dims)
    if _PATH_LIKE.fullmatch(source):
        raise SourceError(f"{source}: no such file; {ACCEPTED}")
    from fuseledger.frontends.expression import parse

    return parse(source, dtype=dtype, dims=dims)


def runs_python(source: str) -> bool:
    """Whether loading the SOURCE imports, and so runs, a Python module that is there."""
    text = source.strip()
    factory = _FACTORY.fullmatch(text) if _SHIPPED.fullmatch(text) is None else None
    if factory is None or not factory["factory"].isidentifier():
        return False
    return Path(factory["module"]).is_file()


def _exists(path: Path) -> bool:
    try:
        return path.exists() and str(path) != "."
    except (OSError, ValueError):  # an expression can be longer than a name may be
        return False


def _from_file(source: str, path: Path, dims: Dims | None) -> Graph:
    if not path.exists():
        raise SourceError(f"{source}: no such file")
    if path.is_dir():
        raise SourceError(f"{source}: is a directory; {ACCEPTED}")
    if path.suffix == ".py":
        raise SourceError(
            f"{source}: name the function that makes the module, as in {source}:factory"
        )
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        what = f"a '{path.suffix}' file" if path.suffix else "a file without a suffix"
        raise SourceError(f"{source}: cannot read {what}; {ACCEPTED}")
    return reader(path, dims)


def _from_factory(source: str, module: str, factory: str, dims: Dims | None) -> Graph:
    if not module.endswith(".py"):
        raise SourceError(f"{source}: {module} is no Python file; write it as file.py:factory")
    if not Path(module).is_file():
        raise SourceError(f"{module}: no such file")
    if not factory.isidentifier():
        raise SourceError(
            f"{source}: name the function that makes the module, as in {module}:factory"
        )
    _no_dims(source, dims)
    from fuseledger.frontends.torch import load_factory

    return load_factory(source)


def _no_dims(source: str, dims: Dims | None) -> None:
    if dims:
        raise SourceError(
            f"{source}: sizes are fixed by its example inputs; drop {', '.join(dims)}"
        )


def _onnx(path: Path, dims: Dims | None) -> Graph:
    from fuseledger.frontends.onnx import load as load_onnx

    return load_onnx(path, dims=dims)


def _pt2(path: Path, dims: Dims | None) -> Graph:
    _no_dims(str(path), dims)
    from fuseledger.frontends.aten_pt2 import load as load_archive

    return load_archive(path)


def _aten_json(path: Path, dims: Dims | None) -> Graph:
    _no_dims(str(path), dims)
    from fuseledger.frontends.aten_json import load as load_json

    return load_json(path)


_READERS: dict[str, Callable[[Path, Dims | None], Graph]] = {
    ".onnx": _onnx,
    ".pt2": _pt2,
    ".json": _aten_json,
}
