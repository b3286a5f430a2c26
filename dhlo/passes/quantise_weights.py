"""Quantises the constants of products, in the formats that the user asks for (`Options.weights`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import torch

from dhlo.errors import CompileError
from dhlo.ir.coded import takes_codes
from dhlo.ir.dialect import Kind, Op, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import ArgReduce
from dhlo.ir.ops.control import Yield
from dhlo.ir.ops.lookup import Sort, TopK
from dhlo.ir.ops.movement import Take, Transpose, Weight
from dhlo.ir.ops.quantised import CODES, E2M1, Dequantize, dequantize
from dhlo.ir.types import DTYPES, TensorType, from_mlir
from dhlo.passes.cse import erase_dead
from dhlo.passes.find_dequantize import constant_of

__all__ = ["Format", "check_weights", "quantise", "quantise_weights", "quantised_weights", "request_weights", "without_report"]

Weights = dict[str, torch.Tensor]

_REQUEST, _REPORT = "dhlo.weights", "dhlo.quantised"  # attributes of the module
_UNMATCHED, _NAMES = "dhlo.weights_unmatched", "dhlo.weights_found"
_CHUNK: Final = 1 << 22  # elements whose error is found at a time
_SEARCHED: Final = 1 << 16  # elements whose scales are searched for at a time: in several passes, so that they stay in a cache
_PLAIN: Final = "f32"  # leaves a weight as it is
_KEEPS: Final = ("f32", "f16", "bf16")  # dtypes of weights that may be quantised


@dataclass(frozen=True)
class Format:
    """How weights are stored: codes, and elements along K that share a scale (0: all of them; None: there is none)."""

    name: str
    code: str
    group: int | None

    @staticmethod
    def parse(text: str) -> Format:
        """Of "int4:64", "int8", "int8:128", "f8e4m3fn", "f8e5m2", "mxfp4", "bf16" or "f16". Raises CompileError."""
        name, _, group = text.strip().partition(":")
        code, usual = _FORMATS.get(name, ("", None))
        number = group.isascii() and group.isdigit()
        if not code or group and (usual is None or name == "mxfp4" or not number or int(group) < 2):
            raise CompileError(
                f"weights: there is no format '{text}'", hint=f"formats are {', '.join(_FORMATS)}, with :GROUP for those of ints"
            )
        return Format(text.strip(), code, int(group) if group else usual)

    def group_of(self, k: int) -> int:
        """Elements that share a scale, of k along K: the largest divisor of k up to the group's size, or all where none is near."""
        if not self.group or k <= self.group:
            return k
        best = next(g for g in range(self.group, 0, -1) if k % g == 0)
        return best if best * 4 >= self.group else k


_FORMATS: Final[dict[str, tuple[str, int | None]]] = {
    "int4": ("i4", 64),
    "int8": ("i8", 0),
    "f8e4m3fn": ("f8e4m3fn", 0),
    "f8e5m2": ("f8e5m2", 0),
    "mxfp4": ("f4e2m1fn", 32),
    "bf16": ("bf16", None),
    "f16": ("f16", None),
}


def request_weights(modules: Collection[Module], wanted: str | Mapping[str, str | float]) -> None:
    """Writes down, for the pass on each entry of a model, what the user asks for: a format for all products, or formats by name or
    pattern of weights, "default" for the others, and "max_error", the relative error from which a weight is left as it is. Raises
    CompileError."""
    given: Mapping[str, str | float] = {"default": wanted} if isinstance(wanted, str) else wanted
    if not given or given == {"default": ""}:
        return
    if not isinstance(given, Mapping) or not all(isinstance(pattern, str) for pattern in given):
        raise CompileError(f"weights: a format, or formats by names, not {wanted!r}", hint='weights={"lm_head*": "int8"}, say')
    pairs = []
    for pattern, value in given.items():
        if pattern == "max_error":
            try:
                least = float(value)
            except (TypeError, ValueError):
                raise CompileError(f"weights: max_error is a number, not '{value}'") from None
            if not least >= 0:  # nor is it NaN
                raise CompileError(f"weights: max_error is 0 or more, not {value}")
        elif value != _PLAIN:
            Format.parse(str(value))
        pairs.append((pattern, str(value)))
    for module in modules:
        with module.context:
            texts = [ir.ArrayAttr.get([ir.StringAttr.get(x) for x in pair]) for pair in pairs]
            module.operation.attributes[_REQUEST] = ir.ArrayAttr.get(texts)


def check_weights(modules: Iterable[Module]) -> None:
    """Raises CompileError for a pattern of the request that no weight of any entry matched."""
    attributes = [m.operation.attributes for m in modules]
    left = [{ir.StringAttr(p).value: None for p in ir.ArrayAttr(a[_UNMATCHED])} if _UNMATCHED in a else {} for a in attributes]
    for pattern in left[0]:
        if all(pattern in found for found in left):
            names = sorted({ir.StringAttr(n).value for a in attributes for n in ir.ArrayAttr(a[_NAMES])})
            raise CompileError(
                f"weights: no product has a constant called '{pattern}'", hint=f"there are {', '.join(names[:8]) or 'none'}"
            )


def without_report(module: Module) -> str:
    """The module's text without what the pass found out about values."""
    copy = module.operation.clone()
    if _REPORT in copy.operation.attributes:
        del copy.operation.attributes[_REPORT]
    return str(copy)


def quantised_weights(module: Module) -> list[dict[str, Any]]:
    """What the pass did, a row a weight: name, format ("f32" if it was left as it is), error (relative, in the Frobenius norm), and
    bytes before and after."""
    attributes = module.operation.attributes
    rows = ir.ArrayAttr(attributes[_REPORT]) if _REPORT in attributes else []
    return [{e.name: e.attr.value for e in ir.DictAttr(row)} for row in rows]


def quantise_weights(module: Module, weights: Weights) -> None:
    """Makes `dequantize` of the constants of products if the module asks for it: rounded to nearest, with the scales of least
    squared error. Lookups in the same tables read the codes, too. Patterns that no weight matches are left for `check_weights`."""
    if _REQUEST not in module.operation.attributes:
        return
    asked = [[ir.StringAttr(x).value for x in ir.ArrayAttr(pair)] for pair in ir.ArrayAttr(module.operation.attributes[_REQUEST])]
    wanted = dict(asked)
    limit = float(wanted.pop("max_error", math.inf))
    default = wanted.pop("default", _PLAIN)
    matched: set[str] = set()
    rows = []
    found = list(_constants(module, weights))
    for c in found:
        pattern = next((p for p in wanted if fnmatchcase(c.name, p)), None)
        matched |= {p for p in wanted if fnmatchcase(c.name, p)}
        text = (_PLAIN if c.routes else default) if pattern is None else wanted[pattern]
        rows.append(_rewrite(c, None if text == _PLAIN else Format.parse(text), limit, weights))
    missing = [p for p in wanted if p not in matched]
    if missing and weights:
        module.operation.attributes[_UNMATCHED] = ir.ArrayAttr.get([ir.StringAttr.get(p) for p in missing])
        module.operation.attributes[_NAMES] = ir.ArrayAttr.get([ir.StringAttr.get(c.name) for c in found])
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            erase_dead(block)
    module.operation.attributes[_REPORT] = ir.ArrayAttr.get([ir.DictAttr.get(r) for r in rows if r])


@dataclass(eq=False)
class _Constant:
    """A constant right side of products: its value before transposes, and the dim along which products add up; or weights of
    convolutions, which add up along all dims but the first (None). `routes`: a product with it does no more than choose."""

    value: Any
    name: str
    data: torch.Tensor
    depth: int | None
    routes: bool


def _constants(module: Module, weights: Weights) -> Iterator[_Constant]:
    """Each constant that products read, once."""
    seen: set[Any] = set()
    memo: dict[Any, torch.Tensor | None] = {}
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            for op in list(_walk(block)):
                if not takes_codes(op, 1):
                    continue
                v, dim = op.operands[1], from_mlir(op.operands[1]).rank - 2
                sums_all = op.kind is Kind.CONVOLUTION
                while isinstance(view := defining(v), ew.Convert if sums_all else (Transpose, ew.Convert)):
                    dim = attr(view, "perm")[dim] if isinstance(view, Transpose) else dim
                    v = view.operands[0]
                name = _name(v)
                if v in seen or name is None or from_mlir(v).dtype.name not in _KEEPS:
                    continue
                data = constant_of(v, weights, memo)
                if data is not None and data.numel():
                    seen.add(v)
                    yield _Constant(v, name, data, None if sums_all else dim, _routes(op))


def _routes(op: Op) -> bool:
    """Whether an op is a product with fewer columns than it adds up whose results, through elementwise operations and reductions,
    only decide what is chosen: a router of a mixture of experts. Its weights are few, and an error of them isn't small: it is
    another expert."""
    if op.kind is not Kind.MATMUL:
        return False
    k, n = from_mlir(op.operands[1]).shape[-2:]
    if not (k.is_Integer and n.is_Integer and n < k):
        return False
    todo, seen, chooses = [op.results[0]], set[Any](), False
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        for use in v.uses:
            user: Any = use.owner.operation.opview
            if isinstance(user, (TopK, Sort, ArgReduce)):
                chooses = True
            elif isinstance(user, Take) and use.operand_number == 0 or isinstance(user, Yield) or not list(user.results):
                continue  # weights of what has been chosen; an output
            elif user.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION):
                todo += user.results
            else:
                return False
    return chooses


def _walk(block: Any) -> Iterator[Any]:
    for op in block.operations:
        yield op
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _walk(inner)


def _name(v: Value) -> str | None:
    """Of the largest weight that a value is made of."""
    found: list[tuple[int, str]] = []
    todo, seen = [v], set()
    while todo:
        x = todo.pop()
        op = defining(x)
        if op is None or x in seen:
            continue
        seen.add(x)
        if isinstance(op, Weight):
            found.append((-int(from_mlir(x).numel), attr(op, "name_")))
        todo += list(op.operands)
    return min(found)[1] if found else None


def _rewrite(c: _Constant, wanted: Format | None, limit: float, weights: Weights) -> dict[str, Any]:
    """Replaces a constant if the format is smaller and its error is allowed; the row of the report."""
    t = from_mlir(c.value)
    before = c.data.numel() * c.data.element_size()
    error, after, used = 0.0, before, _PLAIN
    if c.depth is None and wanted is not None and wanted.code == "f4e2m1fn":
        wanted = None  # convolutions have no form of it
    if wanted is not None:
        if c.depth is None:
            q, *parameters = _quantise_kernel(c.data, wanted)
        else:
            q, *parameters = quantise(c.data, wanted, c.depth)
        error = relative_error(c.data, q, wanted.code, parameters)
        bits = CODES[wanted.code][1] if wanted.code in CODES else q.element_size() * 8
        after = q.numel() * bits // 8 + sum(p.numel() * p.element_size() for p in parameters)
        if math.isfinite(error) and error <= limit and after < before:
            used = wanted.name
            _replace(c, wanted.code, q, parameters, t, weights)
        else:
            after = before
        error = error if math.isfinite(error) else 1.0  # of which JSON has no form
    i64, f64 = ir.IntegerType.get_signless(64), ir.F64Type.get()
    return {
        "name": ir.StringAttr.get(c.name),
        "format": ir.StringAttr.get(used),
        "error": ir.FloatAttr.get(f64, float(f"{error:.3g}"), ir.Location.unknown()),
        "before": ir.IntegerAttr.get(i64, before),
        "after": ir.IntegerAttr.get(i64, after),
    }


def _replace(c: _Constant, code: str, q: torch.Tensor, parameters: Sequence[torch.Tensor], t: TensorType, weights: Weights) -> None:
    op = defining(c.value)
    with ir.InsertionPoint.after(op.operation), op.location:
        operands = []
        for suffix, data in zip(("codes", "scale"), (q, *parameters), strict=False):
            name = next(n for k in range(len(weights) + 1) if (n := f"{c.name}.{suffix}{k or ''}") not in weights)
            weights[name] = data
            dtype = next(d for d in DTYPES.values() if d.torch == data.dtype)
            operands.append(build(Weight, [], {"name_": name}, results=[TensorType.of(dtype, list(data.shape))]).results[0])
        if code in CODES:
            new = build(Dequantize, operands, {"code": code, "dtype": t.dtype.name}).results[0]
        else:
            new = build(ew.Convert, operands, results=[t]).results[0]
    for use in list(c.value.uses):
        if _quantises(use):
            use.owner.operation.operands[use.operand_number] = new


def _quantises(use: Any) -> bool:
    """Is this a use by products alone, as their right side, or by a lookup in the table?"""
    op = use.owner.operation.opview
    if isinstance(op, (Transpose, ew.Convert)):
        return all(_quantises(u) for u in op.results[0].uses)
    return takes_codes(op, use.operand_number) or isinstance(op, Take) and use.operand_number == 0


# ------------------------------------------------------------------------------------------------------------ numbers
def relative_error(w: torch.Tensor, q: torch.Tensor, code: str, parameters: Sequence[torch.Tensor]) -> float:
    """Of what codes stand for, in the Frobenius norm, against w of the same shape; some rows at a time, as f64 takes room. Infinite
    or NaN where numbers are, or don't fit the format."""
    rows = w.shape[0]
    blocks = [rows // p.shape[0] for p in parameters]
    unit = math.lcm(*(b for b, p in zip(blocks, parameters, strict=True) if p.shape[0] > 1))
    step = -(-max(_CHUNK * rows // w.numel(), 1) // unit) * unit
    norm = off = 0.0
    for start in range(0, rows, step):
        end = min(start + step, rows)
        of = [p if p.shape[0] == 1 else p[start // b : end // b] for b, p in zip(blocks, parameters, strict=True)]
        want, part = w[start:end].double(), q[start:end]
        values = dequantize(part, code, *of) if code in CODES else part
        norm += float(want.square().sum())
        off += float((values.double() - want).square().sum())
    return math.sqrt(off / norm) if norm else 0.0


def quantise(w: torch.Tensor, how: Format, depth: int) -> list[torch.Tensor]:
    """Codes of w, and their scales if the format has any: blocks along dim `depth`, along the others an entry for each element.
    The scale is the one of several candidates, and of the least squares fit to the codes that the best of them gives, whose squared
    error is least."""
    if how.group is None:
        return [w.to(DTYPES[how.code].torch)]
    k = w.shape[depth]
    group = how.group_of(k)
    rows = w.detach().movedim(depth, -1)
    blocks = rows.reshape(*rows.shape[:-1], k // group, group)
    flat = blocks.reshape(-1, group)
    dtype = torch.bfloat16 if CODES[how.code][1] == 4 else torch.float32  # many scales, of which no more digits are needed
    step = max(_SEARCHED // group, 1)
    parts = [_search(flat[i : i + step].float(), how.code, dtype) for i in range(0, flat.shape[0], step)]
    q = torch.cat([p[0] for p in parts]).reshape(rows.shape).movedim(-1, depth).contiguous()
    scale = torch.cat([p[1] for p in parts]).reshape(blocks.shape[:-1]).movedim(-1, depth).contiguous()
    return [q, scale.to(dtype)]


def _quantise_kernel(w: torch.Tensor, how: Format) -> list[torch.Tensor]:
    """Codes of a convolution's weights, with a scale for each output channel if the format has any."""
    out = quantise(w.reshape(w.shape[0], -1), replace(how, group=None if how.group is None else 0), 1)
    return [out[0].reshape(w.shape), *(p.reshape(-1, *[1] * (w.dim() - 1)) for p in out[1:])]


def _search(w: torch.Tensor, code: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales (f32, numbers of `dtype`) of rows with a scale each."""
    # By a power of two for each row, so that squares of errors neither overflow nor vanish.
    unit = torch.exp2(-torch.floor(torch.log2(w.abs().amax(1).clamp(min=1e-30))))
    near = w * unit[:, None]
    q, off = torch.empty_like(w), torch.empty_like(w)
    best, best_scale = torch.full([w.shape[0]], math.inf), torch.zeros(w.shape[0])

    def round_by(scale: torch.Tensor) -> torch.Tensor:
        """Fills q with the codes' values; what each is worth in `near`."""
        worth = (scale * unit)[:, None]
        _ROUND[code](torch.div(near, torch.where(worth == 0, 1.0, worth), out=q))
        return worth

    def attempt(scale: torch.Tensor) -> None:
        nonlocal best_scale, best
        scale = scale.to(dtype).float()
        worth = round_by(scale)
        error = torch.mul(q, worth, out=off).sub_(near).square_().sum(1)
        better = error < best
        best = torch.where(better, error, best)
        best_scale = torch.where(better, scale, best_scale)

    for scale in _candidates(w, code):
        attempt(scale)
    round_by(best_scale)
    if code != "f4e2m1fn":  # whose scales are powers of two
        square, product = torch.mul(q, q, out=off).sum(1), (q * w).sum(1)
        attempt(torch.where(square > 0, product / square.clamp(min=1e-30), best_scale))
        round_by(best_scale)
    return _coded(q.masked_fill_(~best.isfinite()[:, None], 0), code), best_scale


def _candidates(w: torch.Tensor, code: str) -> Iterator[torch.Tensor]:
    most = w.abs().amax(1)
    if code == "f4e2m1fn":
        exponent = torch.floor(torch.log2(most.clamp(min=2.0**-120))) - 2  # OCP's: the largest element keeps its binade
        yield from (torch.where(most > 0, torch.exp2(exponent + k), 1.0) for k in (0, 1, -1))
    elif code.startswith("f8"):
        top = torch.finfo(DTYPES[{"f8e4m3fn": "f8E4M3FN", "f8e5m2": "f8E5M2"}[code]].torch).max
        yield from (most / (top * a) for a in (1.0, 0.875, 0.75, 0.625))
    else:
        low, high = (-8, 7) if code == "i4" else (-128, 127)
        extreme = w.gather(1, w.abs().argmax(1, keepdim=True))[:, 0]
        for a in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7) if code == "i4" else (1.0, 0.95, 0.9):
            yield a * most / high
            yield a * extreme / low  # the element of largest magnitude takes the code that has no opposite


def _round_to(dtype: torch.dtype) -> Callable[[torch.Tensor], object]:
    top = torch.finfo(dtype).max
    return lambda x: x.copy_(x.clamp_(-top, top).to(dtype))


def _round_to_e2m1(x: torch.Tensor) -> None:
    middles = (E2M1[1:] + E2M1[:-1]) / 2
    x.copy_(E2M1[torch.bucketize(x.abs(), middles)].copysign_(x))


_ROUND: Final[dict[str, Callable[[torch.Tensor], object]]] = {
    "i4": lambda x: x.round_().clamp_(-8, 7),
    "i8": lambda x: x.round_().clamp_(-128, 127),
    "f8e4m3fn": _round_to(torch.float8_e4m3fn),
    "f8e5m2": _round_to(torch.float8_e5m2),
    "f4e2m1fn": _round_to_e2m1,
}
"""Replaces f32 numbers by the nearest values of a code."""


def _coded(values: torch.Tensor, code: str) -> torch.Tensor:
    """The codes of values that a code has."""
    if code == "f4e2m1fn":
        return (torch.bucketize(values.abs(), E2M1) + 8 * values.signbit()).to(torch.uint8)
    if code.startswith("f8"):
        return values.to(torch.float8_e4m3fn if code == "f8e4m3fn" else torch.float8_e5m2).view(torch.uint8)
    return values.to(torch.int8)
