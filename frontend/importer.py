"""Imports a torch.export.ExportedProgram into a dhlo module."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

import dhlo.frontend.aten  # noqa: F401  (fills the table of lowerings)
from dhlo import mlir
from dhlo.errors import CompileError, InternalError, UnsupportedError
from dhlo.frontend.decompose import Decompositions
from dhlo.frontend.dims import Dims
from dhlo.frontend.functionalize import functional_form
from dhlo.frontend.graph import Importer
from dhlo.frontend.guards import input_names, input_values, only_two, read_guards
from dhlo.frontend.locations import source_line
from dhlo.frontend.program import Program
from dhlo.frontend.registry import COMPLEX, HIGHER_ORDER, LOWERINGS, find
from dhlo.frontend.scalars import SCALAR_FUNCTIONS

__all__ = ["import_program", "unknown_ops"]

_MAX_ROUNDS = 8
_VMAP = "torch._functorch.predispatch"


def import_program(ep: torch.export.ExportedProgram) -> Program:
    """The program as a dhlo module under its own symbols, with one name for every size that must be equal.

    Raises UnsupportedError naming every unknown operator, CompileError where the program contradicts itself.
    """
    decompositions = Decompositions()
    _check_constants(ep)
    if any(getattr(n.target, "__module__", "") == _VMAP for n in ep.graph.nodes):
        ep = ep.run_decompositions({})  # the calls of torch.vmap say nothing one by one: torch works out what they make of others
    unknown = list(unknown_ops(ep.graph_module, decompositions))
    if unknown:
        raise UnsupportedError(unknown)
    with mlir.context() as context:
        values = input_values(ep)
        names = input_names(ep, values)
        dims = Dims()
        _declare(ep, dims)
        guards = read_guards(ep, names, values)
        guards = [(r, text) for r, text in guards if not only_two(r, ep.range_constraints, values)]
        for relation, _ in guards:
            dims.learn(relation)
        for _ in range(_MAX_ROUNDS):
            dims.changed, dims.unsolved, dims.asserted = False, [], set()
            before = dict(dims.ranges)
            program = Importer(ep, dims, names, guards, context, decompositions).run()
            if not dims.changed and before == dims.ranges:
                break
        if not program.module.operation.verify():
            raise InternalError("the imported module does not verify")
    return program


def unknown_ops(gm: Any, decompositions: Decompositions) -> Any:
    """(op, source line) of every call that no lowering exists for, also in branches, bodies and decompositions."""
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        t = node.target
        known = (
            find(t) is not None
            or t in SCALAR_FUNCTIONS
            or t is operator.getitem
            or t in HIGHER_ORDER
            or t in COMPLEX
            or functional_form(t) in LOWERINGS
            or functional_form(t) in COMPLEX
        )
        if known:
            continue
        program = decompositions.of(node)
        if program is None:
            yield str(t), source_line(node)
        else:
            yield from unknown_ops(program.graph_module, decompositions)
    for child in gm.children():
        if isinstance(child, torch.fx.GraphModule):
            yield from unknown_ops(child, decompositions)


def _check_constants(ep: torch.export.ExportedProgram) -> None:
    """Raises CompileError where torch.export took a tensor of its trace for a constant, so that there is no data to be had."""
    for name, x in (*ep.state_dict.items(), *ep.constants.items()):
        if isinstance(x, FakeTensor) or (isinstance(x, torch.Tensor) and is_functorch_wrapped_tensor(x)):
            raise CompileError(
                f"constant '{name}' of the exported program has no data: it is a tensor that torch.export lost track of",
                hint="gradients inside a program can cause this: let torch.export.experimental._export_forward_backward write them",
            )


def _declare(ep: Any, dims: Dims) -> None:
    """Ranges of the program's symbols. A lower bound of 2 is what an example of that size leaves behind: it means
    nothing."""
    for s, r in ep.range_constraints.items():
        name = str(s)
        if not isinstance(s, sympy.Symbol) or name.startswith(("u", "z", "f")):
            continue
        lo = int(r.lower) if r.lower.is_Integer else 0
        hi = int(r.upper) if r.upper.is_Integer else None
        dims.declare(name, 0 if lo == 2 else max(lo, 0), hi)
