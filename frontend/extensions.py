"""What users add to the compiler: decompositions, and operators that are functions in C. (For lowerings see registry.py.)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sympy
import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from dhlo.errors import CompileError, UnsupportedError
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.locations import source_line
from dhlo.frontend.registry import LOWERINGS
from dhlo.ir.ops.extern import Extern, check_name
from dhlo.ir.symbols import show
from dhlo.ir.types import TensorType, from_torch_dtype

__all__ = ["register_c_op", "register_decomposition"]

F = TypeVar("F", bound=Callable[..., Any])
Shapes = Callable[..., Sequence[tuple[torch.dtype, Sequence[Any]]]]


def register_decomposition(op: Any) -> Callable[[F], F]:
    """Says how an operator is computed, as a function of tensors in PyTorch: `f(*args, **kwargs)` like the operator. It is traced
    with the sizes of each program that uses the operator, symbolic ones included. `op` is an OpOverload such as
    torch.ops.mylib.myop.default, or a packet (all its overloads)."""

    def register(f: F) -> F:
        for overload in _overloads(op):
            LOWERINGS[overload] = _decomposed(f)
        return f

    return register


def _overloads(op: Any) -> list[Any]:
    return [getattr(op, name) for name in op.overloads()] if hasattr(op, "overloads") else [op]


def _decomposed(f: Callable[..., Any]) -> Callable[..., Any]:
    def lower(b: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        node = b.node
        examples, spec = pytree.tree_flatten(torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"]))
        values = pytree.tree_leaves((args, kwargs), is_leaf=lambda x: b.is_tensor(x) or isinstance(x, sympy.Basic))
        traced = [k for k, x in enumerate(examples) if isinstance(x, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)]

        def flat(*inputs: Any) -> Any:
            leaves = list(examples)
            for k, x in zip(traced, inputs, strict=True):
                leaves[k] = x
            inner_args, inner_kwargs = pytree.tree_unflatten(leaves, spec)
            return f(*inner_args, **inner_kwargs)

        inputs = [examples[k] for k in traced]
        mode = detect_fake_mode(inputs)
        if mode is None:
            raise CompileError(f"the decomposition of {node.target} has no tensors to trace with")
        with mode, torch.no_grad():
            graph = make_fx(flat)(*inputs)
        from dhlo.frontend.importer import unknown_ops  # which imports this package

        unknown = list(unknown_ops(graph, b.importer.decompositions))
        if unknown:
            line = source_line(node)
            raise UnsupportedError([(f"{name} in the decomposition of {node.target}", line) for name, _ in unknown])
        return b.importer.subgraph(graph, [values[k] for k in traced])

    return lower


def register_c_op(op: Any, symbol: str, library: str | Path | None = None, *, shapes: Shapes | None = None) -> None:
    """Says that an operator is the function `symbol` in C, of the type dhlo_c_op in dhlo/abi.h.

    Args:
        op: an OpOverload or packet without side effects. Its tensors, in the order of the schema, are the function's inputs; its
            numbers (int, float, bool, SymInt), in their order, the function's numbers.
        symbol: the function's name.
        library: where it is. A shared library is loaded by this process and needed by model files; an object file or static
            library becomes part of model files. None: the function is looked up in the process that runs the model.
        shapes: the results' dtypes and sizes, from the operator's arguments with tensors as TensorType (`.dtype`, `.shape` of ints
            and sympy expressions). By default what the operator's fake implementation said when the program was exported.

    Raises CompileError where `symbol` is no name in C.
    """
    check_name(symbol)
    for overload in _overloads(op):
        LOWERINGS[overload] = _c_call(symbol, "" if library is None else str(Path(library).resolve()), shapes)


def _c_call(symbol: str, library: str, shapes: Shapes | None) -> Callable[..., Any]:
    def lower(b: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        schema = b.node.target._schema
        bound = [
            args[k] if k < len(args) else kwargs.get(a.name, a.default_value if a.has_default_value() else None)
            for k, a in enumerate(schema.arguments)
        ]
        tensors: list[Value] = []
        numbers: list[str] = []
        for x in pytree.tree_leaves(bound, is_leaf=lambda x: b.is_tensor(x) or isinstance(x, sympy.Basic)):
            if b.is_tensor(x):
                tensors.append(x)
            elif isinstance(x, int | float | sympy.Expr):
                numbers.append(repr(x) if isinstance(x, float) else show(b.size(int(x) if isinstance(x, bool) else x)))
            elif x is not None:
                raise CompileError(f"{schema.name} in C takes tensors and numbers, not {x!r}")
        if shapes is None:
            made = pytree.tree_leaves(b.node.meta["val"])
            types = [TensorType.of(from_torch_dtype(v.dtype), [b.dims.expr(s) for s in v.shape]) for v in made]
        else:
            given = [b.type(x) if b.is_tensor(x) else x for x in bound]
            types = [TensorType.of(from_torch_dtype(d), sizes) for d, sizes in shapes(*given)]
        out = b.op(Extern, tensors, {"symbol": symbol, "library": library, "numbers": numbers}, types)
        return out

    return lower
