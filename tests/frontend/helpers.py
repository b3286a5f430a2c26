"""Exporting, importing and running small modules against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from dhlo import interp
from dhlo.frontend import Program, import_program
from dhlo.frontend.compat import VERSION

__all__ = ["EXPORTED_FOR_ALL_SIZES", "Fn", "check", "export", "import_fn", "run"]


# What torch.export 2.12 exports for some sizes only, such as even ones, with guards that say so; dhlo checks these at each call.
EXPORTED_FOR_ALL_SIZES = pytest.mark.skipif(VERSION < (2, 13), reason="torch 2.12 fixes sizes by the example's")


class Fn(torch.nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any], **state: torch.Tensor) -> None:
        super().__init__()
        self.fn = fn
        for name, data in state.items():
            self.register_buffer(name, data)

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def dynamic(args: Sequence[Any]) -> tuple[Any, ...]:
    """Every dim of every tensor dynamic where the program allows it."""
    return tuple({d: Dim.AUTO for d in range(a.dim())} if isinstance(a, torch.Tensor) else None for a in args)


def export(fn: Any, args: Sequence[Any], shapes: Any = None) -> torch.export.ExportedProgram:
    """Exports a function or module, by default with every dim dynamic."""
    module = fn if isinstance(fn, torch.nn.Module) else Fn(fn)
    spec = dynamic(args) if shapes is None else shapes
    if not isinstance(fn, torch.nn.Module):
        spec = (spec,)
    with torch.no_grad():
        return torch.export.export(module.eval(), tuple(args), dynamic_shapes=spec)


def import_fn(fn: Any, args: Sequence[Any], shapes: Any = None) -> Program:
    return import_program(export(fn, args, shapes))


def run(program: Program, args: Any) -> list[Any]:
    """Output leaves of a program on the leaves of its inputs."""
    leaves = [x for s, x in zip(program.inputs, tree_leaves(args), strict=True) if s.type is not None]
    inputs = [
        x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=s.type.dtype.torch)
        for s, x in zip([s for s in program.inputs if s.type is not None], leaves, strict=True)
    ]
    with program.context, torch.no_grad():
        got = interp.run(program.module, inputs, program.weights)
    out: list[Any] = []
    for o in program.outputs:
        value = o.constant if o.index is None else got[o.index]
        out.append(value.item() if o.scalar else value)
    return out


def check(fn: Any, *sets: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5, shapes: Any = None) -> Program:
    """Exports with the first inputs; all sets must give what eager gives."""
    program = import_fn(fn, sets[0], shapes)
    with program.context:
        assert program.module.operation.verify()
    for args in sets:
        with torch.no_grad():
            want = tree_leaves(fn(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args]))
        got = run(program, tuple(args))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            if isinstance(w, torch.Tensor):
                assert g.shape == w.shape and g.dtype == w.dtype, f"{g.dtype} {g.shape} for {w.dtype} {w.shape}"
                torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)
            else:
                assert g == w
    return program
