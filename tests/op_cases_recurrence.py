"""Cases of the state of packed sequences, for tests/test_ops.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Reshape, Slice, Transpose
from dhlo.ir.ops.recurrence import Recurrence, recurrence
from dhlo.ir.types import DType, TensorType, from_mlir
from tests.programs import Part, plain, t, within

__all__ = ["CASES"]

CELLS, TOKENS = 5, "n + m + 1"


def _cells(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return torch.randperm(CELLS, generator=g)[: shape[0]].to(d.torch)


def _before(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """How many tokens sequences have had: of some none."""
    return torch.randint(0, 2, shape, generator=g).to(d.torch) * 7


def _of(cls: Any, *v: Any) -> Any:
    return build(cls, v).results[0]


def _to(x: Any, dims: Sequence[int], like: Any) -> Any:
    return build(Broadcast, [x], {"dims": list(dims)}, results=[from_mlir(like)]).results[0]


def _sum(x: Any, dim: int) -> Any:
    return build(Reduce, [x], {"how": "sum", "dims": [dim]}).results[0]


def case(
    state: TensorType,
    rows: Sequence[TensorType],
    others: Sequence[TensorType],
    known: Sequence[TensorType],
    body: Callable[..., Sequence[Any]],
    label: str,
    tol: float = 1e-5,
) -> Part:
    """Sequences of n tokens, of one, and of m."""
    some = within(-1, 1)
    args: list[Any] = [(state, some), (t("i32", 3), _cells), (t("i32", 3), _before), (t("f32", "n"), plain), (t("f32", "m"), plain)]
    args += [(x, some) for x in (*rows, *others)]

    def ops(states: Any, cells: Any, before: Any, _: Any, __: Any, *more: Any) -> list[Any]:
        def numbers(*values: str) -> Any:
            each = [build(Full, [], {"value": x}, results=[t("i32", 1)]).results[0] for x in values]
            return build(Concat, each, {"dim": 0}).results[0]

        starts, lengths = numbers("0", "n", "n + 1", TOKENS), _of(ew.Add, before, numbers("n", "1", "m"))
        return list(recurrence([states, cells, starts, lengths, *more], len(rows), known, body).results)

    each = {"f32": tol, "f64": tol, "bf16": 4e-2, "f16": 1e-2}
    return Part(args, ops, tol=each, atol=each[state.dtype.name], label=f"recurrence: {label}")


def selective(dtype: str, heads: int, depth: int, states: int) -> Part:
    """s = a s + x b, y = s c, the state's own dims the other way round (Mamba 2)."""

    def body(s: Any, a: Any, x: Any, b: Any, c: Any) -> list[Any]:
        kept = _of(ew.Mul, s, _to(a, [0, 1], s))
        s = _of(ew.Add, kept, _of(ew.Mul, _to(x, [0, 1, 3], s), _to(b, [0, 2], s)))
        return [s, _sum(_of(ew.Mul, s, _to(c, [0, 2], s)), 2)]

    rows = [t(dtype, TOKENS, heads), t(dtype, TOKENS, heads, depth), t(dtype, TOKENS, states), t(dtype, TOKENS, states)]
    known = [t(dtype, TOKENS, heads, depth)]
    return case(t(dtype, CELLS, heads, states, depth), rows, [], known, body, f"selective {dtype} {heads} {depth} {states}", 1e-4)


def transposed(depth: int, states: int) -> Part:
    """The same with the dim that is reduced last, and what was known before the token besides."""

    def body(s: Any, a: Any, b: Any, w: Any) -> list[Any]:
        old = _sum(s, 2)
        s = _of(ew.Add, _of(ew.Mul, s, _to(a, [0, 1], s)), _of(ew.Mul, _to(b, [0, 2], s), _to(w, [1, 2], s)))
        return [s, _sum(s, 2), old]

    rows = [t("f32", TOKENS, depth), t("f32", TOKENS, states)]
    known = [t("f32", TOKENS, depth)] * 2
    state = t("f32", CELLS, depth, states)
    return case(state, rows, [t("f32", depth, states)], known, body, f"transposed {depth} {states}", 1e-4)


def delta(heads: int, keys: int, values: int) -> Part:
    """s += k (v - s k) (gated delta rule)."""

    def body(s: Any, g: Any, k: Any, v: Any, q: Any) -> list[Any]:
        s = _of(ew.Mul, s, _to(g, [0, 1], s))
        seen = _sum(_of(ew.Mul, s, _to(k, [0, 1, 2], s)), 2)
        s = _of(ew.Add, s, _of(ew.Mul, _to(k, [0, 1, 2], s), _to(_of(ew.Sub, v, seen), [0, 1, 3], s)))
        return [s, _sum(_of(ew.Mul, s, _to(q, [0, 1, 2], s)), 2)]

    rows = [t("f32", TOKENS, heads), *(t("f32", TOKENS, heads, n) for n in (keys, values, keys))]
    state = t("f32", CELLS, heads, keys, values)
    return case(state, rows, [], [t("f32", TOKENS, heads, values)], body, f"delta {heads} {keys} {values}", 2e-3)


def shift(dtype: str, width: int, channels: int, last: bool) -> Part:
    """A register that is moved on by a token, and weighed (a causal convolution), its dims in either order."""

    def body(s: Any, x: Any, w: Any) -> list[Any]:
        at, dims = (2, [0, 1]) if last else (1, [0, 2])
        one = from_mlir(s).with_shape([1, channels, 1] if last else [1, 1, channels])
        both = build(Concat, [s, build(Reshape, [x], None, results=[one]).results[0]], {"dim": at}).results[0]
        starts = ["0", "0", "0"]
        starts[at] = "1"
        s = build(Slice, [both], {"starts": starts, "steps": [1] * 3}, results=[from_mlir(s)]).results[0]
        if not last:
            w = build(Transpose, [w], {"perm": [1, 0]}).results[0]
        return [s, _sum(_of(ew.Mul, s, _to(w, [1, 2], s)), at)]

    state = t(dtype, CELLS, channels, width) if last else t(dtype, CELLS, width, channels)
    rows, known = [t(dtype, TOKENS, channels)], [t(dtype, TOKENS, channels)]
    return case(state, rows, [t(dtype, channels, width)], known, body, f"shift {dtype} {width} {channels} {last}")


def mixing(depth: int) -> Part:
    """A state of which every element depends on all."""

    def body(s: Any, x: Any, w: Any) -> list[Any]:
        wide = t("f32", 1, depth, depth)
        product = build(Broadcast, [s], {"dims": [0, 2]}, results=[wide]).results[0]
        product = _of(ew.Mul, product, build(Broadcast, [w], {"dims": [1, 2]}, results=[wide]).results[0])
        s = _of(ew.Tanh, _of(ew.Add, _sum(product, 2), x))
        return [s, s, _sum(s, 1)]

    known = [t("f32", TOKENS, depth), t("f32", TOKENS)]
    return case(t("f32", CELLS, depth), [t("f32", TOKENS, depth)], [t("f32", depth, depth)], known, body, f"mixing {depth}", 1e-3)


CASES: dict[str, list[Part]] = {
    Recurrence.OPERATION_NAME: [
        *(selective(d, 2, 16, 3) for d in ("f32", "f64", "f16", "bf16")),
        selective("f32", 3, 37, 12),
        selective("f32", 1, 1, 1),
        transposed(5, 12),
        transposed(33, 4),
        delta(2, 12, 17),
        delta(1, 16, 1),
        *(shift(d, k, 19, last) for d, k, last in (("f32", 4, False), ("bf16", 3, False), ("f32", 4, True), ("f32", 12, False))),
        mixing(11),
        mixing(1),
    ]
}
