"""What `dhlo.compile` takes besides exported programs: modules with example arguments, and files of torch.export.save."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._library.fake_impl import FakeImplCtx
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from dhlo.errors import CompileError
from dhlo.exported import read_program

__all__ = ["as_exported", "describe_dims"]

_LOG = logging.getLogger("dhlo")
_HOW = "torch.export.export(module, args, dynamic_shapes=...), or dhlo.compile(module, args, dynamic_shapes=...)"


def as_exported(program: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> ExportedProgram:
    """The exported program that is meant: itself, the one in a file, or the module's, exported with the example arguments. Without
    `dynamic_shapes` all dims of tensors are dynamic that can be. What has become dynamic and what hasn't is logged ("dhlo", INFO;
    dims that an example of size 0 or 1 has fixed: WARNING).

    Raises CompileError for anything else, and where the export fails.
    """
    given = [name for name, x in (("args", args), ("kwargs", kwargs), ("dynamic_shapes", dynamic_shapes)) if x is not None]
    if isinstance(program, (ExportedProgram, str, os.PathLike)):
        if given:
            raise CompileError(f"{given[0]}: is for a module that isn't exported yet")
        return program if isinstance(program, ExportedProgram) else read_program(Path(program))
    if not isinstance(program, torch.nn.Module):
        raise CompileError(f"a program of torch.export.export is compiled, not {_a(type(program).__name__)}", hint=f"{_HOW}")
    if args is None and kwargs is None:
        raise CompileError("a module is compiled with example arguments, or exported first", hint=_HOW)
    if args is not None and not isinstance(args, (tuple, list)):
        raise CompileError("args: is a tuple of the module's arguments", hint="dhlo.compile(module, (x,)), say")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CompileError("kwargs: is a dict of the module's arguments by name", hint='dhlo.compile(module, (x,), {"y": y}), say')
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    wanted = _all_dynamic(program, args, kwargs) if dynamic_shapes is None else dynamic_shapes
    try:
        exported = _export(program, args, kwargs, wanted)
    except Exception as e:  # torch.export raises whatever the module and its own parts raise
        raise CompileError(f"torch.export.export failed: {e}", hint="export it yourself to see where") from e
    if dynamic_shapes is None:
        fixed = [f"{name} dim {dim}" for name, sizes in _inputs(exported) for dim, size in enumerate(sizes) if size in ("0", "1")]
        if fixed:
            _LOG.warning("fixed, since the example has size 0 or 1 there: %s; give an example of 2 or more", ", ".join(fixed))
    _LOG.info("exported with %s", describe_dims(exported))
    return exported


_PROMISES = threading.RLock()  # held while what fake implementations promise is another function


def _export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: Any) -> ExportedProgram:
    """torch.export.export, where it can be with results of any size that operators count, 0 and 1 included. Those that make its
    symbol by `create_unbacked_symint` promise 2 or more, as torchvision::nms does, which may keep one box or none."""
    asked = False

    def any_size(context: FakeImplCtx, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        nonlocal asked
        asked = True
        return context.new_dynamic_size(min=min, max=max)

    if not hasattr(FakeImplCtx, "create_unbacked_symint"):  # it is deprecated
        return torch.export.export(module, args, kwargs, dynamic_shapes=wanted)
    with _PROMISES:
        as_it_is = FakeImplCtx.create_unbacked_symint
        setattr(FakeImplCtx, "create_unbacked_symint", any_size)  # noqa: B010
        try:
            return torch.export.export(module, args, kwargs, dynamic_shapes=wanted)
        except Exception:
            if not asked:
                raise
        finally:
            setattr(FakeImplCtx, "create_unbacked_symint", as_it_is)  # noqa: B010
    return torch.export.export(module, args, kwargs, dynamic_shapes=wanted)  # the module may ask whether there are any


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def _all_dynamic(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dim.AUTO for every dim of every tensor among the arguments, as torch.export.export takes it."""
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as e:
        raise CompileError(f"the module isn't called so: {e}") from None
    if any(p.kind is p.VAR_KEYWORD and p.name in bound for p in signature.parameters.values()):
        raise CompileError(
            "torch.export.export knows no dynamic sizes for keywords that the module's forward doesn't name (**kwargs)",
            hint="name them in the signature, of a wrapper say, or export it yourself",
        )
    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    for x in {id(x): x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim()}.values():
        shapes[x] = dict.fromkeys(range(x.dim()), Dim.AUTO)
    return shapes if len(shapes) else None


def _inputs(exported: ExportedProgram) -> Iterator[tuple[str, list[str]]]:
    """Names and sizes of the arguments that are tensors."""
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        value = values.get(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT and isinstance(value, torch.Tensor):
            yield spec.arg.name, [str(s) for s in value.shape]


def describe_dims(exported: ExportedProgram) -> str:
    """`x[s77, 8], mask[s77]`: sizes that are names are dynamic."""
    return ", ".join(f"{name}[{', '.join(sizes)}]" for name, sizes in _inputs(exported))
