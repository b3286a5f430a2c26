"""Functional collectives of torch.distributed: what the processes of a group do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from dhlo.errors import CompileError
from dhlo.frontend.builder import OpBuilder, Size, Value
from dhlo.frontend.locations import source_line
from dhlo.frontend.registry import lowers
from dhlo.ir.ops import collective
from dhlo.ir.symbols import as_expr

__all__: list[str] = []

_REDUCTIONS = {r: r for r in collective.REDUCTIONS}
_SIZE_ARGUMENTS = {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 2}  # where operators say how large their group is


def _names(*operators: str, autograd: bool = True) -> list[str]:
    """Operators by qualified name: not every build of PyTorch has them."""
    libraries = ("_c10d_functional", "_c10d_functional_autograd") if autograd else ("_c10d_functional",)
    return [f"{library}::{op}" for library in libraries for op in operators]


def _group_name(group: Any) -> str:
    return str(getattr(group, "group_name", group))


def _size_of(b: OpBuilder, name: str) -> int:
    """How many processes a group has: what other operators of the program say, or else the group of that name in this process; 0
    if neither is known."""
    for node in b.node.graph.nodes:
        operator, _, _ = getattr(getattr(node.target, "_schema", None), "name", "").partition("::")[2].partition("_coalesced")
        at = _SIZE_ARGUMENTS.get(operator)
        if at is not None and _group_name(node.args[-1]) == name:
            return int(node.args[at])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        resolve: Any = torch._C._distributed_c10d._resolve_process_group  # texts have types of their own
        try:
            return int(resolve(name).size())
        except (LookupError, RuntimeError, ValueError):
            return 0
    return 0


def _attrs(b: OpBuilder, group: Any, size: int | None = None) -> dict[str, Any]:
    name = _group_name(group)
    return {"group": name, "size": _size_of(b, name) if size is None else size}


def _reduction(b: OpBuilder, op: str, x: Value, attrs: dict[str, Any]) -> str:
    """The reduction that `op` rests on."""
    if op == "avg":
        if not b.dtype(x).is_float:
            raise CompileError(f"{b.node.target}: there is no average of {b.dtype(x).torch_name}", where=source_line(b.node))
        if attrs["size"] == 0:
            raise CompileError(
                f"{b.node.target}: an average over process group '{attrs['group']}', whose size isn't known",
                where=source_line(b.node),
                hint="compile where the process group is initialised",
            )
        return "sum"
    if op not in _REDUCTIONS:
        raise CompileError(
            f"{b.node.target}: reduction '{op}' isn't supported",
            where=source_line(b.node),
            hint=f"these are: avg, {', '.join(_REDUCTIONS)}",
        )
    return op


def _averaged(b: OpBuilder, op: str, y: Value, size: int) -> Value:
    return b.div(y, float(size)) if op == "avg" else y


@lowers(*_names("all_reduce"))
def _all_reduce(b: OpBuilder, x: Value, reduce_op: str, group_name: Any) -> Value:
    attrs, op = _attrs(b, group_name), reduce_op.lower()
    y = b.op(collective.AllReduce, [x], {**attrs, "how": _reduction(b, op, x, attrs)})
    return _averaged(b, op, y, attrs["size"])


@lowers(*_names("all_gather_into_tensor"))
def _all_gather(b: OpBuilder, x: Value, group_size: int, group_name: Any) -> Value:
    return b.op(collective.AllGather, [x], _attrs(b, group_name, group_size))


@lowers(*_names("reduce_scatter_tensor"))
def _reduce_scatter(b: OpBuilder, x: Value, reduce_op: str, group_size: int, group_name: Any) -> Value:
    attrs, op = _attrs(b, group_name, group_size), reduce_op.lower()
    if b.rank(x) > 0:
        rows = b.shape(x)[0]
        b.require(sympy.Eq(sympy.Mod(rows, group_size), 0), f"{group_size} processes must be able to share the rows evenly")
    y = b.op(collective.ReduceScatter, [x], {**attrs, "how": _reduction(b, op, x, attrs)})
    return _averaged(b, op, y, group_size)


@lowers(*_names("all_to_all_single"))
def _all_to_all(
    b: OpBuilder, x: Value, output_split_sizes: Sequence[Size], input_split_sizes: Sequence[Size], group_name: Any
) -> Value:
    gives, takes = ([b.size(as_expr(n)) for n in sizes] for sizes in (input_split_sizes, output_split_sizes))
    if b.rank(x) > 0:
        b.require(sympy.Eq(sum(gives), b.shape(x)[0]), "the rows that go to all processes must be those that there are")
    for n in (*gives, *takes):
        b.require(sympy.Ge(n, 0), "no process gets a negative number of rows")
    return b.op(collective.AllToAll, [x], {**_attrs(b, group_name, len(gives)), "gives": gives, "takes": takes})


@lowers(*_names("broadcast", autograd=False))
def _broadcast(b: OpBuilder, x: Value, src: int, group_name: Any) -> Value:
    return b.op(collective.BroadcastFrom, [x], {**_attrs(b, group_name), "from_": src})


@lowers(*_names("all_reduce_coalesced", autograd=False))
def _all_reduce_coalesced(b: OpBuilder, xs: Sequence[Value], reduce_op: str, group_name: Any) -> list[Value]:
    return [_all_reduce(b, x, reduce_op, group_name) for x in xs]


@lowers(*_names("all_gather_into_tensor_coalesced", autograd=False))
def _all_gather_coalesced(b: OpBuilder, xs: Sequence[Value], group_size: int, group_name: Any) -> list[Value]:
    return [_all_gather(b, x, group_size, group_name) for x in xs]


@lowers(*_names("reduce_scatter_tensor_coalesced", autograd=False))
def _reduce_scatter_coalesced(b: OpBuilder, xs: Sequence[Value], reduce_op: str, group_size: int, group_name: Any) -> list[Value]:
    return [_reduce_scatter(b, x, reduce_op, group_size, group_name) for x in xs]


@lowers(*_names("wait_tensor", "_wrap_tensor_autograd", autograd=False))
def _wait(b: OpBuilder, x: Value) -> Value:
    """A collective ends before what comes behind it runs."""
    return x
