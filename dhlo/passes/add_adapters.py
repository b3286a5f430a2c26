"""Lets a step over packed tokens add adapters (LoRA) to its products with constants, of each token that of its sequence."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import sympy

from dhlo.errors import CompileError
from dhlo.ir.adapters import Adapted, Adapters, mark_adapters, whole_rank
from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.function import argument_names, bodies, mark_argument, set_type
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops.adapters import Adapt
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.movement import Weight
from dhlo.ir.paging import paging_of
from dhlo.ir.places import place_of
from dhlo.ir.symbols import is_static
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["add_adapters", "request_adapters"]

_REQUEST: Final = "dhlo.lora"  # attribute of the module
_LINE: Final = 32  # elements that begin a line of a cache, of 16 bits or more
_LEAVES: Final = ("parametrizations", "weight")  # of parameters that are made of several, behind the module's name
_MOST: Final = 1 << 16


def request_adapters(modules: Collection[Module], max_rank: int, max_adapters: int, targets: Iterable[str]) -> None:
    """Writes down what adapters a model shall have room for. Raises CompileError for numbers out of range."""
    names = list(targets)
    good = all(type(n) is int and 0 < n <= _MOST for n in (max_rank, max_adapters)) and all(isinstance(x, str) and x for x in names)
    if not good:
        raise CompileError(
            f"lora: max_rank={max_rank!r}, max_adapters={max_adapters!r}, targets={names!r}: numbers from 1 to {_MOST}, and names",
            hint='dhlo.LoraOptions(max_rank=16, max_adapters=8, targets=("q_proj", "v_proj")), say',
        )
    for module in modules:
        with module.context:
            module.operation.attributes[_REQUEST] = ir.DictAttr.get(
                {
                    "rank": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), max_rank),
                    "adapters": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), max_adapters),
                    "targets": ir.ArrayAttr.get([ir.StringAttr.get(x) for x in names]),
                }
            )


def add_adapters(module: Module) -> None:
    """Adds to products with constants, chosen by the names of these, what the adapter of each token says.

    Raises CompileError where a function isn't a step over pools of blocks, or a name that is asked for has no such product.
    """
    attributes = module.operation.attributes
    if _REQUEST not in attributes:
        return
    request = ir.DictAttr(attributes[_REQUEST])
    rank, adapters = (ir.IntegerAttr(request[n]).value for n in ("rank", "adapters"))
    targets = [ir.StringAttr(x).value for x in ir.ArrayAttr(request["targets"])]
    del attributes[_REQUEST]
    for block in bodies(module):
        with ir.Location.unknown():
            _add(block, rank, adapters, targets)


@dataclass(frozen=True)
class _Product:
    """A product of the rows of tokens with a constant, and the name of the module whose constant it is."""

    name: str
    op: Any

    @property
    def rows(self) -> TensorType:
        return from_mlir(self.op.operands[0])

    @property
    def columns(self) -> int:
        return int(from_mlir(self.op.results[0]).shape[-1])


def _add(block: Any, rank: int, adapters: int, targets: list[str]) -> None:
    paging = paging_of(block)
    if paging is None:
        raise CompileError(
            "lora: adapters are chosen by sequence, and the program is no step over sequences",
            hint="compile with pages, too: docs/caches.md",
        )
    if not paging.slots:
        raise CompileError("lora: the program is a step of one token of each sequence, whose products have no adapters")
    tokens = from_mlir(block.arguments[paging.slots[0]]).shape[0]
    found = _chosen(block, tokens, targets)
    dtype = found[0].rows.dtype
    places, end = [], 0
    for p in found:
        places.append(end)
        end += whole_rank(rank) * (int(p.rows.shape[-1]) + p.columns)
        end += -end % _LINE
    chosen = _argument(block, "adapters", TensorType.of("i32", [tokens]))
    weights = _argument(block, "adapter_weights", TensorType.of(dtype, [adapters, end]))
    for p, at in zip(found, places, strict=True):
        y, users = p.op.results[0], [(u.owner, u.operand_number) for u in p.op.results[0].uses]
        with ir.InsertionPoint.after(p.op.operation), p.op.location:
            attrs = {"at": [at], "columns": [p.columns], "rank": whole_rank(rank)}
            z = build(Adapt, [y, p.op.operands[0], weights, chosen], attrs).results[0]
        for user, k in users:
            user.operation.operands[k] = z
    set_type(block)
    products = [Adapted(p.name, at, int(p.rows.shape[-1]), p.columns) for p, at in zip(found, places, strict=True)]
    mark_adapters(block, Adapters(chosen.arg_number, weights.arg_number, whole_rank(rank), tuple(products)))


def _argument(block: Any, name: str, t: TensorType) -> Any:
    if name in argument_names(block):
        raise CompileError(f"lora: the program has an argument '{name}' of its own", hint="give it another name")
    argument = block.add_argument(t.mlir(), ir.Location.unknown())
    mark_argument(block, argument.arg_number, {"dhlo.name": ir.StringAttr.get(name)})
    return argument


def _chosen(block: Any, tokens: sympy.Expr, targets: list[str]) -> list[_Product]:
    """The products that targets name, or all that adapters can be added to: those of as many rows as there are tokens."""
    products = [_Product(name, op) for op in block.operations if (name := _constant_name(op))]
    fitting = [p for p in products if _fits(p, tokens)]
    if not targets:
        found = [p for p in products if p in fitting and p.rows.dtype == fitting[0].rows.dtype or _of_one_token(p, tokens)]
    else:
        found = [p for p in products if any(_is_called(p.name, x) for x in targets)]
    unfit = next((p for p in found if p not in fitting or p.rows.dtype != found[0].rows.dtype), None)
    if unfit is not None:
        raise CompileError(
            f"lora: '{unfit.name}' multiplies {unfit.rows}: adapters take rows of all tokens, of one static size and dtype",
            where=str(place_of(unfit.op)),
        )
    known = list(dict.fromkeys(p.name.rpartition(".")[2] for p in fitting))
    for x in targets or ([] if found else ["any name"]):
        if not any(_is_called(p.name, x) for p in found):
            raise CompileError(
                f"lora: there is no product with a constant of '{x}'", hint=f"there are those of {', '.join(known) or 'none'}"
            )
    return found


def _is_called(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _fits(p: _Product, tokens: sympy.Expr) -> bool:
    *more, rows, k = p.rows.shape
    columns = from_mlir(p.op.results[0]).shape[-1]
    static = is_static(k) and is_static(columns) and int(k) > 0 and int(columns) > 0
    return static and rows == tokens and all(n == 1 for n in more) and p.rows.dtype.name in ("f32", "f16", "bf16")


def _of_one_token(p: _Product, tokens: sympy.Expr) -> bool:
    """Whether a product's rows are those of tokens in a step that was exported for one of each sequence."""
    first, *more, _ = p.rows.shape
    return first == tokens and bool(more) and all(n == 1 for n in more)


def _constant_name(op: Any) -> str:
    """The name of the module whose constants the right side of a product [K, N] is made of; "" where it is no such product."""
    if not isinstance(op, Matmul) or from_mlir(op.operands[1]).rank != 2:
        return ""
    names, work, seen = set[str](), [op.operands[1]], set()
    while work:
        made = defining(v := work.pop())
        if v in seen:
            continue
        seen.add(v)
        if isinstance(made, Weight):
            names.add(attr(made, "name_"))
        elif made is None or made.kind is not Kind.OPAQUE and not made.kind.pullable:
            return ""
        else:
            work += made.operands
    parts = [n.split(".")[:-1] for n in names]
    if not parts:
        return ""
    common = []
    for each in zip(*parts, strict=False):
        if len(set(each)) > 1:
            break
        common.append(each[0])
    while common and common[-1] in _LEAVES:
        common.pop()
    return ".".join(common)
