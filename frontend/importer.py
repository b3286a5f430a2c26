"""Imports a torch.export.ExportedProgram into a dhlo module."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._higher_order_ops.flat_apply import flat_apply
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import dhlo.frontend.aten  # noqa: F401  (fills the table of lowerings)
from dhlo.errors import CompileError, InternalError, UnsupportedError
from dhlo.frontend.autocast import lowered_dtype
from dhlo.frontend.bounds import bounded_sizes, conditions_of, hints_of
from dhlo.frontend.compat import higher_order, inner_tensor
from dhlo.frontend.decompose import Decompositions, all_nodes
from dhlo.frontend.dims import Contradiction, Dims
from dhlo.frontend.functionalize import functional_form, out_form
from dhlo.frontend.graph import Importer
from dhlo.frontend.guards import dim_names, input_names, input_values, only_two, read_guards
from dhlo.frontend.locations import source_line
from dhlo.frontend.program import Program
from dhlo.frontend.registry import COMPLEX, HIGHER_ORDER, INLINED, LOWERINGS, REFUSED, find
from dhlo.frontend.scalars import SCALAR_FUNCTIONS
from dhlo.frontend.state import parts_of, state_names
from dhlo.ir.context import context
from dhlo.ir.function import set_hints
from dhlo.ir.symbols import SYMBOL_NAME, symbols_of
from dhlo.options import Range

__all__ = ["import_program", "unknown_ops"]

_MAX_ROUNDS = 8
_VMAP = "torch._functorch.predispatch"


def import_program(ep: torch.export.ExportedProgram, shapes: Mapping[str, Range] | None = None) -> Program:
    """The program as a dhlo module under its own symbols, with one name for every size that must be equal, and within the bounds
    that `shapes` gives for sizes that it has (see `Options.shapes`).

    Raises UnsupportedError naming every unknown operator, CompileError where the program contradicts itself, or the bounds.
    """
    decompositions = Decompositions()
    _check_tensors(ep)
    if any(n.target is flat_apply or getattr(n.target, "__module__", "") == _VMAP for n in all_nodes(ep.graph_module)):
        # Calls of torch.vmap say nothing one by one, nor do indices of flex_attention: torch works out what they make of others.
        try:
            ep = ep.run_decompositions({})
        except Exception as e:  # whatever torch raises, of a graph in a branch
            raise CompileError(
                f"torch can't work out what torch.vmap or flex_attention make of others: {e}",
                hint="take them out of branches and loops (torch.cond, scan)",
            ) from e
    unknown = list(unknown_ops(ep.graph_module, decompositions))
    if unknown:
        raise UnsupportedError(unknown)
    with context() as ctx:
        values = input_values(ep)
        names = input_names(ep, values)
        dims = Dims()
        _declare(ep, dims)
        guards = read_guards(ep, names, values)
        guards = [r for r in guards if not only_two(r, ep.range_constraints, values)]
        sizes: dict[str, sympy.Expr] = {}
        try:
            for relation in guards:
                dims.learn(relation)
            sizes = bounded_sizes(names, values, shapes or {})
            bounds = conditions_of(sizes, shapes or {}, dims)
            for relation in (*bounds, *guards):
                dims.learn(relation)
                dims.promise(relation)
            if sizes:
                dims.check([*bounds, *guards])
            for _ in range(_MAX_ROUNDS):
                dims.changed, dims.unsolved, dims.asserted = False, [], set()
                dims.forget_shorter()
                before = dict(dims.ranges)
                program = Importer(ep, dims, names, [*guards, *bounds], ctx, decompositions).run()
                if not dims.changed and before == dims.ranges:
                    break
        except Contradiction as e:
            raise _in_user_names(e, sizes, dim_names(names, values), dims) from None
        program.bounded = frozenset(key for key, e in sizes.items() if not e.is_number)
        set_hints(program.module, hints_of(sizes, shapes or {}, dims, program.user_names))
        if not program.module.operation.verify():
            raise InternalError("the imported module does not verify")
    program.parameters = {name: weight for name, weight in state_names(ep).items() if name in ep.state_dict}
    return program


def _in_user_names(e: Contradiction, bounded: Mapping[str, sympy.Expr], names: Mapping[Any, str], dims: Dims) -> CompileError:
    """The error in the user's names of sizes, of `Options.shapes` (`bounded`) or the program (`names`), and with the bounds that
    have to do with it."""
    keys = {key: dims.expr(size) for key, size in bounded.items()}
    spelled = {str(size): key for found in (keys, bounded) for key, size in found.items()}
    spelled |= {str(x): name for size, name in names.items() for x in (size, dims.expr(size))}
    what = SYMBOL_NAME.sub(lambda m: spelled.get(m[0], m[0]), e.what)
    concerned = {m[0] for m in SYMBOL_NAME.finditer(e.what)}
    about = [f"'{key}'" for key, size in bounded.items() if (symbols_of(size) | symbols_of(keys[key])) & concerned]
    if about:
        what = f"shapes: the bounds of {', '.join(about)} contradict each other or the program: {what}"
    return CompileError(what, where=e.where, hint=e.hint)


def unknown_ops(gm: Any, decompositions: Decompositions, autocast: torch.dtype | None = None) -> Any:
    """(op, source line) of every call that no lowering exists for, also in branches, bodies and decompositions. `autocast`: the
    graph runs inside torch.autocast to that dtype."""
    regions: list[torch.dtype | None] = []
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        t: Any = node.target
        if t is _enter_autocast:
            regions.append(autocast)
            autocast = _autocast_of(node.args, autocast)
            continue
        if t is _exit_autocast:
            autocast = regions.pop()
            continue
        made = pytree.tree_leaves(node.meta.get("val"))
        kind = next((k for v in made if isinstance(v, torch.Tensor) and (k := _unusual(v))), None)
        if kind is not None and t is not inner_tensor:
            yield f"{t}, which makes a {kind}", source_line(node)
            continue
        inner = _autocast_of(node.args, autocast) if t is higher_order.wrap_with_autocast else autocast
        for a in pytree.tree_leaves((node.args, node.kwargs)):
            body = operator.attrgetter(str(a.target))(gm) if isinstance(a, torch.fx.Node) and a.op == "get_attr" else None
            if isinstance(body, torch.fx.GraphModule):
                yield from unknown_ops(body, decompositions, inner)
        try:
            whole = not decompositions.cast_inside(node, autocast)
        except CompileError as e:
            yield str(e), source_line(node)
            continue
        if whole and _known(t):
            continue
        program = decompositions.of(node, autocast)
        if str(t) in REFUSED:
            yield f"{t} ({REFUSED[str(t)]})", source_line(node)
        elif program is None:
            yield str(t) if whole else f"{t} inside torch.autocast", source_line(node)
        else:
            yield from unknown_ops(program.graph_module, decompositions)


def _autocast_of(args: Any, outer: torch.dtype | None) -> torch.dtype | None:
    """What operators lower to in a region with these arguments of torch.autocast, inside another."""
    device, dtype, enabled, cache, *_ = args
    return lowered_dtype(device, dtype, enabled, cache, outer)


def _known(t: Any) -> bool:
    """Is there a lowering?"""
    return (
        find(t) is not None
        or t in SCALAR_FUNCTIONS
        or t is operator.getitem
        or t is inner_tensor
        or t in HIGHER_ORDER
        or t in INLINED
        or t in COMPLEX
        or functional_form(t) in LOWERINGS
        or ((form := out_form(t)) is not None and find(form[0]) is not None)
        or functional_form(t) in COMPLEX
    )


def _check_tensors(ep: torch.export.ExportedProgram) -> None:
    """Raises CompileError for inputs and constants that aren't plain tensors on the CPU, and where torch.export took a tensor of
    its trace for a constant, so that there is no data to be had."""
    for name, value in zip(input_names(ep, input_values(ep)), input_values(ep), strict=True):
        if isinstance(value, torch.Tensor) and (kind := _unusual(value)):
            raise CompileError(f"input '{name}' is a {kind}", hint="export the program with plain tensors on the CPU")
    for name, x in (*ep.state_dict.items(), *ep.constants.items()):
        if isinstance(x, FakeTensor) or (isinstance(x, torch.Tensor) and is_functorch_wrapped_tensor(x)):
            raise CompileError(
                f"constant '{name}' of the exported program has no data: it is a tensor that torch.export lost track of",
                hint="gradients inside a program can cause this: let torch.export.experimental._export_forward_backward write them",
            )
        kinds = [kind for p in parts_of(x) if (kind := _unusual(p))] if isinstance(x, torch.Tensor) else []
        if kinds:
            raise CompileError(f"constant '{name}' is a {kinds[0]}", hint="export the module with plain tensors on the CPU")


def _unusual(x: torch.Tensor) -> str | None:
    """What a tensor is that isn't a plain one on the CPU."""
    if x.is_nested:
        return "nested tensor"
    if x.layout != torch.strided:
        return f"tensor of layout {str(x.layout).removeprefix('torch.')}"
    if x.device.type != "cpu":
        return f"tensor on the device '{x.device}'"
    if x.is_quantized:
        return f"quantised tensor ({x.dtype})"
    if is_traceable_wrapper_subclass(x):
        return f"tensor made of others ({type(x).__name__})"
    return None


def _declare(ep: Any, dims: Dims) -> None:
    """Ranges of the program's symbols. A lower bound of 2 is what an example of that size leaves behind: it means
    nothing. Numbers that may be negative (torch.export makes none, TorchDynamo does) are known by symbols of their own kind."""
    for s, r in ep.range_constraints.items():
        name = str(s)
        if not isinstance(s, sympy.Symbol) or name.startswith(("u", "z", "f")):
            continue
        lo = int(r.lower) if r.lower.is_Integer else 0
        hi = int(r.upper) if r.upper.is_Integer else None
        if r.lower < 0:
            dims.declare_signed(name, int(r.lower) if r.lower.is_Integer else None, hi)
            continue
        dims.declare(name, 0 if lo == 2 else max(lo, 0), hi)
