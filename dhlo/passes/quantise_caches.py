"""Stores the keys and values that a session keeps in fewer bits, as the user asks (`Options.kv_cache`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch

from dhlo.errors import CompileError
from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.function import bodies, mark_results, updates_of
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Attention, Matmul, Reduce
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Slice, State, Transpose
from dhlo.ir.ops.quantised import Dequantize
from dhlo.ir.paging import paging_of
from dhlo.ir.symbols import is_static
from dhlo.ir.types import DTYPES, TensorType, from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.expand_dequantize import written_out
from dhlo.shape_infer.views import reshape_groups

__all__ = [
    "FORMATS",
    "Stored",
    "check_caches",
    "quantise_caches",
    "quantise_rows",
    "quantised_caches",
    "request_caches",
    "stored_as",
    "take_request",
]

Weights = dict[str, torch.Tensor]

FORMATS: Final = {"bf16": "bf16", "f16": "f16", "int8": "i8"}
"""Dtypes that elements of caches may be stored in, by the names that users give them."""

_PLAIN: Final = ("", "f32")  # leave caches as they are
_REQUEST, _REPORT = "dhlo.kv_cache", "dhlo.caches"  # attributes of the module
_ERRORS: Final = {"int8": 1 / 254, "bf16": 2.0**-9, "f16": 2.0**-12}
_MOST: Final = 127.0  # the largest code
_VIEWS = (Reshape, Transpose, Slice, Broadcast)


def request_caches(modules: Collection[Module], wanted: str) -> None:
    """Writes down, for the pass on each entry of a model, the format that the user asks for. Raises CompileError if there is none
    of that name."""
    if wanted in _PLAIN:
        return
    if wanted not in FORMATS:
        raise CompileError(f"kv_cache: there is no format '{wanted}'", hint=f"formats are {', '.join(FORMATS)}")
    for module in modules:
        with module.context:
            module.operation.attributes[_REQUEST] = ir.StringAttr.get(wanted)


def take_request(module: Module) -> str:
    """The format that the user asks for, of caches that are arguments: this one's keys and values are no states then. "": none."""
    attributes = module.operation.attributes
    if _REQUEST not in attributes:
        return ""
    wanted: str = ir.StringAttr(attributes[_REQUEST]).value
    del attributes[_REQUEST]
    return wanted


def _has_pools(module: Module) -> bool:
    """Whether `page-caches` has made pools, in the format that was asked for."""
    return any(paging is not None and bool(paging.pools) for paging in map(paging_of, bodies(module)))


def check_caches(modules: Mapping[str, Module]) -> None:
    """Raises CompileError where caches were asked for in fewer bits and no entry (by name) has any, or one entry can't keep a state
    as another does."""
    asked = {entry: m for entry, m in modules.items() if _REQUEST in m.operation.attributes}
    if not asked:
        return
    rows = {entry: {row["name"]: row for row in quantised_caches(m)} for entry, m in asked.items()}
    found = {name: entry for entry, of in rows.items() for name, row in of.items() if row["format"]}
    wanted = ir.StringAttr(next(iter(asked.values())).operation.attributes[_REQUEST]).value
    if not found and not any(map(_has_pools, modules.values())):  # which have it
        raise CompileError(_NONE.format(wanted), hint=_hint([row for of in rows.values() for row in of.values()]))
    for name, first in found.items():
        for entry, module in asked.items():
            reason = rows[entry][name]["reason"] if name in rows[entry] else "is read there, and not written"
            if reason and (name in rows[entry] or any(_states(block, name) for block in bodies(module))):
                raise CompileError(
                    f"kv_cache: '{name}' can be stored as {wanted} in entry '{first}', but not in entry '{entry}': it {reason}",
                    hint=_APART,
                )


_APART: Final = (
    "leave out kv_cache, or that entry: a session clears its buffers by reset(), and read_state() and write_state() read and write "
    "them"
)


def quantised_caches(module: Module) -> list[dict[str, Any]]:
    """What the pass did, a row for each tensor that the session keeps: name, format ("" if it was left as it is, for the `reason`
    given), bytes before and after, and `error`, the most that an element is off by: of the largest in its row for int8, else of
    itself (f16: where it is 2^-14 or more)."""
    attributes = module.operation.attributes
    rows = ir.ArrayAttr(attributes[_REPORT]) if _REPORT in attributes else []
    return [{e.name: e.attr.value for e in ir.DictAttr(row)} for row in rows]


def quantise_caches(module: Module, weights: Weights) -> None:
    """Stores states whose rows are written in place and attended to in fewer bits, if the module asks for it: as bf16 or f16, or as
    int8 with an f32 scale for each row of a head, which is a state of its own. Rows are quantised when they are written, and
    attention decodes them. Where there is no such state, nothing changes: see `check_caches`.
    """
    if _REQUEST not in module.operation.attributes:
        return
    wanted = ir.StringAttr(module.operation.attributes[_REQUEST]).value
    block, rows, scales = bodies(module)[0], list[dict[str, Any]](), dict[str, Any]()
    for index, name in updates_of(block).items():
        if not isinstance(name, str):
            continue
        before = int(from_mlir(list(block.operations)[-1].operands[index]).bytes)
        found = _find(module, block, index, name, wanted, weights)
        if isinstance(found, str):
            rows.append({"name": name, "format": "", "reason": found, "error": 0.0, "before": before, "after": before})
            continue
        scale = _rewrite(block, found, wanted, weights)
        if scale is not None:
            scales[found.scale_name] = scale
        error = _ERRORS[wanted]
        rows.append({"name": name, "format": wanted, "reason": "", "error": error, "before": before, "after": found.bytes(wanted)})
    if any(row["format"] for row in rows):
        _return_more(block, scales)
        erase_dead(block)
    module.operation.attributes[_REPORT] = ir.ArrayAttr.get([_as_attribute(r) for r in rows])


_NONE: Final = (
    "kv_cache: nothing to store as {}: the program changes no buffer whose rows it writes in place and reads as keys or values of "
    "attention (scaled_dot_product_attention)"
)


def _hint(rows: Sequence[dict[str, Any]]) -> str:
    if rows:
        return "; ".join(f"'{row['name']}': {row['reason']}" for row in rows[:8])
    return (
        "export it with a cache that it keeps, such as a StaticCache; caches that are arguments have the dtype that the caller "
        "gives them: export with arguments of bf16 or f16 instead"
    )


def _as_attribute(row: dict[str, Any]) -> ir.DictAttr:
    f64, i64 = ir.F64Type.get(), ir.IntegerType.get_signless(64)
    made: dict[type, Callable[[Any], Any]] = {
        str: ir.StringAttr.get,
        int: lambda x: ir.IntegerAttr.get(i64, x),
        float: lambda x: ir.FloatAttr.get(f64, x, ir.Location.unknown()),
    }
    return ir.DictAttr.get({k: made[type(x)](x) for k, x in row.items()})


# ------------------------------------------------------------------------------------------------------------ which they are
@dataclass
class _Read:
    """An operand of attention: the state's content, old or new, that views (the outermost last) lead back to."""

    op: Any
    operand: int
    content: Any
    views: list[Any]


@dataclass
class _Cache:
    """A state that is a cache.

    states   ops that read what it held when the call began
    writes   ops that make new content of it, the first write first
    reads    who attends to it
    size     elements of its last dim that are a row of a head
    """

    name: str
    scale_name: str
    index: int
    type: TensorType
    states: list[Any]
    writes: list[Any]
    reads: list[_Read]
    size: int

    @property
    def contents(self) -> list[Any]:
        """All that the state holds at one time or another."""
        return [op.results[0] for op in (*self.states, *self.writes)]

    def scale_type(self) -> TensorType:
        """Of the scales of its rows."""
        return _scales(self.type, self.type.rank - 1, self.size)

    def bytes(self, wanted: str) -> int:
        """What it takes in this format."""
        codes = int(self.type.with_dtype(FORMATS[wanted]).bytes)
        return codes + (int(self.scale_type().bytes) if wanted == "int8" else 0)


def _scales(t: TensorType, row: int, size: int) -> TensorType:
    """The type of scales: an entry for each `size` elements along dim `row`."""
    return TensorType.of("f32", [s / size if d == row else s for d, s in enumerate(t.shape)])


def _find(module: Module, block: Block, index: int, name: str, wanted: str, weights: Weights) -> _Cache | str:
    """The cache that result `index` is the new content of, or why it can't be stored so."""
    v = list(block.operations)[-1].operands[index]
    t, writes = from_mlir(v), list[Any]()
    if not t.dtype.is_float or t.dtype.is_complex:
        return f"holds {t.dtype.name}"
    if DTYPES[FORMATS[wanted]].bits >= t.dtype.bits:
        return f"holds {t.dtype.name}, which takes no more"
    while isinstance(op := defining(v), (Scatter, UpdateSlice, Reshape)):
        writes.insert(0, op)
        v = op.operands[0]
    states = [op for f in module.body.operations for b in f.operation.regions[0].blocks for op in _states(b, name)]
    if not isinstance(op, State) or attr(op, "name_") != name:
        return "is written as a whole"
    if any(s.operation.block != block for s in states):
        return "is read inside a branch or a loop"
    contents = [op.results[0] for op in (*states, *writes)]
    reads = [r for op in block.operations if isinstance(op, Attention) for i in (1, 2) if (r := _read(op, i, contents)) is not None]
    if not reads:
        return _NOT_READ if not _multiplied(contents) else _BY_HAND
    depths = {from_mlir(r.op.operands[r.operand]).shape[3] for r in reads}
    depth, last = next(iter(depths)), t.shape[-1]
    if len(depths) > 1 or not is_static(depth) or not is_static(last) or int(depth) == 0 or int(last) % int(depth):
        return "its heads have several sizes"
    scale_name = next(n for k in range(len(weights) + 1) if (n := f"{name}.scale{k or ''}") not in weights)
    cache = _Cache(name, scale_name, index, t, states, writes, reads, int(depth))
    reason = next((x for op in writes if (x := _unwritable(op, wanted)) is not None), None)
    if reason is None and wanted == "int8":
        if not all(_keeps_rows(r, cache.size) for r in reads):
            return "rows of a head aren't its last dim"
        if cache.bytes(wanted) >= int(t.bytes):
            return "codes and scales would take no less"
    return cache if reason is None else reason


_NOT_READ: Final = "no attention reads it"
_BY_HAND: Final = "is read by products, not by scaled_dot_product_attention"


def _multiplied(contents: Sequence[Any]) -> bool:
    """Whether products read any of these values, through views."""
    todo = list(contents)
    while todo:
        for use in todo.pop().uses:
            op = use.owner.operation.opview
            if isinstance(op, Matmul):
                return True
            if isinstance(op, _VIEWS):
                todo.append(op.results[0])
    return False


def _states(block: Block, name: str) -> list[Any]:
    """All reads of a state by name, those in regions included."""
    found = []
    for op in block.operations:
        if isinstance(op, State) and attr(op, "name_") == name:
            found.append(op)
        for region in op.operation.regions:
            for inner in region.blocks:
                found += _states(inner, name)
    return found


def _read(op: Any, i: int, contents: Sequence[Any]) -> _Read | None:
    v, views = op.operands[i], list[Any]()
    while v not in contents:
        view = defining(v)
        if not isinstance(view, (*_VIEWS, ew.Convert)) or not from_mlir(view.operands[0]).dtype.is_float:
            return None
        if isinstance(view, _VIEWS):
            views.insert(0, view)
        v = view.operands[0]
    return _Read(op, i, v, views)


def _unwritable(op: Any, wanted: str) -> str | None:
    """Why a write can't be made of quantised rows."""
    x = from_mlir(op.operands[0])
    if isinstance(op, Scatter):
        if attr(op, "how") != "set":
            return "is added to in place"
        whole = x.rank - 1 not in attr(op, "dims")
    elif isinstance(op, UpdateSlice):
        whole = exprs(attr(op, "starts"))[-1] == 0 and from_mlir(op.operands[1]).shape[-1] == x.shape[-1]
    else:
        whole = from_mlir(op.results[0]).shape[-1] == x.shape[-1]
    return None if whole or wanted != "int8" else "rows are written in part"


def _keeps_rows(read: _Read, size: int) -> bool:
    """Whether views lead from rows along the state's last dim to rows along attention's."""
    row = from_mlir(read.content).rank - 1
    for view in read.views:
        behind = _row_behind(view, row, size)
        if behind is None:
            return False
        row = behind
    t = from_mlir(read.op.operands[read.operand])
    return row == 3 and t.shape[3] == size


def _row_behind(view: Any, row: int, size: int) -> int | None:
    """The dim of a view's result that holds dim `row` of its operand, in runs of `size` elements; None if these are cut."""
    x, y = from_mlir(view.operands[0]), from_mlir(view.results[0])
    if isinstance(view, Transpose):
        return int(attr(view, "perm").index(row))
    if isinstance(view, Broadcast):
        d = int(attr(view, "dims")[row])
        return d if y.shape[d] == x.shape[row] else None
    if isinstance(view, Slice):
        start, step = exprs(attr(view, "starts"))[row], attr(view, "steps")[row]
        return row if step == 1 and _divides(size, start) and _divides(size, y.shape[row]) else None
    for src, dst in reshape_groups(x.shape, y.shape):
        if row in src and dst:
            return dst[-1] if row == src[-1] and _divides(size, y.shape[dst[-1]]) else None
    return None


def _divides(size: int, n: sympy.Expr) -> bool:
    return is_static(n) and int(n) % size == 0


# ------------------------------------------------------------------------------------------------------------ new ops
@dataclass
class Stored:
    """Content in its new form: elements, and scales (an entry for each `size` elements along dim `row`) if there are any."""

    values: Any
    scale: Any = None
    row: int = 0
    size: int = 0

    def decoded(self, dtype: str) -> Any:
        """The elements as a dtype, in a form that attention decodes."""
        if self.scale is None:
            return _converted(self.values, dtype)
        return build(Dequantize, [self.values, self.scale], {"code": "i8", "dtype": dtype}).results[0]


def _rewrite(block: Block, cache: _Cache, wanted: str, weights: Weights) -> Any:
    """Replaces the state and all that reads and writes it; the new content of its scales, if it has any."""
    made: dict[Any, Stored] = {}
    last, scaled = cache.type.rank - 1, wanted == "int8"
    names = (cache.name, cache.scale_name)
    types = (cache.type.with_dtype(FORMATS[wanted]), *([cache.scale_type()] if scaled else []))
    for op in cache.states:
        with ir.InsertionPoint(op.operation), op.location:
            values, *scale = [build(State, [], {"name_": n}, results=[t]).results[0] for n, t in zip(names, types, strict=False)]
        made[op.results[0]] = Stored(values, scale[0], last, cache.size) if scaled else Stored(values)
    for op in cache.writes:
        with ir.InsertionPoint(op.operation), op.location:
            made[op.results[0]] = _written(op, made[op.operands[0]], wanted)
    for r in cache.reads:
        with ir.InsertionPoint(r.op.operation), r.op.location:
            r.op.operation.operands[r.operand] = _attended(r, made[r.content])
    old = [op.operation for op in cache.writes]
    for v in cache.contents:
        users = [use for use in v.uses if use.owner.operation not in old]
        end = list(block.operations)[-1].operation
        others = [use for use in users if use.owner.operation != end or use.operand_number != cache.index]
        if others:
            op = defining(v)
            with ir.InsertionPoint(op.operation), op.location:
                wide = _widened(made[v], from_mlir(v))
            for use in others:
                use.owner.operation.operands[use.operand_number] = wide
    final = list(block.operations)[-1]
    rows = made[final.operands[cache.index]]
    final.operation.operands[cache.index] = rows.values
    if cache.name in weights:
        data = weights[cache.name].detach()
        new = quantise_rows(data, cache.size) if scaled else (data.to(DTYPES[FORMATS[wanted]].torch),)
        weights |= dict(zip(names, new, strict=False))
    return rows.scale


def _written(op: Any, old: Stored, wanted: str) -> Stored:
    """What a write makes of content in its new form."""
    if isinstance(op, Reshape):
        shape = from_mlir(op.results[0]).shape
        values = build(Reshape, [old.values], results=[from_mlir(old.values).with_shape(shape)]).results[0]
        if old.scale is None:
            return Stored(values)
        t, row = _scales(from_mlir(values), len(shape) - 1, old.size), len(shape) - 1
        return Stored(values, build(Reshape, [old.scale], results=[t]).results[0], row, old.size)
    *index, src = list(op.operands)[1:]
    attributes = ("dims", "at", "how", "wrap") if isinstance(op, Scatter) else ("starts",)
    given = {n: attr(op, n) for n in attributes}

    def write(to: Any, part: Any) -> Any:
        return build(type(op), [to, *index, part], given).results[0]

    if wanted != "int8":
        return Stored(write(old.values, _converted(src, FORMATS[wanted])))
    rank = from_mlir(old.values).rank
    row = from_mlir(src).rank - 1
    if isinstance(op, Scatter):  # whose source has the indices' dims somewhere among those of the rest
        place = rank - len(given["dims"]) - 1
        row = place if place < given["at"] else place + from_mlir(index[0]).rank
    part = _quantised(src, row, old.size)
    return Stored(write(old.values, part.values), write(old.scale, part.scale), old.row, old.size)


def _converted(v: Value, dtype: str) -> Any:
    t = from_mlir(v)
    return v if t.dtype.name == dtype else build(ew.Convert, [v], results=[t.with_dtype(dtype)]).results[0]


def _quantised(src: Value, row: int, size: int) -> Stored:
    """Rows of `size` elements along dim `row` as codes and scales: `quantise_rows` as ops."""
    t = from_mlir(src).with_dtype("f32")
    x = _converted(src, "f32")
    split = t.shape[row] != size
    if split:  # heads become a dim of their own
        t = t.with_shape([*t.shape[:row], t.shape[row] / size, size, *t.shape[row + 1 :]])
        x = build(Reshape, [x], results=[t]).results[0]
    along = row + split
    kept = [d for d in range(t.rank) if d != along]

    def full(value: float, like: TensorType) -> Any:
        return build(Full, [], {"value": repr(value)}, results=[like]).results[0]

    most = build(Reduce, [build(ew.Abs, [x]).results[0]], {"how": "max", "dims": [along]}).results[0]
    narrow = from_mlir(most)
    scale = build(ew.Div, [most, full(_MOST, narrow)]).results[0]
    empty = build(ew.Eq, [scale, full(0.0, narrow)]).results[0]
    by = build(ew.Select, [empty, full(1.0, narrow), scale]).results[0]
    q = build(ew.Div, [x, build(Broadcast, [by], {"dims": kept}, results=[t]).results[0]]).results[0]
    q = build(ew.Round, [q]).results[0]
    q = build(ew.Maximum, [q, full(-_MOST, t)]).results[0]
    q = _converted(build(ew.Minimum, [q, full(_MOST, t)]).results[0], "i8")
    if split:
        q = build(Reshape, [q], results=[from_mlir(src).with_dtype("i8")]).results[0]
    scales = build(Reshape, [scale], results=[_scales(from_mlir(src), row, size)]).results[0]
    return Stored(q, scales, row, size)


def stored_as(wanted: str, rows: Value) -> Stored:
    """Rows [..., depth] in a format: int8 codes with a scale [..., 1] each, or elements of a dtype."""
    t = from_mlir(rows)
    return _quantised(rows, t.rank - 1, int(t.shape[-1])) if wanted == "int8" else Stored(_converted(rows, FORMATS[wanted]))


def quantise_rows(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (int8) of rows, and their scales (f32): an entry for each `size` elements along the last dim, whose largest becomes 127
    or -127. A row that holds infinities or NaN has a scale that is neither number nor zero, so that it reads as NaN."""
    rows = x.float().reshape(*x.shape[:-1], x.shape[-1] // size, size)
    scale = rows.abs().amax(-1) / _MOST if rows.numel() else rows.new_zeros(rows.shape[:-1])
    by = torch.where(scale == 0, 1.0, scale)[..., None]
    codes = (rows / by).round().clamp(-_MOST, _MOST).nan_to_num(0.0)
    return codes.to(torch.int8).reshape(x.shape), scale


def _attended(r: _Read, rows: Stored) -> Any:
    """The operand of attention, in a form that it decodes."""
    values, scale, row = rows.values, rows.scale, rows.row
    for view in r.views:
        t = from_mlir(view.results[0])
        values = _viewed(view, values, t.shape)
        if scale is not None:
            new = _row_behind(view, row, rows.size)
            assert new is not None
            scale = _viewed(view, scale, _scales(t, new, rows.size).shape, row, rows.size)
            row = new
    return Stored(values, scale).decoded(from_mlir(r.op.operands[r.operand]).dtype.name)


def _viewed(view: Any, x: Any, shape: Sequence[sympy.Expr], row: int = 0, size: int = 1) -> Any:
    """A view of something else, whose dim `row` has an element where the view's operand has `size`."""
    if isinstance(view, Transpose):
        return build(Transpose, [x], {"perm": attr(view, "perm")}).results[0]
    out, attributes = [from_mlir(x).with_shape(shape)], None
    if isinstance(view, Broadcast):
        attributes = {"dims": attr(view, "dims")}
    elif isinstance(view, Slice):
        starts = [s / size if d == row else s for d, s in enumerate(exprs(attr(view, "starts")))]
        attributes = {"starts": starts, "steps": attr(view, "steps")}
    return build(type(view), [x], attributes, results=out).results[0]


def _widened(rows: Stored, t: TensorType) -> Any:
    """Content as it was before, for readers that know nothing else."""
    if rows.scale is None:
        return _converted(rows.values, t.dtype.name)
    return written_out(build(Dequantize, [rows.values, rows.scale], {"code": "i8", "dtype": t.dtype.name}))


def _return_more(block: Block, states: dict[str, Any]) -> None:
    """Returns more values, as the new content of states, and gives the function the type that it has by now."""
    end = list(block.operations)[-1]
    updates, values = updates_of(block), [*end.operands, *states.values()]
    updates |= dict(zip(range(len(end.operands), len(values)), states, strict=True))
    with ir.InsertionPoint(end.operation), end.location:
        func.ReturnOp(values)
    end.operation.erase()
    types = ir.FunctionType.get([v.type for v in block.arguments], [v.type for v in values])
    block.owner.attributes["function_type"] = ir.TypeAttr.get(types)
    mark_results(block, updates)
