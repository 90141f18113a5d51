"""PyTorch modules, through `torch.export` on fake tensors: nothing of the model is allocated.

A factory file is the user's own program: `load_factory` runs it. A `.pt2` archive is read by
`aten_pt2` and runs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, cast

from fuseledger.errors import FuseledgerError, MissingExtra, SourceError
from fuseledger.frontends.aten import lower
from fuseledger.frontends.aten_graph import AtenGraph
from fuseledger.frontends.torch_program import read_program
from fuseledger.graph.graph import Graph


def load_factory(source: str) -> Graph:
    """The graph of `path/to/file.py:factory`.

    Runs the file and calls `factory()`, which returns `(nn.Module, example_inputs)` or
    `(nn.Module, example_inputs, keyword_inputs)`, on fake tensors: a 70-billion-parameter module
    takes no memory. Raises SourceError, naming file and factory, for whatever goes wrong there.
    """
    return lower(read_factory(source))


def read_factory(source: str) -> AtenGraph:
    """The same factory's module as ATen nodes, not yet lowered."""
    path, _, factory_name = source.rpartition(":")
    if not path or not factory_name.isidentifier():
        raise SourceError(f"{source}: write it as path/to/file.py:factory")
    _require_torch()
    factory = _imported(Path(path), factory_name)
    module, inputs, keywords = _checked(source, _called_on_fakes(source, factory))
    return read_module(module, inputs, keywords, name=factory_name, source=source)


def from_module(
    module: Any,
    example_inputs: Sequence[Any],
    keyword_inputs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    source: str | None = None,
    composites: bool = True,
) -> Graph:
    """The graph of an `nn.Module` for inputs of these shapes and dtypes.

    Parameters and buffers keep their qualified names. Writes to buffers and inputs are left out of
    the graph and named in its notes. `composites` is that of `aten.lower`. Raises SourceError where
    torch.export refuses the module.
    """
    label = name or type(module).__name__
    read = read_module(module, example_inputs, keyword_inputs, name=label, source=source)
    return lower(read, composites=composites)


def read_module(
    module: Any,
    example_inputs: Sequence[Any],
    keyword_inputs: Mapping[str, Any] | None = None,
    *,
    name: str,
    source: str | None = None,
    dispatched: bool = False,
) -> AtenGraph:
    """The module as ATen nodes, not yet lowered.

    `dispatched`: as the calls that eager PyTorch dispatches, composites taken apart.
    """
    torch = _require_torch()
    where = source or name
    module, inputs, keywords = _fake(module, tuple(example_inputs), dict(keyword_inputs or {}))
    unread = StringIO()  # torch prints the graph of what it refuses
    with (
        _quiet(), torch.no_grad(), redirect_stdout(unread), redirect_stderr(unread),
        _refusals(where, "torch.export refuses it"),
    ):  # fmt: skip
        program = torch.export.export(module, inputs, keywords, strict=False)
        if dispatched:
            program = program.run_decompositions(_composites(torch))
    return read_program(program, name=name, source=where)


def _composites(torch: Any) -> Any:
    """The decompositions that the dispatcher itself applies: of ops that no backend implements."""
    table = torch.export.default_decompositions()
    dispatched: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    for op in list(table):
        if not dispatched(op.name(), "CompositeImplicitAutograd"):
            table.pop(op)
    return table


def read_problem(path: Path) -> AtenGraph:
    """A problem of KernelBench as the calls that eager PyTorch dispatches.

    Runs the file, which defines `Model`, `get_init_inputs` and `get_inputs`, on fake tensors.
    Raises SourceError, naming the file, for whatever goes wrong there.
    """
    _require_torch()
    program = getattr(_imported(path, "get_inputs"), "__globals__", {})
    missing = [name for name in ("Model", "get_init_inputs") if not callable(program.get(name))]
    if missing:
        raise SourceError(f"{path}: defines no {missing[0]}, so it is no problem of KernelBench")

    def factory() -> Any:
        return program["Model"](*program["get_init_inputs"]()), tuple(program["get_inputs"]())

    module, inputs, keywords = _checked(str(path), _called_on_fakes(str(path), factory))
    return read_module(module, inputs, keywords, name=path.stem, source=str(path), dispatched=True)


def _require_torch() -> Any:
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("torch.export")
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    return torch


# -- the factory ---------------------------------------------------------------------------------


def _imported(path: Path, factory_name: str) -> Callable[[], Any]:
    source = f"{path}:{factory_name}"
    if not path.is_file():
        raise SourceError(f"{source}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"fuseledger_source_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{source}: {path} is no Python file")
    program = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = program
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with _refusals(source, f"{path} cannot be run"):
            spec.loader.exec_module(program)
    finally:
        sys.path.pop(0)
    factory = getattr(program, factory_name, None)
    if not callable(factory):
        kind = "defines no" if factory is None else "holds no function"
        raise SourceError(f"{source}: {path} {kind} {factory_name}")
    return factory


def _called_on_fakes(source: str, factory: Callable[[], Any]) -> Any:
    """What the factory returns, its tensors fake, or on the meta device where that fails."""
    torch = _require_torch()
    from torch._subclasses import fake_tensor  # no public name for the mode

    fakes: Any = fake_tensor
    with _quiet(), _refusals(source, "the factory raised"):
        try:
            with fakes.FakeTensorMode(allow_non_fake_inputs=True):
                return factory()
        except Exception as first:  # fake tensors know no values and refuse `Module.to`
            try:
                with torch.device("meta"):
                    return factory()
            except Exception:
                raise first from None


def _checked(source: str, found: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    torch = _require_torch()
    shape = "it must return (nn.Module, example_inputs[, keyword_inputs])"
    parts: list[Any] = list(cast("tuple[Any, ...]", found)) if isinstance(found, tuple) else []
    if len(parts) not in (2, 3):
        kind = f"{len(parts)} values" if parts else type(cast("object", found)).__name__
        raise SourceError(f"{source}: the factory returned {kind}; {shape}")
    module: Any = parts[0]
    inputs: Any = parts[1]
    keywords: Any = parts[2] if len(parts) == 3 else {}
    if not isinstance(module, torch.nn.Module):
        raise SourceError(
            f"{source}: the factory's first result is of type {type(module).__name__}; {shape}"
        )
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    for held, kinds, what in (
        (inputs, (tuple, list), "example inputs are no tuple"),
        (keywords, (dict,), "keyword inputs are no dict"),
    ):
        if not isinstance(held, kinds):
            raise SourceError(f"{source}: the factory's {what}; {shape}")
    return module, tuple(cast("Sequence[Any]", inputs)), cast("dict[str, Any]", keywords)


REMEDIES = {
    "in output, which is not a known type": "let forward return tensors alone (of a model of "
    "transformers: use_cache=False)",
    "Could not guard on data-dependent expression": "forward branches on values of a tensor, which "
    "a graph cannot",
}
"""Words of torch's refusals → what helps."""


@contextmanager
def _refusals(source: str, what: str) -> Generator[None]:
    """Whatever the user's program raises, as one line."""
    try:
        yield
    except FuseledgerError:
        raise
    except (Exception, SystemExit) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0][:300] if lines else "no message"
        for words, remedy in REMEDIES.items():
            if words in said:
                said = f"{said[: said.index(words) + len(words)]}: {remedy}"
        raise SourceError(f"{source}: {what}: {type(error).__name__}: {said}") from None


@contextmanager
def _quiet() -> Generator[None]:
    """Without torch's warnings and progress, which say nothing about the graph."""
    import logging

    quieted = [logging.getLogger(name) for name in ("torch", "transformers")]
    levels = [logger.level for logger in quieted]
    for logger in quieted:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(quieted, levels, strict=True):
            logger.setLevel(level)


def _fake(
    module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Tensors of the meta device as fake CPU tensors; all others as they are."""
    torch = _require_torch()
    from torch._subclasses import fake_tensor
    from torch.utils import _pytree  # no public name; stable since 2.0

    tensors = [*module.parameters(), *module.buffers()]
    leaves, spec = cast("Any", _pytree).tree_flatten((inputs, keywords))
    if not any(
        isinstance(t, torch.Tensor) and t.device.type == "meta" for t in (*tensors, *leaves)
    ):
        return module, inputs, keywords
    mode: Any = cast("Any", fake_tensor).FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Any] = {}

    def faked(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            with mode:
                fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            is_parameter = isinstance(value, torch.nn.Parameter)
            made[id(value)] = (
                torch.nn.Parameter(fake, requires_grad=False) if is_parameter else fake
            )
        return made[id(value)]

    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for key, value in list(store.items()):
                store[key] = faked(value)
    inputs, keywords = cast("Any", _pytree).tree_unflatten([faked(leaf) for leaf in leaves], spec)
    return module, inputs, keywords
