"""Random dhlo programs: arithmetic, views, reductions and products in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import sympy

from dhlo.ir.dialect import build
from dhlo.ir.ops import compute
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.symbols import as_expr, parse, product
from dhlo.ir.types import TensorType, from_mlir
from tests.programs import Part, index_below, t, within

__all__ = ["random_part"]

SIZES = ["n", "m", "1", "1", "2", "3", "4"]  # of ones there may be several, at any end
BOUNDED = (ew.Tanh, ew.Sin, ew.Sigmoid)
TOLERANCE = {"f32": 2e-4, "f64": 1e-9}


class _Maker:
    """Grows a pool of values; every step reads some and adds one. Values stay within a few units, so do errors."""

    def __init__(self, rng: random.Random, values: list[Any], positions: Any) -> None:
        self.rng, self.values, self.positions = rng, values, positions

    def pick(self) -> Any:
        """A value, recent ones rather than old ones."""
        return self.rng.choice(self.values[-6:] if self.rng.random() < 0.7 else self.values)

    def like(self, ty: TensorType) -> Any:
        """A value of exactly this type: one that is there, a broadcast, or a constant."""
        same = [v for v in self.values if from_mlir(v) == ty]
        if same and self.rng.random() < 0.8:
            return self.rng.choice(same)
        for v in self.rng.sample(self.values, len(self.values)):
            dims = _fits(from_mlir(v), ty)
            if dims is not None:
                return build(mv.Broadcast, [v], {"dims": dims}, results=[ty]).results[0]
        return build(mv.Full, [], {"value": "0.75"}, results=[ty]).results[0]

    def step(self) -> None:
        names = [
            "unary",
            "binary",
            "binary",
            "select",
            "transpose",
            "reshape",
            "slice",
            "reverse",
            "pad",
            "concat",
            "take",
            "broadcast",
            "reduce",
            "reduce",
            "softmax",
            "matmul",
            "iota",
        ]
        make: Callable[[Any], Any] = getattr(self, "_" + self.rng.choice(names))
        y = make(self.pick())
        if y is not None and from_mlir(y).rank <= 4:
            self.values.append(y)

    # ------------------------------------------------------------------ elementwise
    def _unary(self, x: Any) -> Any:
        return build(self.rng.choice([*BOUNDED, ew.Neg, ew.Abs]), [x]).results[0]

    def _binary(self, x: Any) -> Any:
        y = build(self.rng.choice([ew.Add, ew.Sub, ew.Mul, ew.Maximum, ew.Minimum]), [x, self.like(from_mlir(x))]).results[0]
        return build(ew.Tanh, [y]).results[0]

    def _select(self, x: Any) -> Any:
        a, b = self.like(from_mlir(x)), self.like(from_mlir(x))
        return build(
            ew.Select,
            [
                build(ew.Lt, [x, build(mv.Full, [], {"value": "0.1"}, results=[from_mlir(x)]).results[0]]).results[0],
                a,
                b,
            ],
        ).results[0]

    def _iota(self, x: Any) -> Any:
        ty = from_mlir(x)
        if not ty.rank:
            return None
        i = build(mv.Iota, [], {"dim": self.rng.randrange(ty.rank), "start": "0.5", "step": "0.25"}, results=[ty]).results[0]
        return build(ew.Sin, [build(ew.Add, [x, i]).results[0]]).results[0]

    # ------------------------------------------------------------------ views
    def _transpose(self, x: Any) -> Any:
        perm = list(range(from_mlir(x).rank))
        self.rng.shuffle(perm)
        return build(mv.Transpose, [x], {"perm": perm}).results[0]

    def _reshape(self, x: Any) -> Any:
        """Merges two dims, splits off a unit dim or a static factor."""
        ty, rng = from_mlir(x), self.rng
        shape = list(ty.shape)
        k = rng.randrange(len(shape)) if shape else 0
        if len(shape) > 1 and rng.random() < 0.5:
            k = rng.randrange(len(shape) - 1)
            shape[k : k + 2] = [shape[k] * shape[k + 1]]
        elif shape and shape[k].is_Mul and rng.random() < 0.8:
            a, *rest = shape[k].args
            shape[k : k + 1] = [product(rest), a] if rng.random() < 0.5 else [a, product(rest)]
        elif rng.random() < 0.3:
            shape = [product(shape)]
        else:
            shape.insert(k, as_expr(1))
        return build(mv.Reshape, [x], results=[ty.with_shape(shape)]).results[0]

    def _slice(self, x: Any) -> Any:
        """Leaves out half of a dim, or takes every other element."""
        ty = from_mlir(x)
        if not ty.rank:
            return None
        d = self.rng.randrange(ty.rank)
        n = ty.shape[d]
        half = parse(f"floordiv({n}, 2)")
        starts, steps = ["0"] * ty.rank, [1] * ty.rank
        way = self.rng.choice(["first", "last", "even"])
        if way == "last":
            starts[d] = str(n - half).replace("//", "/") if n.is_number else f"{n} - floordiv({n}, 2)"
        elif way == "even":
            steps[d] = 2
        return build(
            mv.Slice,
            [x],
            {"starts": starts, "steps": steps},
            results=[ty.with_shape([*ty.shape[:d], half, *ty.shape[d + 1 :]])],
        ).results[0]

    def _reverse(self, x: Any) -> Any:
        ty = from_mlir(x)
        return build(mv.Reverse, [x], {"dims": [self.rng.randrange(ty.rank)]}).results[0] if ty.rank else None

    def _pad(self, x: Any) -> Any:
        ty = from_mlir(x)
        low = [self.rng.choice([0, 0, 1, 3]) for _ in ty.shape]
        high = [self.rng.choice([0, 0, 2]) for _ in ty.shape]
        out = [a + lo + hi for a, lo, hi in zip(ty.shape, low, high, strict=True)]
        return build(mv.Pad, [x], {"low": [str(v) for v in low], "value": 0.5}, results=[ty.with_shape(out)]).results[0]

    def _concat(self, x: Any) -> Any:
        ty = from_mlir(x)
        return build(mv.Concat, [x, self.like(ty)], {"dim": self.rng.randrange(ty.rank)}).results[0] if ty.rank else None

    def _take(self, x: Any) -> Any:
        """Rows by position: of a dim that has at least three."""
        ty = from_mlir(x)
        dims = [d for d, s in enumerate(ty.shape) if s.is_number and int(s) >= 3]
        if not dims:
            return None
        d = self.rng.choice(dims)
        return build(mv.Take, [x, self.positions], {"dims": [d], "at": d, "wrap": True}).results[0]

    def _broadcast(self, x: Any) -> Any:
        ty = from_mlir(x)
        k = self.rng.randrange(ty.rank + 1)
        new = as_expr(self.rng.choice(SIZES))
        out = ty.with_shape([*ty.shape[:k], new, *ty.shape[k:]])
        return build(mv.Broadcast, [x], {"dims": [d for d in range(ty.rank + 1) if d != k]}, results=[out]).results[0]

    # ------------------------------------------------------------------ many elements
    def _reduce(self, x: Any) -> Any:
        ty = from_mlir(x)
        if not ty.rank:
            return None
        dims = sorted(self.rng.sample(range(ty.rank), self.rng.randint(1, min(2, ty.rank))))
        how = self.rng.choice(["sum", "max", "min"])
        y = build(compute.Reduce, [x], {"how": how, "dims": dims}).results[0]
        y = (
            build(ew.Tanh, [y]).results[0]
            if how != "sum"
            else build(ew.Sin, [build(ew.Mul, [y, self._constant(y, "0.01")]).results[0]]).results[0]
        )
        return self._spread(y, ty, dims) if self.rng.random() < 0.5 else y

    def _softmax(self, x: Any) -> Any:
        ty = from_mlir(x)
        if not ty.rank:
            return None
        d = self.rng.randrange(ty.rank)
        top = self._spread(build(compute.Reduce, [x], {"how": "max", "dims": [d]}).results[0], ty, [d])
        e = build(ew.Exp, [build(ew.Sub, [x, top]).results[0]]).results[0]
        return build(
            ew.Div, [e, self._spread(build(compute.Reduce, [e], {"how": "sum", "dims": [d]}).results[0], ty, [d])]
        ).results[0]

    def _spread(self, y: Any, ty: TensorType, dims: list[int]) -> Any:
        return build(mv.Broadcast, [y], {"dims": [d for d in range(ty.rank) if d not in dims]}, results=[ty]).results[0]

    def _constant(self, like: Any, value: str) -> Any:
        return build(mv.Full, [], {"value": value}, results=[from_mlir(like)]).results[0]

    def _matmul(self, x: Any) -> Any:
        ty = from_mlir(x)
        if not 2 <= ty.rank <= 3:
            return None
        right = self.like(ty.with_shape([*ty.shape[:-2], ty.shape[-1], as_expr(self.rng.choice(SIZES))]))
        y = build(compute.Matmul, [x, right]).results[0]
        return build(ew.Tanh, [build(ew.Mul, [y, self._constant(y, "0.05")]).results[0]]).results[0]


def _fits(a: TensorType, b: TensorType) -> list[int] | None:
    """Dims for a broadcast from a to b, if there is one that repeats anything."""
    if a.rank >= b.rank or a.dtype != b.dtype:
        return None
    dims, k = [], 0
    for d, s in enumerate(b.shape):
        if k < a.rank and (a.shape[k] == s or a.shape[k] == sympy.Integer(1)):
            dims.append(d)
            k += 1
    return dims if k == a.rank else None


def random_part(seed: int, steps: int = 14) -> Part:
    """A program of some arguments and about `steps` operations, all of whose last values are results."""
    rng = random.Random(seed)
    dtype = rng.choice(["f32", "f32", "f64"])
    shapes = [["n", "m"], [rng.choice(SIZES) for _ in range(3)], [rng.choice(SIZES) for _ in range(rng.randint(0, 2))]]
    args = [*((t(dtype, *s), within(-1, 1)) for s in shapes), (t("i64", "n"), index_below("3"))]

    def body(*values: Any) -> list[Any]:
        maker = _Maker(random.Random(seed), list(values[:-1]), values[-1])
        for _ in range(steps):
            maker.step()
        results = maker.values[-4:] + maker.rng.sample(maker.values, min(2, len(maker.values)))
        return results

    return Part(args, body, tol=TOLERANCE, atol=2e-4 if dtype == "f32" else 1e-9, label=f"random program {seed}")
