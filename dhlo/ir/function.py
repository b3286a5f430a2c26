"""What a module and the attributes of its functions say: ranges and names of symbols, names of arguments, which arguments grow, and
which results are the new content of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy

from dhlo.ir.dialect import Kind
from dhlo.ir.handles import Value
from dhlo.ir.mlir import ir
from dhlo.ir.symbols import parse, show
from dhlo.ir.types import TensorType, from_mlir

__all__ = [
    "Bounds",
    "Target",
    "argument_marks",
    "argument_name",
    "argument_names",
    "argument_type",
    "bodies",
    "erase_argument",
    "filled_mark",
    "filled_sizes",
    "grown_dims",
    "hints_of",
    "mark_argument",
    "mark_results",
    "mark_sizes",
    "memory_type",
    "number_results",
    "numbers_of_results",
    "ranges_of",
    "renumber_results",
    "requested_growth",
    "requested_pages",
    "set_hints",
    "set_ranges",
    "set_type",
    "set_user_names",
    "sizes_of",
    "updates_of",
    "user_names",
    "walk",
]

Target = str | int  # the name of a state, or the number of an argument
Bounds = tuple[int | None, int | None]
_NONE = (-(1 << 63), (1 << 63) - 1)  # what no bound is written as


def bodies(module: Any) -> list[Any]:
    """The functions' blocks; that of @main is the first."""
    return [block for f in module.body.operations for block in f.operation.regions[0].blocks]


def walk(block: Any) -> Iterator[Any]:
    """Operations of a block and of the regions of its control-flow ops, in execution order; terminators left out."""
    for op in list(block.operations)[:-1]:
        yield op
        if getattr(op, "kind", None) is Kind.CONTROL:
            for region in op.regions:
                yield from walk(region.blocks[0])


def memory_type(block: Any, k: int) -> TensorType:
    """What lies in memory of argument k: the tensor, or the buffer that it is the first part of."""
    return from_mlir(block.arguments[k])


def argument_type(block: Any, k: int) -> TensorType:
    """What a call gives for argument k; of one that grows, what its buffer holds."""
    t, grows, filled = from_mlir(block.arguments[k]), grown_dims(block), filled_sizes(block)
    return t.with_shape([filled[k] if k in filled and d == grows[k] else s for d, s in enumerate(t.shape)])


# ------------------------------------------------------------------------------------------------ of the module
def ranges_of(module: Any) -> dict[str, Bounds]:
    """The least and the greatest value of each symbol that the module gives a range; None for no bound, which an upper one below
    the lower one stands for too."""
    attributes = module.operation.attributes
    if "dhlo.symbols" not in attributes:
        return {}
    pairs = {e.name: [ir.IntegerAttr(n).value for n in ir.ArrayAttr(e.attr)] for e in ir.DictAttr(attributes["dhlo.symbols"])}
    return {n: (lo if lo != _NONE[0] else None, hi if lo <= hi != _NONE[1] else None) for n, (lo, hi) in pairs.items()}


def set_ranges(module: Any, ranges: Mapping[str, Bounds]) -> None:
    """Writes down what `ranges_of` reads."""
    i64 = ir.IntegerType.get_signless(64)
    module.operation.attributes["dhlo.symbols"] = ir.DictAttr.get(
        {
            name: ir.ArrayAttr.get([ir.IntegerAttr.get(i64, n if b is None else b) for n, b in zip(_NONE, bounds, strict=True)])
            for name, bounds in ranges.items()
        }
    )


def hints_of(module: Any) -> dict[str, int]:
    """Usual values of symbols, where the user has said."""
    attributes = module.operation.attributes
    if "dhlo.hints" not in attributes:
        return {}
    return {e.name: ir.IntegerAttr(e.attr).value for e in ir.DictAttr(attributes["dhlo.hints"])}


def set_hints(module: Any, hints: Mapping[str, int]) -> None:
    """Writes down what `hints_of` reads."""
    if hints:
        i64 = ir.IntegerType.get_signless(64)
        given = {name: ir.IntegerAttr.get(i64, n) for name, n in hints.items()}
        module.operation.attributes["dhlo.hints"] = ir.DictAttr.get(given)


def user_names(module: Any) -> dict[str, str]:
    """What the user called the dims that symbols stand for."""
    attributes = module.operation.attributes
    if "dhlo.names" not in attributes:
        return {}
    return {e.name: ir.StringAttr(e.attr).value for e in ir.DictAttr(attributes["dhlo.names"])}


def set_user_names(module: Any, names: Mapping[str, str]) -> None:
    """Writes down what `user_names` reads."""
    if names:
        given = {symbol: ir.StringAttr.get(name) for symbol, name in names.items()}
        module.operation.attributes["dhlo.names"] = ir.DictAttr.get(given)


# ------------------------------------------------------------------------------------------------ of arguments
def _marks(block: Any, what: str) -> list[Any]:
    """The dictionaries of attributes of the arguments or results of the function with this body; empty where it has none."""
    attributes = block.owner.attributes
    return list(map(ir.DictAttr, attributes[what])) if what in attributes else []


def argument_marks(block: Any) -> list[Any]:
    """The attributes of each argument of the function with this body; empty where none has any."""
    return _marks(block, "arg_attrs")


def mark_argument(block: Any, k: int, marks: Mapping[str, Any], without: str = "") -> None:
    """Adds attributes to argument k of the function with this body, and takes the one named `without` away."""
    all_marks = _marks(block, "arg_attrs")
    all_marks += [ir.DictAttr.get({}) for _ in range(len(block.arguments) - len(all_marks))]
    kept = {e.name: e.attr for e in all_marks[k] if e.name != without}
    all_marks[k] = ir.DictAttr.get(kept | dict(marks))
    block.owner.attributes["arg_attrs"] = ir.ArrayAttr.get(all_marks)


def argument_names(block: Any) -> list[str]:
    """The names of a function's arguments; those without one are called by their number."""
    marks = _marks(block, "arg_attrs") or [{}] * len(block.arguments)
    return [m["dhlo.name"].value if "dhlo.name" in m else f"input {k}" for k, m in enumerate(marks)]


def argument_name(value: Value) -> str:
    """The name of the function's argument that a value without an op is; "" for one without, or another block's."""
    argument = ir.BlockArgument(value)
    operation = argument.owner.owner.operation
    marks = _marks(argument.owner, "arg_attrs") if operation.name == "func.func" else []
    mark = marks[argument.arg_number] if argument.arg_number < len(marks) else {}
    return mark["dhlo.name"].value if "dhlo.name" in mark else ""


def _numbers(block: Any, name: str) -> dict[int, int]:
    return {k: m[name].value for k, m in enumerate(_marks(block, "arg_attrs")) if name in m}


def requested_growth(block: Any) -> dict[int, int]:
    """By argument: the dim along which its buffer shall have room, before `grow` has given it that."""
    return _numbers(block, "dhlo.grow")


def requested_pages(block: Any) -> dict[int, int]:
    """By argument: the slots of a block of the pool that it shall be, before `page-caches` has made it one."""
    return _numbers(block, "dhlo.page")


def erase_argument(block: Any, k: int) -> None:
    """Takes an argument that nothing reads away, and renumbers what results say of the others."""
    block.erase_argument(k)
    if marks := _marks(block, "arg_attrs"):
        block.owner.attributes["arg_attrs"] = ir.ArrayAttr.get(marks[:k] + marks[k + 1 :])
    for name in ("dhlo.argument", "dhlo.size_of"):
        later = {i: {name: m[name].value - 1} for i, m in enumerate(_marks(block, "res_attrs")) if name in m and m[name].value > k}
        _mark_results(block, later)
    set_type(block)


def set_type(block: Any) -> None:
    """Writes down the function's type, by its arguments and what it returns."""
    results = [v.type for v in list(block.operations)[-1].operands]
    block.owner.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([v.type for v in block.arguments], results))


def grown_dims(block: Any) -> dict[int, int]:
    """By argument: the dim along which its buffer has room behind its elements."""
    return _numbers(block, "dhlo.grows")


def filled_sizes(block: Any) -> dict[int, sympy.Expr]:
    """By growing argument: how much of its buffer is filled, along the dim that grows."""
    marks = enumerate(_marks(block, "arg_attrs"))
    return {k: parse(m["dhlo.filled"].value) for k, m in marks if "dhlo.filled" in m}


def filled_mark(size: sympy.Expr) -> dict[str, Any]:
    """The attribute that `filled_sizes` reads."""
    return {"dhlo.filled": ir.StringAttr.get(show(size))}


# ------------------------------------------------------------------------------------------------ of results
def mark_results(block: Any, updates: Mapping[int, Target]) -> None:
    """Says which results of the function with this body are the new content of what."""
    keys = {i: "dhlo.state" if isinstance(target, str) else "dhlo.argument" for i, target in updates.items()}
    _mark_results(block, {i: {keys[i]: target} for i, target in updates.items()})


def mark_sizes(block: Any, sizes: Mapping[int, int]) -> None:
    """Says which results are the filled size of what growing argument."""
    _mark_results(block, {i: {"dhlo.size_of": k} for i, k in sizes.items()})


def _mark_results(block: Any, given: Mapping[int, Mapping[str, Target]]) -> None:
    if not given:
        return
    marks = [{e.name: e.attr for e in m} for m in _marks(block, "res_attrs")]
    marks += [{} for _ in range(len(block.owner.attributes["function_type"].value.results) - len(marks))]
    i64 = ir.IntegerType.get_signless(64)
    for i, values in given.items():
        for name, x in values.items():
            marks[i][name] = ir.StringAttr.get(x) if isinstance(x, str) else ir.IntegerAttr.get(i64, x)
    block.owner.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(m) for m in marks])


def renumber_results(block: Any, kept: Sequence[int]) -> None:
    """Keeps the marks of the results with these numbers, in this order, for the first results."""
    marks = _marks(block, "res_attrs")
    if marks:
        block.owner.attributes["res_attrs"] = ir.ArrayAttr.get([marks[i] for i in kept])


def number_results(block: Any) -> None:
    """Marks each result with its number, for `numbers_of_results` to tell which is which after passes have changed them."""
    count = len(block.owner.attributes["function_type"].value.results)
    _mark_results(block, {i: {"dhlo.number": i} for i in range(count)})


def numbers_of_results(block: Any) -> dict[int, int]:
    """By number that a result had at `number_results`: the one that it has. Takes the marks away."""
    marks = [{e.name: e.attr for e in m} for m in _marks(block, "res_attrs")]
    found = {m.pop("dhlo.number").value: i for i, m in enumerate(marks) if "dhlo.number" in m}
    if found:
        block.owner.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(m) for m in marks])
    return found


def updates_of(block: Any) -> dict[int, Target]:
    """Which results of the function with this body are the new content of what; empty for other blocks."""
    out: dict[int, Target] = {}
    for i, marks in enumerate(_marks(block, "res_attrs")):
        if "dhlo.state" in marks:
            out[i] = marks["dhlo.state"].value
        elif "dhlo.argument" in marks:
            out[i] = marks["dhlo.argument"].value
    return out


def sizes_of(block: Any) -> dict[int, int]:
    """By result: the growing argument whose filled size, along the dim that grows, it is."""
    return {i: m["dhlo.size_of"].value for i, m in enumerate(_marks(block, "res_attrs")) if "dhlo.size_of" in m}
