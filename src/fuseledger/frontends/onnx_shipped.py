"""Models that the onnx package ships for its own tests: full shapes, weights of zero."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fuseledger.errors import MissingExtra, SourceError

_FOLDER = "backend/test/data/light"
_PREFIX = "light_"


def shipped_model(name: str) -> Path:
    """The file of a shipped model by name, such as `resnet50`, with or without `light_`.

    Raises SourceError, naming those there are, for another name; MissingExtra without onnx.
    """
    spec = find_spec("onnx")
    if spec is None or spec.origin is None:
        raise MissingExtra("onnx", "onnx")
    folder = Path(spec.origin).parent / _FOLDER
    known = {path.stem.removeprefix(_PREFIX): path for path in sorted(folder.glob("*.onnx"))}
    found = known.get(name.removeprefix(_PREFIX))
    if found is None:
        names = ", ".join(known) or "none; upgrade onnx"
        raise SourceError(f"onnx:{name}: no such model in the onnx package; it ships {names}")
    return found
