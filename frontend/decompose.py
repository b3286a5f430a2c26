"""Operators without a lowering of their own, through PyTorch's decompositions.

A decomposition is traced at the node's example sizes, which may decide branches. What such decisions took for granted comes back as
guards of the trace; they become conditions of the program, so that a call at other sizes is right or refused, never wrong.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import sympy
import torch
from torch.export.graph_signature import OutputKind
from torch.fx.experimental import _config

from dhlo.errors import CompileError
from dhlo.frontend.autocast import acts_inside, conversion, policy
from dhlo.frontend.functionalize import functional_form
from dhlo.frontend.guards import input_values
from dhlo.frontend.linear_algebra import LINEAR_ALGEBRA

__all__ = ["Decompositions", "all_nodes", "decompositions_of"]

_MAX_DEPTH = 12
_DYNAMIC = torch.export.Dim.AUTO


class Decompositions:
    """Traced decompositions of one program's nodes, by node."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._cast: dict[Any, bool] = {}
        self._depth: dict[Any, int] = {}  # of nodes inside decompositions

    def of(self, node: Any, autocast: torch.dtype | None = None) -> Any | None:
        """An exported program that computes the node from its input nodes (`node.all_input_nodes`), or None. Of an operator in
        place, it is its functional twin that is computed. Inside torch.autocast, to that dtype, what autocast converts of the
        arguments is to be converted before; what it converts inside, the program converts."""
        if (node, autocast) not in self._known:
            depth = self._depth.get(node, 0)
            program = _trace(node, autocast) if depth < _MAX_DEPTH else None
            self._known[node, autocast] = program
            for n in all_nodes(program.graph_module) if program is not None else ():
                self._depth[n] = depth + 1
                for key in ("stack_trace", "nn_module_stack"):  # what users know is the node's own place
                    n.meta[key] = node.meta.get(key)
        return self._known[node, autocast]

    def cast_inside(self, node: Any, autocast: torch.dtype | None) -> bool:
        """Does torch.autocast to a dtype act inside the node's operator, so that only its decomposition is right?"""
        if autocast is None or policy(node.target) is not None:
            return False
        if (node, autocast) not in self._cast:
            values, sizes = [n.meta.get("val") for n in node.all_input_nodes], _Sizes()
            try:
                acts = acts_inside(node.target, lambda: _arguments(node, [sizes.example(v, unknown=3) for v in values]), autocast)
            except _NoExample:
                raise CompileError(f"{node.target} of sizes that only a run can tell, inside torch.autocast") from None
            self._cast[node, autocast] = acts
        return self._cast[node, autocast]


def all_nodes(gm: Any) -> Iterator[Any]:
    """The nodes of a graph and of the graphs in it."""
    for child in gm.modules():
        if isinstance(child, torch.fx.GraphModule):
            yield from child.graph.nodes


def _arguments(node: Any, values: Sequence[Any]) -> Any:
    """(args, kwargs) of a node's call, of values of its input nodes."""
    return torch.fx.map_arg((node.args, node.kwargs), dict(zip(node.all_input_nodes, values, strict=True)).__getitem__)


class _Call(torch.nn.Module):
    """A node's call as a function of its input nodes, inside torch.autocast to a dtype if one is given."""

    def __init__(self, f: Callable[..., Any], node: Any, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.call = (f, node, autocast)

    def forward(self, *values: Any) -> Any:
        f, node, autocast = self.call
        args, kwargs = _arguments(node, values)
        if autocast is None:
            return f(*args, **kwargs)
        with torch.autocast("cpu", autocast):
            return f(*args, **kwargs)


def decompositions_of(op: Any) -> list[Callable[..., Any]]:
    """PyTorch's decompositions of an operator: the one in Python, and what its own kernel calls, as far as there are such."""
    if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in op.tags:
        return []
    if any(a.is_out for a in op._schema.arguments):  # a trace would lose what becomes of an argument that is resized
        return []
    if op in LINEAR_ALGEBRA:
        return [LINEAR_ALGEBRA[op]]
    table: dict[Any, Callable[..., Any]] = torch._decomp.decomposition_table
    known = [table[op]] if op in table else []
    if op.namespace not in ("aten", "prims"):
        keys = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.CompositeExplicitAutograd
        return [*known, *(_kernel(op, key) for key in keys if _has_kernel(op, key))]
    if not op._can_decompose():
        return known
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if not _has_kernel(op, key):
        return [*known, op.decompose]
    return [*known, _kernel(op, key)]  # not op.decompose, which torch.export overrides while it traces


def _has_kernel(op: Any, key: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def _kernel(op: Any, key: Any) -> Callable[..., Any]:
    """What PyTorch itself calls for the operator; of other libraries, such kernels are functions in Python as a rule."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # else torch.export's mode calls the operator as such
            return op._op_dk(key, *args, **kwargs)

    return kernel


def _trace(node: Any, autocast: torch.dtype | None) -> Any | None:
    op = functional_form(node.target) or node.target
    functions = decompositions_of(op)
    values = [n.meta.get("val") for n in node.all_input_nodes]
    if not functions or not all(isinstance(v, torch.Tensor | torch.SymInt | int | float | bool) for v in values):
        return None
    sizes = _Sizes()
    dtypes = [v.dtype for v in values if isinstance(v, torch.Tensor)]
    converted = conversion(node.target, autocast, dtypes) if autocast is not None else None
    inside = autocast if converted is None else None
    try:
        examples = tuple(sizes.example(v, converted) for v in values)
    except _NoExample:
        return None
    dynamic = (tuple(sizes.dynamic(v) for v in values),)
    for f, oblivious in product(functions, (True, False)):  # first without taking for granted that sizes are at least 2
        try:
            with _quiet(), torch.no_grad(), _config.patch(backed_size_oblivious=oblivious):  # type: ignore[attr-defined]
                program = torch.export.export(_Call(f, node, inside), examples, dynamic_shapes=dynamic)
        except Exception:  # whatever a decomposition may raise: it doesn't apply here
            continue
        if _applies(program, node, values):
            return program
    return None


def _applies(program: Any, node: Any, values: list[Any]) -> bool:
    """Was the decomposition traced for all sizes, into other operators that change none of their inputs?"""
    if any(n.target in (node.target, functional_form(node.target)) for n in all_nodes(program.graph_module)):
        return False
    if any(s.kind != OutputKind.USER_OUTPUT for s in program.graph_signature.output_specs):
        return False
    return all(
        isinstance(s, torch.SymInt)
        for v, traced in zip(values, input_values(program), strict=True)
        for was, s in zip(*(x.shape if isinstance(x, torch.Tensor) else [x] for x in (v, traced)), strict=True)
        if isinstance(was, torch.SymInt)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export reports attempts that fail."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


class _NoExample(Exception):
    """A size that only a run can tell."""


class _Sizes:
    """Example sizes, with symbols whose example is 0 or 1 raised to sizes that show nothing special."""

    def __init__(self) -> None:
        self.values: dict[Any, sympy.Integer] = {}

    def size(self, s: Any, unknown: int | None = None) -> int:
        if not isinstance(s, torch.SymInt):
            return int(s)
        expr = s.node.expr
        for x in expr.free_symbols:
            if x not in self.values:
                hint = s.node.shape_env.backed_var_to_val.get(x)
                hint = unknown if hint is None else hint
                if hint is None:
                    raise _NoExample
                self.values[x] = sympy.Integer(max(int(hint), 2))
        value = sympy.sympify(expr).xreplace(self.values)
        if not value.is_Integer:
            raise _NoExample
        return int(value)

    def example(self, v: Any, converted: Callable[[torch.dtype], torch.dtype] | None = None, unknown: int | None = None) -> Any:
        """Zeros or a number like `v`, of a converted dtype; sizes that only a run can tell are `unknown`."""
        if isinstance(v, torch.Tensor):
            dtype = v.dtype if converted is None else converted(v.dtype)
            return torch.zeros([self.size(s, unknown) for s in v.shape], dtype=dtype)
        if isinstance(v, list | tuple):
            return [self.example(x, converted, unknown) for x in v]
        return self.size(v, unknown) if isinstance(v, torch.SymInt) else v

    def dynamic(self, v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return {d: _DYNAMIC for d, s in enumerate(v.shape) if isinstance(s, torch.SymInt)}
        return _DYNAMIC if isinstance(v, torch.SymInt) else None
