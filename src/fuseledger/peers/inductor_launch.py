"""How TorchInductor would launch a kernel that it generated: constants, warps, stages.

Its heuristics say so when the generated module is loaded; nothing is compiled or run here. Only
`inductor_worker` imports this.
"""

# torch is untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ast
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NEEDS_A_DRIVER = "triton_helpers.set_driver_to_gpu()"
IMPORTS = (
    "from torch._inductor.runtime import triton_helpers",
    "from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math",
)
"""What a generated function uses besides Triton."""


def launch_of(name: str, source: str) -> Json | None:
    """The fields of `TritonLaunch` for a generated kernel; None where its source is no such call.

    Of several configurations, among which TorchInductor would choose by timing, the first.
    """
    text = _module_text(source)
    if text is None:
        return None
    tuner = _load(name, text.replace(NEEDS_A_DRIVER, ""))
    config = tuner.configs[0]
    meta: Json = tuner.triton_meta
    return {
        "code": "\n".join([*IMPORTS, "", text[text.index("@triton.jit") :].strip()]),
        "signature": {str(key): str(value) for key, value in meta["signature"].items()},
        "constants": {**meta.get("constants", {}), **config.kwargs},
        "warps": config.num_warps,
        "stages": config.num_stages,
        "configurations": len(tuner.configs),
    }


def _module_text(source: str) -> str | None:
    """The module inside `async_compile.triton(name, '''…''', …)`."""
    try:
        (statement,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return None
    texts = [
        arg.value
        for arg in statement.value.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    ]
    return next((text for text in texts if "@triton.jit" in text), None)


def _load(name: str, text: str) -> Any:
    """The kernel of a module's text; Triton reads its functions' source from a file."""
    with tempfile.TemporaryDirectory(prefix="fuseledger-inductor-") as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("fuseledger_inductor_kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)
