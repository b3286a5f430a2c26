"""Finds the arithmetic that turns codes of quantised weights to floats, and makes one `dhlo.dequantize` of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Movement, Pad, Take, Transpose, Weight, number
from dhlo.ir.ops.quantised import CODES, E2M1, Dequantize, along
from dhlo.ir.types import DTYPES, DType, TensorType, from_mlir
from dhlo.passes.cse import erase_dead

__all__ = ["blocks_of", "constant_of", "find_dequantize", "narrowed"]

Weights = dict[str, torch.Tensor]

_LEAST: Final = 1024  # codes that are worth an op
_LARGE: Final = 1 << 20  # elements of constants that aren't kept
_DIGITS: Final = {"f16": 11, "bf16": 8, "f32": 24}  # integers up to 2^digits are exact
_FLOAT_CODES: Final = {"f8E4M3FN": "f8e4m3fn", "f8E5M2": "f8e5m2"}  # by dtype


def find_dequantize(module: Module, weights: Weights) -> None:
    """Replaces what computes floats from constant codes by `dequantize`: integers of 8 bits or unpacked from wider ones, and floats
    of 8 bits, that the program converts, subtracts a zero point from and multiplies by scales, in any grouping.

    The integer arithmetic is evaluated, so how codes are packed doesn't matter. Without data (text input) nothing is found.
    """
    finder = _Finder(weights)
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            finder.scan(block)
            if finder.rewrite():
                erase_dead(block)


@dataclass(frozen=True, eq=False)
class _Coded:
    """What a value stands for: (q - zero) * scale, element by element, rounded to its dtype.

    q        codes of the form `code`, or integers as long as the value is one, where the value has them
    name     the weight that the codes come from
    narrow   the integers come from 8 bits or were unpacked: they are no positions or counts
    zero, scale  blocks along q's dims, in f32 or an integer dtype
    final    the value was rounded after q became floats, so that only views may follow
    order    a dim and an order of it, in which q, zero and scale are kept: element order[i] of the value is their i-th. GPTQ's
             groups are blocks only in the order in which it took the rows
    """

    q: torch.Tensor
    name: str
    code: str | None = None
    narrow: bool = True
    zero: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    final: bool = False
    order: tuple[int, torch.Tensor] | None = None

    @property
    def has_parameters(self) -> bool:
        return self.zero is not None or self.scale is not None

    @property
    def integers(self) -> torch.Tensor | None:
        """The value, where it is one of integers."""
        if self.code is not None or self.scale is not None:
            return None
        return self.back(self.q if self.zero is None else self.q - along(self.zero, self.q.shape))

    def back(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor of q's shape in the order of the value."""
        return t if self.order is None else t.index_select(self.order[0], torch.argsort(self.order[1]))

    def moved(self, f: Callable[[torch.Tensor], torch.Tensor]) -> _Coded:
        """Under a view: `f` of what each element has."""
        given = [None if p is None else f(self.back(along(p, self.q.shape))) for p in (self.zero, self.scale)]
        known = [p for p in given if p is not None]
        out = replace(self, q=f(self.back(self.q)), zero=None, scale=None, order=None)
        out = out.ordered_for(known[0]) if self.order is not None and known else out
        zero, scale = (None if p is None else out.parameter(p) for p in given)
        return replace(out, zero=zero, scale=scale)

    def parameter(self, p: torch.Tensor) -> torch.Tensor:
        """A parameter of the value as one of q: blocks, in its order."""
        if self.order is not None and p.shape[self.order[0]] > 1:
            p = p.index_select(*self.order)
        return blocks_of(p)

    def ordered_for(self, p: torch.Tensor) -> _Coded:
        """The same in an order in which the elements of p are blocks, if there is one and none has been found before."""
        order = None if self.order is not None or p.shape != self.q.shape else _order_of(p)
        if order is None:
            return self

        def sort(t: torch.Tensor | None) -> torch.Tensor | None:
            return None if t is None else blocks_of(along(t, self.q.shape).index_select(*order))

        return replace(self, q=self.q.index_select(*order), zero=sort(self.zero), scale=sort(self.scale), order=order)


def blocks_of(p: torch.Tensor) -> torch.Tensor:
    """The parameter, with one entry for each block of equal elements: the fewest blocks of one length along every dim."""
    for d in range(p.dim()):
        n = p.shape[d]
        if n > 1 and p.stride(d) == 0:
            p = p.narrow(d, 0, 1)
        elif n > 1:
            differs = (p.narrow(d, 1, n - 1) != p.narrow(d, 0, n - 1)).movedim(d, 0).reshape(n - 1, -1).any(1)
            step = math.gcd(n, *(differs.nonzero().flatten() + 1).tolist())
            p = p[(slice(None),) * d + (slice(None, None, step),)]
    return p


def _order_of(p: torch.Tensor) -> tuple[int, torch.Tensor] | None:
    """A dim of a matrix and an order of it in which equal slices lie together, the same number of each; None where there are as
    many kinds of slices as half of a dim."""
    for d in range(p.dim() if p.dim() == 2 else 0):
        rows = p.movedim(d, 0).double().contiguous()
        weights = torch.rand(rows.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        # A number for each row, equal where rows are: no product, whose kernels add some rows in another order than others.
        found: Any = torch.unique((rows * weights).sum(1), return_inverse=True, return_counts=True)
        _, kinds, counts = found
        if 1 < len(counts) <= len(rows) // 2 and bool((counts == counts[0]).all()):
            order = torch.argsort(kinds, stable=True)
            if blocks_of(rows[order]).shape[0] == len(counts):
                return d, order
    return None


def narrowed(p: torch.Tensor) -> torch.Tensor:
    """The same numbers in the narrowest of bf16, f16 and f32 that holds them."""
    return next((q for d in (torch.bfloat16, torch.float16) if (q := p.to(d)).float().equal(p)), p)


@dataclass
class _Finder:
    """Goes through blocks in order, and knows what each value of constants stands for."""

    weights: Weights
    coded: dict[Any, _Coded] = field(default_factory=dict)
    constants: dict[Any, torch.Tensor | None] = field(default_factory=dict)
    known: dict[Any, str] = field(default_factory=dict)  # names of tensors that stand for codes, by their memory

    def scan(self, block: Block) -> None:
        for op in block.operations:
            for region in op.operation.regions:
                for inner in region.blocks:
                    self.scan(inner)
            if len(op.results) != 1 or getattr(op, "kind", None) not in (*_PULLABLE, Kind.WEIGHT):
                continue
            if not from_mlir(op.results[0]).is_static:
                continue
            found = self._transfer(op)
            if found is not None:
                self.coded[op.results[0]] = found

    def rewrite(self) -> bool:
        """Replaces what the program reads of coded values, each where it is last a coded one; whether there was any."""
        changed = False
        for v, coded in list(self.coded.items()):
            out = from_mlir(v)
            if out.dtype.name not in _DIGITS or coded.code is None or isinstance(defining(v), Weight):
                continue
            users = [u.owner.operation.opview for u in v.uses]
            if coded.q.numel() < _LEAST and not any(getattr(u, "kind", None) is Kind.CONVOLUTION for u in users):
                continue
            if not users or all(len(u.results) == 1 and u.results[0] in self.coded for u in users):
                continue
            changed |= self._replace(v, coded, coded.code, out)
        self.coded.clear()
        self.constants.clear()
        return changed

    # ------------------------------------------------------------------------------------------------ making the op
    def _replace(self, v: Value, coded: _Coded, code: str, out: TensorType) -> bool:
        strides = coded.q.stride()
        order = sorted(range(out.rank), key=lambda d: (-strides[d], d))
        back = [order.index(d) for d in range(out.rank)]
        q = coded.q.permute(order)
        parameters = [p.permute(order) for p in _parameters(coded)]
        nbytes = q.numel() * CODES[code][1] // 8 + sum(p.numel() * p.element_size() for p in parameters)
        if nbytes >= q.numel() * out.dtype.bytes:
            return False
        op = defining(v)
        with ir.InsertionPoint(op.operation), op.location:
            name = coded.name
            operands = [
                self._weight(name, q),
                *(self._weight(f"{name}.{k}", p) for k, p in zip(("scale", "zero"), parameters, strict=False)),
            ]
            new = build(Dequantize, operands, {"code": code, "dtype": out.dtype.name}).results[0]
            if back != sorted(back):
                new = build(Transpose, [new], {"perm": back}).results[0]
            if coded.order is not None:
                dim, by = coded.order
                back_again = self._weight(f"{name}.order", torch.argsort(by))
                taken = build(Take, [new, back_again], {"dims": [dim], "at": dim, "wrap": False}).results[0]
                v.replace_all_uses_with(taken)
                self._reorder_rows(taken, new, dim, by)
                return True
        v.replace_all_uses_with(new)
        return True

    def _reorder_rows(self, v: Value, plain: Value, dim: int, by: torch.Tensor) -> None:
        """Lets products with values that were brought back from an order along a dim take them as they are, `plain`, and their rows
        in that order."""
        for use in list(v.uses):
            user = use.owner.operation.opview
            if isinstance(user, Matmul) and use.operand_number == 1 and dim == 0 and from_mlir(v).rank == 2:
                self._reorder_product(user, plain, by)
            elif isinstance(user, (Transpose, ew.Convert)):
                with ir.InsertionPoint(user.operation), user.location:
                    if isinstance(user, Transpose):
                        perm = attr(user, "perm")
                        same, to = build(Transpose, [plain], {"perm": perm}).results[0], perm.index(dim)
                    else:
                        same, to = build(ew.Convert, [plain], results=[from_mlir(user.results[0])]).results[0], dim
                self._reorder_rows(user.results[0], same, to, by)

    def _reorder_product(self, op: Any, right: Value, by: torch.Tensor) -> None:
        x = op.operands[0]
        last = from_mlir(x).rank - 1
        with ir.InsertionPoint(op.operation), op.location:
            index = self._weight("order", by)
            op.operation.operands[0] = build(Take, [x, index], {"dims": [last], "at": last, "wrap": False}).results[0]
        op.operation.operands[1] = right

    def _weight(self, name: str, data: torch.Tensor) -> Any:
        """A weight op for a tensor: under the name that it has, or under a new one."""
        own = self.weights.get(name)
        key = (data.data_ptr(), data.dtype, tuple(data.shape), data.stride())
        if own is not None and (own.data_ptr(), own.dtype, tuple(own.shape), own.stride()) == key:
            self.known.setdefault(key, name)
        if key not in self.known or self.weights[self.known[key]].data_ptr() != data.data_ptr():
            free = next(n for k in range(len(self.weights) + 1) if (n := f"{name}.{k}" if k else name) not in self.weights)
            self.known[key] = free
            self.weights[free] = data.contiguous()
            self.known.setdefault((self.weights[free].data_ptr(), data.dtype, tuple(data.shape), data.contiguous().stride()), free)
        t = TensorType.of(next(d for d in DTYPES.values() if d.torch == data.dtype), list(data.shape))
        return build(Weight, [], {"name_": self.known[key]}, results=[t]).results[0]

    # ------------------------------------------------------------------------------------------------ what ops do
    def _transfer(self, op: Any) -> _Coded | None:
        """What an op's result stands for, if it is made of codes."""
        if isinstance(op, Weight):
            return self._leaf(op)
        coded = [self.coded.get(v) for v in op.operands]
        if not any(c is not None for c in coded):
            return None
        if isinstance(op, (ew.Convert, ew.Bitcast)):
            rule = _convert if isinstance(op, ew.Convert) else _bitcast
            return rule(coded[0], from_mlir(op.operands[0]).dtype, from_mlir(op.results[0]).dtype) if coded[0] else None
        if op.kind in (Kind.MOVEMENT, Kind.GATHER):
            return self._move(op, coded)
        dtype = from_mlir(op.results[0]).dtype
        if dtype.is_int:
            return self._integers(op, coded, dtype)
        if isinstance(op, ew.Neg) and coded[0] is not None and not coded[0].final:
            return _scaled(coded[0], torch.tensor(-1.0).reshape([1] * coded[0].q.dim()), dtype)
        if not isinstance(op, (ew.Add, ew.Sub, ew.Mul, ew.Div)):
            return None
        for k in (0, 1):
            c = coded[k]
            if c is None or c.final or k == 1 and isinstance(op, (ew.Sub, ew.Div)):
                continue
            p = self._constant(op.operands[1 - k])
            if p is None:
                continue
            if p.numel() >= _LARGE:
                self.constants.clear()  # parameters spread to the codes' shape, none of which is needed again
            blocks = c.parameter(p)
            if blocks.numel() * 4 > c.q.numel():
                c = c.ordered_for(p)
                blocks = c.parameter(p)
            p = blocks.float()
            if p.numel() * 4 > c.q.numel():
                continue
            if isinstance(op, ew.Mul):
                return _scaled(c, p, dtype)
            if isinstance(op, ew.Div):
                return _scaled(c, 1 / p, dtype) if dtype.name == "f32" else None
            return _shifted(c, p if isinstance(op, ew.Sub) else -p, dtype)
        return None

    def _leaf(self, op: Any) -> _Coded | None:
        name = attr(op, "name_")
        data, dtype = self.weights.get(name), from_mlir(op.results[0]).dtype
        if data is None or not data.numel():
            return None
        data = data.detach()
        if dtype.name in _FLOAT_CODES:
            return _Coded(data.view(torch.uint8), name, _FLOAT_CODES[dtype.name])
        return _Coded(data, name, narrow=dtype.bits == 8) if dtype.is_int else None

    def _move(self, op: Any, coded: Sequence[_Coded | None]) -> _Coded | None:
        first = coded[0]
        if op.mentions():  # a part that sizes decide
            return None
        if isinstance(op, Take) and first is None:
            return self._lookup(op, coded)
        if first is None or not isinstance(op, (Movement, Concat, Take)):
            return None
        if isinstance(op, Broadcast) and from_mlir(op.results[0]).numel != first.q.numel() and first.code is not None:
            return None  # a parameter; codes are only repeated to be unpacked
        if isinstance(op, Take):
            rest = [r for v in list(op.operands)[1:] if (r := self._constant(v)) is not None]
            if len(rest) + 1 < len(op.operands) or not op.in_range([first.q, *rest]):
                return None
            return first.moved(lambda t: op.reference([t, *rest], _static)[0])
        if len(coded) == 1:
            return None if isinstance(op, Pad) else first.moved(lambda t: op.reference([t], _static)[0])
        parts = [c for c in coded if c is not None]  # joined
        if len(parts) < len(coded) or any(c.code != first.code or c.has_parameters or c.final or c.order for c in parts):
            return None
        return replace(first, q=op.reference([c.q for c in parts], _static)[0], narrow=all(c.narrow for c in parts))

    def _lookup(self, op: Any, coded: Sequence[_Coded | None]) -> _Coded | None:
        """A table of the values of 4-bit floats, by codes."""
        table = self._constant(op.operands[0])
        index = coded[1] if len(coded) == 2 else None
        if table is None or index is None or index.zero is not None or index.code is not None or table.shape != (16,):
            return None
        values = torch.cat([E2M1, -E2M1])
        if not table.float().equal(values) or not table.is_floating_point() or int(index.q.min()) < 0 or int(index.q.max()) > 15:
            return None
        return replace(index, q=index.q.to(torch.uint8), code="f4e2m1fn", narrow=True)

    def _integers(self, op: Any, coded: Sequence[_Coded | None], dtype: DType) -> _Coded | None:
        """Arithmetic on integers is done now; but zero points of blocks are kept apart where the differences take more bits."""
        values = [self._constant(v) if c is None else c.integers for c, v in zip(coded, op.operands, strict=True)]
        if any(v is None for v in values):
            return None
        first = next(c for c in coded if c is not None)
        unpacked = isinstance(op, (ew.ShiftRight, ew.And))
        q = op.reference(values, _static)[0]
        out = replace(first, q=q, zero=None, order=None, narrow=unpacked or any(c.narrow for c in coded if c is not None))
        shift = 1 if coded[0] is first else 0
        shifts = isinstance(op, ew.Add) or isinstance(op, ew.Sub) and shift == 1
        if not shifts or dtype.bits < 16:
            return out
        if _bits(q) <= _bits(first.q):
            return out
        zero = first.parameter(values[shift])  # type: ignore[arg-type]
        if zero.numel() * 8 > q.numel():
            first = first.ordered_for(values[shift])  # type: ignore[arg-type]
            zero = first.parameter(values[shift])  # type: ignore[arg-type]
        if zero.numel() * 8 > q.numel():
            return out
        zero = zero if isinstance(op, ew.Sub) else -zero
        if first.zero is not None:
            zero = _together(torch.add, first.zero, zero, q.shape)
        return replace(first, q=first.q.to(dtype.torch), zero=zero)

    def _constant(self, v: Value) -> torch.Tensor | None:
        return constant_of(v, self.weights, self.constants)


def constant_of(v: Value, weights: Weights, known: dict[Any, torch.Tensor | None]) -> torch.Tensor | None:
    """The value of what weights and constants alone make, None for others; `known` keeps them. However long the way there is."""
    todo = [v]
    while todo:
        made = todo[-1]
        missing = [] if made in known else [x for x in _operands(made) if x not in known]
        if not missing:
            todo.pop()
            if made not in known:
                known[made] = _evaluate(made, weights, known)
        todo += missing
    return known[v]


def _operands(v: Value) -> list[Value]:
    """What v is computed of, if it is and has a static size."""
    op = defining(v)
    if op is None or isinstance(op, (Weight, Full)) or not from_mlir(v).is_static or op.mentions():
        return []
    return list(op.operands) if op.kind in (*_PULLABLE, Kind.REDUCTION) and len(op.results) == 1 else []


def _evaluate(v: Value, weights: Weights, known: dict[Any, torch.Tensor | None]) -> torch.Tensor | None:
    """The same, where the value's operands are known."""
    op, t = defining(v), from_mlir(v)
    if op is None or not t.is_static:
        return None
    if isinstance(op, Weight):
        found = weights.get(attr(op, "name_"))
        return None if found is None else found.detach()
    if isinstance(op, Full):
        value = number(attr(op, "value"))
        shape = [int(s) for s in t.shape]
        return None if value is None else torch.full([1] * t.rank, value, dtype=t.dtype.torch).expand(shape)
    operands = _operands(v)
    if not operands and not (isinstance(op, Iota) and not op.mentions()):
        return None
    args = [a for x in operands if (a := known[x]) is not None]
    if len(args) < len(operands):
        return None
    if isinstance(op, Take) and not op.in_range(args):
        return None
    out: torch.Tensor = op.reference(args, _static)[0]
    return out


_PULLABLE = tuple(k for k in Kind if k.pullable)


def _static(e: Any, exact: bool = False) -> int:
    return int(e)


def _convert(c: _Coded, src: DType, dst: DType) -> _Coded | None:
    if dst.is_int:
        if not src.is_int or c.zero is not None and dst.bits < src.bits:
            return None
        return replace(c, q=c.q.to(dst.torch))
    if dst.name not in _DIGITS or c.final:
        return None
    if src.is_int:
        code = _integer_code(c.q) if c.narrow and _exact(c, dst) else None
        return None if code is None else replace(c, q=c.q.to(DTYPES[CODES[code][0]].torch), code=code)
    if src.bits < dst.bits or c.scale is None and _exact(c, dst):
        return c
    return replace(c, final=True)  # one rounding of what was computed in f32


def _bitcast(c: _Coded, src: DType, dst: DType) -> _Coded | None:
    if c.zero is not None or c.scale is not None or c.code is not None or dst.name not in _FLOAT_CODES:
        return None
    return replace(c, q=c.q.contiguous().view(torch.uint8), code=_FLOAT_CODES[dst.name], narrow=True)


def _exact(c: _Coded, dtype: DType) -> bool:
    """Are all differences of codes and zero points values of the dtype?"""
    if c.code is not None and not c.code.startswith(("i", "ui")):
        return c.zero is None
    if c.zero is not None and c.zero.is_floating_point() and bool((c.zero != c.zero.round()).any()):
        return False
    most = max(abs(int(c.q.min())), abs(int(c.q.max()))) + (0 if c.zero is None else int(c.zero.abs().max()))
    return most <= 1 << _DIGITS[dtype.name]


def _scaled(c: _Coded, p: torch.Tensor, dtype: DType) -> _Coded | None:
    """Times p. A product in a narrow dtype is rounded, which only one of exact factors is as dequantize does it."""
    if dtype.name == "f32":
        return replace(c, scale=p if c.scale is None else _together(torch.mul, c.scale, p, c.q.shape))
    return replace(c, scale=p, final=True) if c.scale is None else None


def _shifted(c: _Coded, p: torch.Tensor, dtype: DType) -> _Coded | None:
    """Minus p; of a scaled value, that is minus p / scale before."""
    if c.scale is None:
        if c.zero is not None:
            p = _together(torch.add, c.zero.float(), p, c.q.shape)
        shifted = replace(c, zero=p)
        return shifted if dtype.name == "f32" and c.zero is None or _exact(shifted, dtype) else None
    if dtype.name != "f32":
        return None
    zero = _together(torch.div, p, c.scale, c.q.shape)
    if not zero.isfinite().all():
        return None
    return replace(c, zero=zero if c.zero is None else _together(torch.add, c.zero.float(), zero, c.q.shape))


def _together(f: Any, a: torch.Tensor, b: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """f of two parameters, in blocks that divide those of both."""
    common = [math.lcm(m, n) if size % math.lcm(m, n) == 0 else size for m, n, size in zip(a.shape, b.shape, shape, strict=True)]
    out: torch.Tensor = f(along(a, common), along(b, common))
    return out


def _parameters(c: _Coded) -> list[torch.Tensor]:
    """Scale and zero point, as far as there are such; of one type if there are both."""
    scale = torch.ones([1] * c.q.dim()) if c.scale is None else c.scale.float()
    if c.zero is None or not c.zero.any():
        return [] if c.scale is None else [narrowed(scale)]
    pair = (_together(lambda a, b, k=k: (a, b)[k], scale, c.zero.float(), c.q.shape) for k in (0, 1))
    return list(narrowed(torch.stack(list(pair))).unbind())


def _bits(q: torch.Tensor) -> int:
    """Of the least signed or unsigned integers that hold all of q."""
    lo, hi = int(q.min()), int(q.max())
    return hi.bit_length() if lo >= 0 else max((-lo - 1).bit_length(), hi.bit_length()) + 1


def _integer_code(q: torch.Tensor) -> str | None:
    """The narrowest code for integers."""
    lo, hi = int(q.min()), int(q.max())
    for code, least, most in (("i4", -8, 7), ("ui4", 0, 15), ("i8", -128, 127), ("ui8", 0, 255)):
        if least <= lo and hi <= most:
            return code
    return None
