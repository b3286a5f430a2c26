"""Sizes at and beyond what fits: checked arithmetic, ranges of all symbols, and plans that are the run."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, export
from torch.utils._sympy import functions as tsf

import dhlo
from dhlo.codegen.backends.cpu.llvm import Jit, compile_object, lower_to_llvm_ir
from dhlo.codegen.host.checked import I64_MAX, I64_MIN, CheckedFn, Interval
from dhlo.codegen.host.sizes import SizeEmitter
from dhlo.codegen.kernel_ir.builder import I64, PTR, KernelModule
from dhlo.errors import ContractError
from dhlo.ir.symbols import FloorDiv, symbol
from dhlo.model import CompiledModel
from tests.plans import assert_plan_is_run
from tests.targets import TARGET

D = Dim.DYNAMIC
LARGEST = (1 << 48) - 1


def compiled(f: Callable[..., Any], args: tuple[Any, ...], dims: Any) -> CompiledModel:
    class Module(torch.nn.Module):
        def forward(self, *xs: Any) -> Any:
            return f(*xs)

    return dhlo.compile(export(Module(), args, dynamic_shapes=(dims,)))


# ---------------------------------------------------------------------------------------------------- arithmetic
Evaluate = Callable[..., tuple[int, bool]]


def evaluator(e: sympy.Expr, intervals: Mapping[str, Interval]) -> Evaluate:
    """Machine code for an expression: its value, and whether it doesn't fit."""
    module = KernelModule(TARGET)
    fn = CheckedFn(module, "f", [("in", PTR), ("out", PTR)], internal=False)
    sizes = SizeEmitter(fn)
    for i, (name, interval) in enumerate(intervals.items()):
        sizes.symbols[name] = fn.define(fn.load(fn.gep(fn.args[0], i, I64), I64), *interval)
    fn.store(sizes.whole(e), fn.args[1])
    fn.store(fn.cast(fn.overflow(), I64), fn.gep(fn.args[1], 1, I64))
    fn.done()
    jit = Jit([compile_object(lower_to_llvm_ir(module.text(), TARGET), TARGET)])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(jit.address("f"))

    def run(*values: int, keep: Any = jit) -> tuple[int, bool]:
        given, out = (ctypes.c_int64 * len(values))(*values), (ctypes.c_int64 * 2)()
        call(given, out)
        return out[0], bool(out[1])

    return run


def fits(x: int) -> bool:
    return I64_MIN <= x <= I64_MAX


def reference(e: Any, env: Mapping[str, int]) -> tuple[int, bool]:
    """The exact value, and whether all that it is made of fits in 64 bits."""
    if e.is_Integer:
        return int(e), fits(int(e))
    if e.is_Symbol:
        return env[e.name], True
    if isinstance(e, sympy.Piecewise):
        conditions = [reference(c.lhs, env) + reference(c.rhs, env) if c.args else (1, True, 1, True) for _, c in e.args]
        known = all(c[1] and c[3] for c in conditions)
        for (value, cond), (a, _, b, _) in zip(e.args, conditions, strict=True):
            if not cond.args or bool(cond.func(sympy.Integer(a), sympy.Integer(b))):
                chosen, good = reference(value, env)
                return chosen, good and known
    parts = [reference(a, env) for a in e.args]
    values, good = [v for v, _ in parts], all(ok for _, ok in parts)
    if isinstance(e, sympy.Max | sympy.Min):
        return (max if isinstance(e, sympy.Max) else min)(values), good
    if isinstance(e, FloorDiv | tsf.PythonMod | tsf.Mod):
        a, b = values[0], values[1] or 1
        return (a // b if isinstance(e, FloorDiv) else a % b), good and fits(a // b)
    if isinstance(e, sympy.Pow):
        values = [values[0]] * int(e.exp)
    out = values[0]
    for v in values[1:]:
        out = out * v if isinstance(e, sympy.Mul | sympy.Pow) else out + v
        good = good and (fits(out) or (isinstance(e, sympy.Mul) and 0 in values))
    return out, good


_ANY = (I64_MIN, I64_MAX)
INTERVALS = {"u0": _ANY, "u1": _ANY, "s0": (0, LARGEST), "s1": (0, 512)}
SYMBOLS = [symbol(n) for n in INTERVALS]


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner, inner).map(lambda p: sympy.Piecewise((p[0], symbol("u0") > 7), (p[1] * p[2], True))),
        pairs.map(lambda p: sympy.Max(p[0], p[1], evaluate=False)),
        pairs.map(lambda p: sympy.Min(p[0], p[1], evaluate=False)),
        st.tuples(inner, st.sampled_from([2, 3, 64, *SYMBOLS])).map(lambda p: FloorDiv(p[0], sympy.sympify(p[1]))),
        st.tuples(inner, st.sampled_from([2, 5])).map(lambda p: tsf.PythonMod(p[0], sympy.Integer(p[1]))),
    )


LEAVES = st.one_of(st.sampled_from(SYMBOLS), st.sampled_from([-1, 1, 4, 63, 1 << 20, 1 << 40]).map(sympy.Integer))
EDGES = [0, 1, 2, 7, 8, 63, 512, 1 << 31, 1 << 32, (1 << 32) - 1, LARGEST, 1 << 62, I64_MAX]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(LEAVES, _combined, max_leaves=6), st.data())
def test_arithmetic_is_exact_or_flagged(e: sympy.Expr, data: st.DataObject) -> None:
    if e.has(sympy.zoo, sympy.nan, sympy.oo) or not all(a.is_integer is not False for a in sympy.preorder_traversal(e)):
        return
    run = evaluator(e, INTERVALS)
    for _ in range(40):
        env = {}
        for name, (lo, hi) in INTERVALS.items():
            wanted = st.one_of(st.sampled_from(EDGES + [-x for x in EDGES]), st.integers(lo, hi))
            env[name] = min(max(data.draw(wanted), lo), hi)
        value, good = reference(e, env)
        got, overflow = run(*env.values())
        assert overflow == (not good), (e, env, value, got)
        if good:
            assert got == value, (e, env)


def test_a_zero_factor_makes_any_product_fit() -> None:
    a, b, c = (symbol(f"u{i}") for i in range(3))
    run = evaluator(sympy.Mul(a, b, c, evaluate=False), {f"u{i}": _ANY for i in range(3)})
    for values in ((1 << 40, 1 << 40, 0), (0, 1 << 40, 1 << 40), (1 << 40, 0, 1 << 40)):
        assert run(*values) == (0, False)
    assert run(1 << 20, 1 << 20, 1 << 20) == (1 << 60, False)
    assert run(1 << 21, 1 << 21, 1 << 21)[1]


def test_constants_beyond_64_bits_are_flagged() -> None:
    u = symbol("u0")
    for e in (sympy.Integer(1 << 80), sympy.Integer(-(1 << 63) - 1), u * (1 << 64), u + (1 << 63), sympy.Max(u, 1 << 80)):
        run = evaluator(e, {"u0": _ANY})
        assert run(0)[1] and run(3)[1] and run(I64_MIN)[1]
    assert evaluator(sympy.Piecewise((u, u < 8), (sympy.Integer(1 << 80), True)), {"u0": _ANY})(7) == (7, False)
    assert evaluator(sympy.Integer(I64_MIN), {"u0": _ANY})(0) == (I64_MIN, False)


def test_quotients_that_would_trap_are_flagged() -> None:
    run = evaluator(FloorDiv(symbol("u0"), symbol("u1")), {"u0": _ANY, "u1": _ANY})
    assert run(I64_MIN, -1)[1] and run(7, 0) == (7, False) and run(-7, 2) == (-4, False)


def test_conversion_of_floats_that_do_not_fit_is_flagged() -> None:
    e = tsf.TruncToInt(tsf.IntTrueDiv(symbol("u0"), symbol("u1")) * 4)
    run = evaluator(e, {"u0": _ANY, "u1": _ANY})
    assert run(9, 2) == (18, False) and run(1 << 62, 1)[1] and run(0, 0)[1] and run(5, 0)[1]


def test_linear_sizes_cost_nothing() -> None:
    def checks(model: CompiledModel) -> int:
        assert model._artifact is not None
        return len(re.findall(r"call .*with\.overflow", "".join(model._artifact.llvm_ir)))

    x = torch.randn(3, 4)
    assert checks(compiled(lambda x: x + 1, (x,), ({0: D},))) == 0
    w = torch.randn(4, 8)
    assert checks(compiled(lambda x: (x @ w).softmax(-1), (x,), ({0: Dim("n", max=1 << 20)},))) == 0
    assert checks(compiled(lambda x: x + 1, (x,), ({0: D, 1: D},))) > 0


# ---------------------------------------------------------------------------------------------------- sizes that don't fit
def square(n: int, x: torch.Tensor) -> torch.Tensor:
    y = torch.arange(n * n, dtype=torch.float32).reshape(n, n)
    return y @ y + x.sum()


def test_a_number_from_data_that_makes_a_tensor_too_large() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        torch._check(n >= 0)
        return square(n, x)  # type: ignore[arg-type]

    model = compiled(f, (torch.tensor([3, 0]),), ({0: D},))
    for n in (1 << 26, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 40, 1 << 62, I64_MAX):
        with pytest.raises(MemoryError, match="too large at these input sizes"):
            model(torch.tensor([n, 0]))
    with pytest.raises(ContractError, match="u0 >= 0"):
        model(torch.tensor([-1, 0]))
    torch.testing.assert_close(model(torch.tensor([2, 1])), f(torch.tensor([2, 1])))


def test_products_of_dims_that_wrap_to_small_numbers() -> None:
    x = torch.randn(3)
    outer = compiled(lambda x, y, z: (x[:, None, None] * y[:, None] * z).cumsum(0) @ z, (x, x[:2], x[1:]), ({0: D},) * 3)
    for sizes in ((1 << 32, 1 << 32, 1), (1 << 22, 1 << 21, 1 << 21), ((1 << 32) + 1, 1 << 32, 4), (LARGEST,) * 3):
        with pytest.raises(MemoryError):
            outer.plan(*([n] for n in sizes))
    assert outer.plan([1 << 30], [1], [1])["outputs"] == [("float32", (1 << 30, 1))]


def test_dims_beyond_48_bits_are_refused() -> None:
    model = compiled(lambda x, y: x @ y, (torch.randn(3, 4), torch.randn(4, 5)), ({0: D, 1: D}, {0: D, 1: D}))
    huge = torch.empty(1).as_strided((1 << 62, 0), (0, 1))
    with pytest.raises(ContractError, match="size 4611686018427387904 of dim 0 is above the largest possible"):
        model(huge, torch.empty(0, 4))
    with pytest.raises(ContractError, match="above the largest possible"):
        model.plan([1 << 48, 0], [0, 4])
    with pytest.raises(MemoryError, match="output 0 'matmul': its number of elements"):
        model.plan([1 << 31, 0], [0, 1 << 31])
    assert model.plan([0, 1 << 31], [1 << 31, 0])["outputs"] == [("float32", (0, 0))]
    with pytest.raises(ContractError, match="it has no elements, but its other sizes multiply to more"):
        model.plan([0, (1 << 31) + 1], [(1 << 31) + 1, 0])
    x, y = torch.randn(6, 7), torch.randn(7, 2)
    torch.testing.assert_close(model(x, y), x @ y)


def test_a_branch_that_is_not_taken_may_be_too_large() -> None:
    def large(x: torch.Tensor) -> torch.Tensor:
        y = (x[:, None] * x[None]).reshape(-1)
        z = y[:, None] * y[None]
        return (z @ z).sum()

    model = compiled(lambda x: torch.cond(x.sum() > 0, large, lambda x: x.sum(), (x,)), (torch.ones(3),), ({0: D},))
    x = -torch.ones(1 << 14)
    torch.testing.assert_close(model(x), x.sum())
    with pytest.raises(MemoryError):
        model(-x)
    torch.testing.assert_close(model(torch.ones(5)), large(torch.ones(5)))


# ---------------------------------------------------------------------------------------------------- ranges
def test_ranges_of_numbers_are_checked() -> None:
    model = compiled(lambda x, n: x[:n] * 2, (torch.randn(40), 8), (None, D))
    for n in (41, 100, 1 << 40, I64_MAX):
        with pytest.raises(ContractError, match=f"'xs_1' must be at most 40: expected at most 40, got {n}"):
            model(torch.randn(40), n)
        with pytest.raises(ContractError, match="at most 40"):
            model.plan(torch.randn(40), n)
    with pytest.raises(ContractError, match="'xs_1' must be at least 0: expected at least 0, got -1"):
        model(torch.randn(40), -1)
    assert model(torch.randn(40), 40).shape == (40,)
    assert model.plan([40], [])["data_dependent"]


def test_derived_dims_are_checked() -> None:
    n = Dim("length", min=3, max=10)
    model = compiled(lambda x: x[:, 5:] * 2, (torch.randn(2, 13),), ({1: n + 5},))
    for size, text in ((3, "at least 8, got 3"), (7, "at least 8, got 7"), (16, "at most 15, got 16")):
        with pytest.raises(ContractError, match=rf"'xs_0' dim 1 \(.* \+ 5\) must be .*expected {text}"):
            model(torch.randn(2, size))
    for size in (8, 15):
        assert model(torch.randn(2, size)).shape == (2, size - 5)


# ---------------------------------------------------------------------------------------------------- plan and run
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, Sequence[tuple[Any, ...]]]] = {
    "linear": (lambda x: torch.nn.functional.gelu(x @ torch.ones(64, 32)).softmax(-1), (torch.randn(3, 64),), ({0: D},),
               [(torch.randn(n, 64),) for n in (0, 1, 17, 300)]),
    "product": (lambda x, y: (x @ y).relu() @ y.t(), (torch.randn(3, 5), torch.randn(5, 7)), ({0: D, 1: D}, {0: D, 1: D}),
                [(torch.randn(m, k), torch.randn(k, n)) for m, k, n in ((1, 1, 1), (0, 4, 9), (65, 33, 17), (200, 100, 300))]),
    "sort": (lambda x: torch.sort(x, dim=-1)[0].cumsum(0), (torch.randn(3, 5),), ({0: D, 1: D},),
             [(torch.randn(m, n),) for m, n in ((2, 0), (0, 3), (4, 700), (33, 5))]),
    "reduction": (lambda x: x.sum(0) / x.std(), (torch.randn(3, 5),), ({0: D, 1: D},),
                  [(torch.randn(m, n),) for m, n in ((2, 3), (5000, 3), (3, 5000))]),
    "number": (lambda x, n: (x[:n].exp() @ x[:n].t()).softmax(0), (torch.randn(20, 20), 9), ({0: D}, D),
               [(torch.randn(30, 20), n) for n in (3, 30)]),
    "nonzero": (lambda x: x.nonzero(), (torch.randn(9),), ({0: D},), [(torch.randn(n),) for n in (1, 50)]),
    "random": (lambda x: torch.nn.functional.dropout(x, 0.5, True) @ x.t(), (torch.randn(3, 4),), ({0: D},),
               [(torch.randn(n, 4),) for n in (1, 70)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_plan_is_run(name: str) -> None:
    f, args, dims, calls = PROGRAMS[name]
    model = compiled(f, args, dims)
    for given_ in calls:
        assert_plan_is_run(model, *given_)


def test_divisions_don_t_trap_on_what_has_overflowed() -> None:
    """A product that wraps to 0, though no factor is 0: the division comes before the flag is tested."""
    a, b, c, d = (symbol(x) for x in "abcd")
    for function in (FloorDiv, tsf.Mod, tsf.CeilDiv):
        divide = evaluator(function(d, a * b * c), {x: (2, LARGEST) for x in "abcd"})
        want = {FloorDiv: 10, tsf.Mod: 3, tsf.CeilDiv: 11}[function]
        assert divide(2, 2, 2, 83) == (want, False)
        assert divide(1 << 22, 1 << 21, 1 << 21, 7)[1]


@pytest.mark.parametrize("k", [0, 1, 2, 33, 34, 38, 39])
def test_powers_of_integers_are_exact(k: int) -> None:
    model = dhlo.compile(export(_Power(), (torch.tensor(3), torch.ones(7)), dynamic_shapes=(None, {0: D})))
    torch.testing.assert_close(model(torch.tensor(k), torch.ones(2)), torch.full((2,), 1.0 + 3**k % 7))


def test_powers_that_don_t_fit_are_refused() -> None:
    model = dhlo.compile(export(_Power(), (torch.tensor(3), torch.ones(7)), dynamic_shapes=(None, {0: D})))
    with pytest.raises((MemoryError, ContractError)):
        model(torch.tensor(60), torch.ones(2))


class _Power(torch.nn.Module):
    def forward(self, n: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 60)
        return z + (3**k) % 7


def test_plans_of_shapes_that_raise() -> None:
    class Shape(tuple):
        def __len__(self) -> int:
            raise ZeroDivisionError("no length")

    model = compiled(lambda x: x + 1, (torch.randn(3),), ({0: D},))
    with pytest.raises(ValueError, match="no length|rank"):
        model.native.plan([Shape((3,))])
    with pytest.raises(ValueError, match="rank 9 is outside"):
        model.native.plan([(1,) * 9])


@pytest.mark.parametrize("kind", ["conv", "transposed", "pool"])
def test_images_whose_sides_need_more_than_32_bits_are_refused(kind: str) -> None:
    """Kernels compare rows and columns in 32 bits; sides that ranges bound aren't checked."""
    layers = {"conv": nn.Conv1d(2, 3, 3, padding=1), "transposed": nn.ConvTranspose1d(2, 3, 4, 2), "pool": nn.AvgPool1d(3, 1)}
    model = nn.Sequential(layers[kind], nn.ReLU())
    unbounded, bounded = (
        dhlo.compile(
            torch.export.export(model, (torch.randn(2, 2, 40),), dynamic_shapes=({2: Dim("n", min=8, max=most)},)), cache=""
        )
        for most in (None, 1 << 20)
    )
    x = torch.randn(2, 2, 33)
    torch.testing.assert_close(unbounded(x), model(x))
    side = (1 << 31) - 1
    most = (side - 2) // 2 if kind == "transposed" else side
    assert unbounded.plan([2, 2, most])["outputs"]
    with pytest.raises(ContractError, match="sides of at most 2147483647"):
        unbounded.plan([2, 2, most + 1])
    with pytest.raises(ContractError, match="sides of at most 2147483647"):
        unbounded.plan([2, 2, (1 << 32) + 40])
    assert "sides of at most" in unbounded.native.metadata
    assert "sides of at most" not in bounded.native.metadata
