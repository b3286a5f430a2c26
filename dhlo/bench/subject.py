"""What is measured: a program and its arguments at each shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dhlo.options import Range

__all__ = ["Arguments", "Subject", "from_files"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A program under measurement. `arguments(i)` are positional and keyword arguments at the i-th shape.

    `module` is what eager PyTorch runs, `exported` what compilers take; `model_file` is given instead of both where
    only a compiled model is at hand.
    """

    labels: list[str]
    arguments: Callable[[int], Arguments]
    module: Callable[[], torch.nn.Module] | None = None
    exported: Callable[[], torch.export.ExportedProgram] | None = None
    model_file: Path | None = None
    grow: Mapping[str, int] = field(default_factory=dict)  # `Options.grow`, where the program has caches
    shapes: Mapping[str, Range] = field(default_factory=dict)  # `Options.shapes`
    entry: str | None = None  # of the model file
    example: int = 0  # the shape at which just-in-time compilers compile first


def from_files(
    program: str,
    arguments: str,
    labels: list[str],
    ranges: Mapping[str, Sequence[int | None]] | None = None,
    entry: str | None = None,
    modules: Sequence[str] = (),
) -> Subject:
    """A .pt2 or .so file, and a file of torch.save with a list of (args, kwargs) for each label. `ranges` are the fields of each of
    `Options.shapes`; `modules` are imported first."""
    from dhlo.exported import import_modules, read_program

    import_modules(modules)
    saved = torch.load(arguments, weights_only=False)
    path = Path(program)
    if path.suffix != ".pt2":
        return Subject(labels, lambda i: saved[i], model_file=path, entry=entry)
    exported = read_program(path)
    return Subject(
        labels,
        lambda i: saved[i],
        lambda: exported.module(check_guards=False),
        lambda: exported,
        shapes={name: Range(*fields) for name, fields in (ranges or {}).items()},
        example=len(saved) // 2,
    )
