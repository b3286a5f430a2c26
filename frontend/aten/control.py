"""Sizes, run-time values, assertions and operators over graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.wrap import tag_activation_checkpoint, wrap_activation_checkpoint
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from dhlo.errors import CompileError
from dhlo.frontend.aten.indexing import scatter
from dhlo.frontend.autocast import lowered_dtype
from dhlo.frontend.builder import Complex, OpBuilder, Operand, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.compat import higher_order as H
from dhlo.frontend.dims import static_value
from dhlo.frontend.locations import location
from dhlo.frontend.promotion import is_boolean
from dhlo.frontend.registry import REFUSED, find, higher_order, inlines, lowers
from dhlo.ir.dialect import build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import control
from dhlo.ir.ops.elementwise import Eq, Lt
from dhlo.ir.symbols import as_expr
from dhlo.ir.types import TensorType, from_mlir, from_torch_dtype


# ---------------------------------------------------------------------------------------------------- sizes and values
@lowers(A.sym_size.int)
def _sym_size(b: OpBuilder, x: Value, dim: int) -> Any:
    return static_value(b.shape(x)[b.dim(x, dim)])


@lowers(A.sym_numel.default)
def _sym_numel(b: OpBuilder, x: Value) -> Any:
    return static_value(b.type(x).numel)


@lowers(A.item.default, A._local_scalar_dense.default)
def _item(b: OpBuilder, x: Value) -> Any:
    return b.importer.item(x)


@lowers(A._assert_scalar.default)
def _assert_scalar(b: OpBuilder, cond: Any, message: str = "assertion failed") -> None:
    cond = as_expr(cond)
    own = not message.startswith("Runtime assertion failed for expression")  # torch's, over names that nobody has given
    text = message if own else f"the exported program requires {control.CONDITION}"
    b.require(cond if is_boolean(cond) else sympy.Ne(cond, 0), text)


@lowers(A._assert_async.msg, A._assert_async.default, A._functional_assert_async.msg)
def _assert_async(b: OpBuilder, x: Value, message: str = "assertion failed", *_: Any) -> None:
    b.op(control.AssertTensor, [b.convert(x, "i1")], {"message": message})


@lowers(A._assert_tensor_metadata.default)
def _assert_tensor_metadata(b: OpBuilder, x: Value, size: Any = None, stride: Any = None, dtype: Any = None, **_: Any) -> None:
    own = b.dtype(x).torch
    if dtype is not None and dtype != own:
        raise CompileError(f"the exported program takes for granted that this is {dtype}, and it is {own}")
    for n, wanted in zip(b.shape(x), size or (), strict=False):
        b.require(sympy.Eq(n, as_expr(wanted)), f"the exported program takes for granted that {control.CONDITION}")


@lowers(A._linalg_check_errors.default)
def _linalg_check_errors(b: OpBuilder, info: Value, name: str, *, is_matrix: bool) -> None:
    fine = b.reduce(b.op(Eq, [info, b.full(b.shape(info), 0, b.dtype(info))]), "all", list(range(b.rank(info))))
    b.op(control.AssertTensor, [fine], {"message": f"{name}: a matrix is singular, or not positive definite"})


@lowers(A.sym_constrain_range.default, A.sym_constrain_range_for_size.default)
def _constrain_range(b: OpBuilder, size: Any, *, min: int | None = None, max: int | None = None) -> None:
    e = as_expr(size)
    b.require(sympy.Ge(e, 0 if min is None else min), "a run-time size is out of range")
    if max is not None:
        b.require(sympy.Le(e, max), "a run-time size is out of range")


@lowers(torch._check_is_size)
def _check_is_size(b: OpBuilder, size: Any, *_: Any, **kwargs: Any) -> None:
    b.require(sympy.Ge(as_expr(size), 0), "a run-time size is negative")


# ---------------------------------------------------------------------------------------------------- graphs as
# arguments
@inlines(H.wrap_with_set_grad_enabled)
def _with_gradients(b: OpBuilder, enabled: bool, body: Any, *args: Any) -> Any:
    return b.importer.inline(body, args)


@inlines(H.wrap_with_autocast)
def _with_autocast(b: OpBuilder, device: str, dtype: Any, enabled: bool, cache: bool | None, body: Any, *args: Any) -> Any:
    outer = _enter(b, device, dtype, enabled, cache)
    result = b.importer.inline(body, args)
    _exit(b, outer)
    return result


@inlines(_enter_autocast)
def _enter(b: OpBuilder, device: str, dtype: Any, enabled: bool, cache: bool | None) -> torch.dtype | None:
    outer: torch.dtype | None = b.importer.autocast
    b.importer.autocast = lowered_dtype(device, dtype, enabled, cache, outer)
    return outer


@inlines(_exit_autocast)
def _exit(b: OpBuilder, outer: torch.dtype | None) -> None:
    b.importer.autocast = outer


@inlines(H.wrap, tag_activation_checkpoint, wrap_activation_checkpoint)
def _wrapped(b: OpBuilder, body: Any, *args: Any, **_: Any) -> Any:
    return b.importer.inline(body, args)  # keywords say what is kept for gradients


@inlines(H.invoke_subgraph)
def _invoke_subgraph(b: OpBuilder, body: Any, _identifier: str, *args: Any) -> Any:
    return b.importer.inline(body, args)


@inlines(strict_mode)
def _strict_mode(b: OpBuilder, body: Any, args: Sequence[Any]) -> Any:
    return b.importer.inline(body, args)


@inlines(hints_wrapper)
def _hints(b: OpBuilder, body: Any, args: Sequence[Any], kwargs: Any, **_: Any) -> Any:
    if kwargs:
        raise CompileError("hints_wrapper with keyword arguments can't be compiled", hint="pass them by position")
    return b.importer.inline(body, args)


_FUNCTIONAL = "compile the program as torch.export.export gives it, before run_decompositions"
REFUSED.update(dict.fromkeys(["auto_functionalized", "auto_functionalized_v2"], _FUNCTIONAL))
REFUSED.update(
    dict.fromkeys(
        ["triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation", "inline_asm_elementwise"],
        "write the kernel with PyTorch's operators",
    )
)
REFUSED.update(
    dict.fromkeys(
        ["run_with_rng_state", "run_and_save_rng_state", "graphsafe_run_with_rng_state", "run_dtensor_rng_op"],
        "leave the state of random numbers to the session: compiled.manual_seed",
    )
)
REFUSED.update(dict.fromkeys(["with_effects", "print", "call_torchbind", "register_hook"], "take side effects out of the program"))
REFUSED.update(
    flex_attention_backward="write it with torch.nn.functional.scaled_dot_product_attention and a mask",
    associative_scan="write it with torch.cumsum, torch.cumprod or torch._higher_order_ops.scan",
    while_loop_stack_output="write it with torch._higher_order_ops.scan",
    switch="write it with torch.cond",
    flex_gemm="write the product and what follows it with PyTorch's operators",
)


@higher_order(H.cond)
def _cond(b: OpBuilder, pred: Operand, on_true: Any, on_false: Any, operands: Any = ()) -> Any:
    if not b.is_tensor(pred):
        known = b.dims.holds(as_expr(pred))
        if known is not None:
            return b.importer.subgraph(on_true if known else on_false, operands)
        pred = b.importer.tensor_of(pred)
    bodies, values = [], []
    for graph in (on_true, on_false):
        holder = ir.Operation.create("builtin.module", regions=1, ip=False)  # the branch is built here and then moved
        block = ir.Block.create_at_start(holder.regions[0], [])
        with ir.InsertionPoint(block):
            result, pairs = _apart(b.importer.subgraph(graph, operands))
            numbers = [not b.is_tensor(v) for v in result]
            values.append([b.importer.tensor_of(v) if number else v for v, number in zip(result, numbers, strict=True)])
        bodies.append((holder, block))
    types = [_joined(b, x, y) for x, y in zip(*values, strict=True)]
    with location(b.node):
        op = build(control.Cond, [b.convert(pred, "i1")], results=types, regions=2)
    for region, (_holder, block), results in zip(op.operation.regions, bodies, values, strict=True):
        block.append_to(region)
        with ir.InsertionPoint(block):
            build(control.Yield, results)
    return _together(_numbered(b, list(op.results), numbers), pairs)


def _apart(values: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Values with both parts of complex ones in their place, and which are complex."""
    pairs = [isinstance(v, Complex) for v in values]
    return [x for v in values for x in ((v.re, v.im) if isinstance(v, Complex) else (v,))], pairs


def _together(values: Sequence[Any], pairs: Sequence[bool]) -> list[Any]:
    """The values that were taken apart."""
    rest = iter(values)
    return [Complex(next(rest), next(rest)) if pair else next(rest) for pair in pairs]


def _numbered(b: OpBuilder, values: Sequence[Value], numbers: Sequence[bool]) -> list[Any]:
    """Values of which some stand for Python numbers, as those."""
    return [b.importer.item(v, fresh=True) if number else v for v, number in zip(values, numbers, strict=True)]


def _joined(b: OpBuilder, x: Value, y: Value) -> TensorType:
    """The type that both branches give; sizes that differ become a symbol of the result."""
    tx, ty = from_mlir(x), from_mlir(y)
    shape = []
    for i, (p, q) in enumerate(zip(tx.shape, ty.shape, strict=True)):
        if b.dims.equal(p, q):
            shape.append(p)
        else:
            name = f"{b.importer.symbol_name()}_{i}"
            b.dims.count(name)
            shape.append(b.dims.of(name))
    return TensorType(tx.dtype, tuple(shape))


@higher_order(out_dtype)
def _out_dtype(b: OpBuilder, op: Any, dtype: torch.dtype, *args: Any) -> Value:
    """An operator on arguments that are as wide as its result shall be."""
    lowering = find(op)
    if lowering is None:
        raise CompileError(
            f"out_dtype of {op} can't be compiled", hint="convert the arguments to the wider dtype before the operator"
        )
    wide = b.result_type(*(a for a in args if b.is_tensor(a)), b.full([1], 0, dtype))
    return b.convert(lowering(b, *(b.convert(a, wide) if b.is_tensor(a) else a for a in args)), dtype)


# ---------------------------------------------------------------------------------------------------- loops
def loop(
    b: OpBuilder,
    init: Sequence[Value],
    cond: Callable[[list[Value]], Value],
    body: Callable[[list[Value]], list[Value]],
) -> list[Value]:
    """A `while` op: `cond` and `body` build the regions on the carried values."""
    types = [from_mlir(v) for v in init]
    with location(b.node):
        op = build(control.While, init, results=types, regions=2)
    unknown = [ir.Location.unknown()] * len(types)
    for region, f in zip(op.operation.regions, (cond, body), strict=True):
        block = ir.Block.create_at_start(region, [t.mlir() for t in types], unknown)
        with ir.InsertionPoint(block):
            out = f(list(block.arguments))
            if b.is_tensor(out):
                values = [b.convert(out, "i1")]
            else:
                values = [_as(b, v, t) for v, t in zip(out, types, strict=True)]
            build(control.Yield, values)
    return list(op.results)


def _as(b: OpBuilder, v: Value, t: TensorType) -> Value:
    """A carried value in the type that it started with."""
    own = from_mlir(v)
    if own.dtype != t.dtype or own.rank != t.rank:
        raise CompileError(f"a loop turns {t} into {own}")
    for x, y in zip(own.shape, t.shape, strict=True):
        b.dims.same(x, y)
    return v if own == t else b.reshape(v, t.shape)


@higher_order(H.while_loop)
def _while_loop(b: OpBuilder, cond: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> list[Any]:
    carried, pairs = _apart(carried)
    numbers = [not b.is_tensor(v) for v in carried]
    tensor = b.importer.tensor_of

    def test(args: list[Value]) -> Value:
        out = b.importer.subgraph(cond, [*_together(_numbered(b, args, numbers), pairs), *additional])
        flag = out[0] if isinstance(out, list | tuple) else out
        return flag if b.is_tensor(flag) else tensor(flag)

    def step(args: list[Value]) -> list[Value]:
        out = b.importer.subgraph(body, [*_together(_numbered(b, args, numbers), pairs), *additional])
        return [v if b.is_tensor(v) else tensor(v) for v in _apart(out)[0]]

    init = [tensor(v) if number else v for v, number in zip(carried, numbers, strict=True)]
    return _together(_numbered(b, loop(b, init, test, step), numbers), pairs)


def _iterate(
    b: OpBuilder,
    init: Sequence[Value],
    xs: Sequence[Value],
    step: Callable[[list[Value], list[Value]], list[Value]],
    outputs: Sequence[TensorType],
) -> list[Value]:
    """Runs `step(carry, slices of xs)` along dim 0; it gives the next carry, then what becomes a slice of each
    stacked output."""
    n = b.shape(xs[0])[0]
    stacks = [b.full([n, *t.shape], 0, t.dtype) for t in outputs]
    k = len(init)

    def body(args: list[Value]) -> list[Value]:
        i, carry, done = args[0], args[1 : 1 + k], args[1 + k :]
        out = step(carry, [b.take(x, [i], [0], 0) for x in xs])
        rows = [scatter(b, s, [b.reshape(i, [1])], b.unsqueeze(y, 0), [0], 0, "set") for s, y in zip(done, out[k:], strict=True)]
        return [b.add(i, 1), *out[:k], *rows]

    values = loop(b, [b.full([], 0, "i64"), *init, *stacks], lambda args: b.ew(Lt, args[0], n), body)
    return values[1:]


def _output_types(b: OpBuilder, skip: int) -> tuple[list[TensorType], list[bool]]:
    """Types of one slice of the stacked outputs, from the node's example value, two for complex ones; which are complex."""
    values = b.node.meta["val"]
    values = values[skip:] if isinstance(values, list | tuple) else [values]
    types, pairs = [], [v.is_complex() for v in values]
    for v, pair in zip(values, pairs, strict=True):
        dtype = from_torch_dtype(v.dtype)
        types += [TensorType.of(dtype.register if pair else dtype, [b.dims.expr(s) for s in v.shape[1:]])] * (1 + pair)
    return types, pairs


@higher_order(H.scan)
def _scan(b: OpBuilder, combine: Any, init: Sequence[Value], xs: Sequence[Value], additional: Sequence[Any] = ()) -> list[Value]:
    (carried, pairs), (slices, of_slices), (types, stacked) = _apart(init), _apart(xs), _output_types(b, len(init))

    def step(carry: list[Value], rows: list[Value]) -> list[Value]:
        return _apart(b.importer.subgraph(combine, [*_together(carry, pairs), *_together(rows, of_slices), *additional]))[0]

    return _together(_iterate(b, carried, slices, step, types), pairs + stacked)


@higher_order(H.map_impl)
def _map(b: OpBuilder, f: Any, xs: Sequence[Value], additional: Sequence[Any] = ()) -> list[Value]:
    (slices, pairs), (types, stacked) = _apart(xs), _output_types(b, 0)

    def step(_: list[Value], rows: list[Value]) -> list[Value]:
        return _apart(b.importer.subgraph(f, [*_together(rows, pairs), *additional]))[0]

    return _together(_iterate(b, [], slices, step, types), stacked)
