"""Imports point one way, and what is slow to import waits until it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fuseledger"

RANKS = {
    "errors": 0, "__init__": 0,
    "graph": 1, "stored": 1,
    "frontends": 2, "devices": 2,
    "rewrite": 3,
    "ledger": 4,
    "clock": 5,
    "planner": 6,
    "verdict": 7, "triton": 7, "peers": 7,
    "textbook": 8, "validate": 8,
    "report": 9,
    "cli": 10, "__main__": 11,
}  # fmt: skip
"""Folder or module → its place from left to right; those of one rank do not import each other."""

HEAVY = (
    "diffusers", "jax", "lark", "numpy", "onnx", "onnxruntime", "rich", "torch", "transformers",
    "triton",
)  # fmt: skip


def _modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def _folder(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _nodes(body: list[ast.stmt], *, top_only: bool) -> Iterator[ast.AST]:
    """Statements that run, without what only a type checker reads."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for name in ("body", "orelse", "finalbody"):
            yield from _nodes(getattr(node, name, []), top_only=top_only)


def _imported(path: Path, *, top_only: bool) -> set[str]:
    found: set[str] = set()
    for node in _nodes(ast.parse(path.read_text()).body, top_only=top_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _inner(names: set[str]) -> set[str]:
    """Our own folders among imported names; `from fuseledger import x` names no folder."""
    ours = {name.split(".")[1] for name in names if name.startswith("fuseledger.")}
    return ours & RANKS.keys()


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_left_to_right(path: Path) -> None:
    """No module imports, when it runs, a folder to the right of its own."""
    here = _folder(path)
    wrong = [
        other
        for other in _inner(_imported(path, top_only=False))
        if other != here and RANKS[other] >= RANKS[here]
    ]
    assert not wrong


def test_every_folder_has_a_rank() -> None:
    """A new folder is placed in the order before anything imports it."""
    assert {_folder(path) for path in _modules()} <= RANKS.keys()


def test_the_command_line_starts_without_heavy_libraries() -> None:
    """Importing the command line loads none of the libraries that take long to load."""
    code = f"import sys, fuseledger.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_planning_an_expression_loads_neither_numpy_nor_rich() -> None:
    """A short plan needs the parser and nothing else that is slow to load."""
    code = (
        "import sys; from fuseledger.cli.main import run; run(['plan', 'gemm(64,64,64)', '-o',"
        f" '/dev/null']); print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['lark']"
