"""Tests of vector math against float64 references: error in ULP over dense samples, and every special value."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dhlo.codegen.backends.cpu import llvm
from dhlo.codegen.elementwise import vmath
from dhlo.codegen.kernel_ir.builder import F32, F64, I64, PTR, Fn, KernelModule, vec
from dhlo.codegen.target import Target, parse_target
from dhlo.ir.dialect import Op
from dhlo.ir.nans import ACTIVATIONS
from tests.codegen.subnormals import CAN_TELL, touches_subnormals
from tests.targets import TARGET

Array = np.ndarray
LANES = TARGET.lanes(F32)
PAD = 64  # a multiple of all lane counts


def lower(names: list[str], elem: str, lanes: int, target: Target = TARGET) -> str:
    """LLVM IR of a function `t_<name>(x0.., out, n)` for each name; n is a multiple of the lanes."""
    m = KernelModule(target)
    for name in names:
        k = vmath.ARITY[name]
        f = Fn(m, f"t_{name}", [*((f"x{i}", PTR) for i in range(k)), ("o", PTR), ("n", I64)], internal=False)
        ty = vec(elem, lanes) if lanes else elem
        with f.loop(0, f.args[-1], max(1, lanes)) as lp:
            args = [f.load(f.gep(p, lp.iv, elem), ty) for p in f.args[:k]]
            f.store(vmath.call(f, name, *args), f.gep(f.args[k], lp.iv, elem))
        f.done()
    return llvm.lower_to_llvm_ir(m.text(), target)


def build(names: list[str], elem: str, lanes: int) -> llvm.Jit:
    """The functions of `lower`, compiled."""
    return llvm.Jit([llvm.compile_object(lower(names, elem, lanes), TARGET)])


def run(jit: llvm.Jit, name: str, *xs: Array) -> Array:
    n = xs[0].size
    pad = -n % PAD
    ins = [np.concatenate([x, np.ones(pad, x.dtype)]) for x in xs]
    out = np.empty(n + pad, xs[0].dtype)
    fn = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(xs) + 1), ctypes.c_int64)(jit.address(f"t_{name}"))
    fn(*[x.ctypes.data for x in ins], out.ctypes.data, n + pad)
    return out[:n]


UNARY = sorted(name for name in vmath.ULP if vmath.ARITY[name] == 1)
BINARY = sorted(name for name in vmath.ULP if vmath.ARITY[name] == 2)
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.17549435e-38,
        3.4028235e38,
        -3.4028235e38,
        88.72284,
        -103.97,
        2.0**23,
        2.0**24 + 2,
        0.99999994,
        1.0000001,
        -0.99999994,
        1e10,
        -1e-10,
    ],
    np.float32,
)


def samples() -> Array:
    """Bit patterns spread over all of f32, dense samples where functions bend, and the special values."""
    bits = np.arange(0, 2**32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [np.linspace(-k, k, 60001).astype(np.float32) for k in (1.2, 12, 105, 3e5)]
    return np.concatenate([bits, *dense, SPECIAL])


def ulp_error(got: Array, want: Array) -> Array:
    """|got - want| in units in the last place of f32 at `want` (float64); infinite where NaN, infinity or overflow
    differ.
    """
    with np.errstate(all="ignore"):
        unit = 2.0 ** (np.floor(np.log2(np.clip(np.abs(want), 2.0**-126, 2.0**127))) - 23)
        d = np.abs(got.astype(np.float64) - want) / unit
        d[(got == want.astype(np.float32)) | (np.isnan(got) & np.isnan(want))] = 0.0
    d[np.isnan(d)] = np.inf
    return d


FLUSHED = ("sigmoid",)  # gives 0 below the normal numbers, as PyTorch's does


def reference(name: str) -> Callable[..., Array]:
    """The function in float64."""
    if name == "cbrt":
        return np.cbrt
    fn = getattr(torch, name, None) or getattr(torch.special, name)
    return lambda *xs: fn(*[torch.from_numpy(x) for x in xs]).numpy()


@pytest.fixture(scope="module")
def vector_jit() -> llvm.Jit:
    return build([*UNARY, *BINARY], F32, LANES)


@pytest.mark.parametrize("name", UNARY)
def test_unary_error_is_within_the_bound(vector_jit: llvm.Jit, name: str) -> None:
    x = samples()
    with np.errstate(all="ignore"):
        want = reference(name)(x.astype(np.float64))
    got = run(vector_jit, name, x)
    d = ulp_error(got, want)
    if name in FLUSHED:
        d[(np.abs(want) < 2.0**-126) & (got == 0)] = 0.0
    k = int(np.argmax(d))
    assert d[k] <= vmath.ULP[name], f"{name}({x[k]!r}): {d[k]:.3f} ULP"


def test_short_sigmoid() -> None:
    some = np.random.default_rng(0).uniform(-87, 40, 200_000)
    x = np.concatenate([some, [0.0, np.inf, -np.inf, np.nan, -200.0]]).astype(np.float32)
    got, want = run(build(["sigmoid_short"], F32, LANES), "sigmoid_short", x), reference("sigmoid")(x.astype(np.float64))
    near = np.abs(x) < 10
    np.testing.assert_allclose(got[near], want[near], rtol=5e-6)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2.0**-126)
    assert got[-5] == 0.5


def test_exp_below_zero() -> None:
    some = -np.random.default_rng(0).uniform(0, 120, 200_000)
    x = np.concatenate([some, -np.logspace(-45, 3, 2000), [-np.inf, 0.0, -0.0, np.nan]]).astype(np.float32)
    got, want = run(build(["exp_below"], F32, LANES), "exp_below", x).astype(np.float64), np.exp(x.astype(np.float64))
    assert np.isnan(got[-1]) and (np.abs(got - want) <= want * (1.8e-7 - 1.4e-8 * x) + 2.0**-125.5)[:-4].all()
    assert got[-4:-1].tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", BINARY)
def test_binary_error_is_within_the_bound(vector_jit: llvm.Jit, name: str) -> None:
    rng = np.random.default_rng(0)
    a = [
        rng.uniform(-4, 4, 50000),
        rng.integers(-9, 10, 20000),
        10 ** rng.uniform(-44, 38, 50000),
        np.repeat(SPECIAL, SPECIAL.size),
    ]
    b = [rng.uniform(-9, 9, 50000), rng.integers(-9, 10, 20000), rng.uniform(-3, 3, 50000), np.tile(SPECIAL, SPECIAL.size)]
    x, y = (np.concatenate(v).astype(np.float32) for v in (a, b))
    want = reference(name)(x.astype(np.float64), y.astype(np.float64))
    if name == "remainder":  # defined as fmod + divisor rounded to f32
        with np.errstate(all="ignore"):
            r = np.fmod(x, y)
            want = np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r).astype(np.float64)
    d = ulp_error(run(vector_jit, name, x, y), want)
    k = int(np.argmax(d))
    assert d[k] <= vmath.ULP[name], f"{name}({x[k]!r}, {y[k]!r}): {d[k]:.3f} ULP"


@pytest.mark.parametrize(
    "name", ["tanh", "erf", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "expm1", "log1p", "erfinv", "cbrt"]
)
def test_odd_functions_keep_the_sign_of_zero(vector_jit: llvm.Jit, name: str) -> None:
    assert np.signbit(run(vector_jit, name, np.array([-0.0, 0.0], np.float32))).tolist() == [True, False]


def test_normal_distribution_function(vector_jit: llvm.Jit) -> None:
    x = samples()
    got = run(build(["normal_cdf"], F32, LANES), "normal_cdf", x)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    x, got = x[~np.isnan(x)], got[~np.isnan(x)]
    want = torch.special.ndtr(torch.from_numpy(x.astype(np.float64))).numpy()
    error = np.abs(got - want)
    assert error.max() <= 1.2e-7
    near = np.abs(x) <= 3
    assert (error[near] / want[near]).max() <= 1.5e-6
    far = (x >= -6) & (x < -3)
    assert (error[far] / want[far]).max() <= 1.5e-4


@pytest.mark.skipif(not TARGET.is_x86, reason="looks at code for x86-64")
@pytest.mark.parametrize("name, operands", [("x86-64-v3", 14), ("x86-64-v4", 0)])
def test_coefficients_are_operands_where_registers_are_few(name: str, operands: int) -> None:
    """Of two polynomials of 10 and 6 coefficients, all but the first ones; nothing is moved between registers in their loop."""
    target = parse_target(name)
    text = llvm.emit_assembly(lower(["normal_cdf"], F32, target.lanes(F32), target), target)
    (loop,) = (part for part in re.split(r"\n\.L\w+:", text) if "vfm" in part)
    assert loop.count("vfm") == 15
    assert len(re.findall(r"vfm\S+\s+\d+\(%r\w+\)", loop)) == operands
    assert not re.search(r"vmovaps\s+%[xy]mm\d+, %[xy]mm\d+", loop)


def test_signed_zero_results_of_two_operands(vector_jit: llvm.Jit) -> None:
    x, y = (v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL))
    for name in ("pow", "atan2", "fmod"):
        want = reference(name)(x, y)
        got = run(vector_jit, name, x, y)
        same = np.signbit(got) == np.signbit(want)
        assert np.all(same | np.isnan(want)), name


def test_scalar_code_equals_vector_code(vector_jit: llvm.Jit) -> None:
    jit = build(UNARY, F32, 0)
    x = np.concatenate([np.linspace(-30, 30, 3001).astype(np.float32), SPECIAL])
    for name in UNARY:
        np.testing.assert_array_equal(run(jit, name, x), run(vector_jit, name, x), err_msg=name)


def test_f64_functions() -> None:
    jit = build([*UNARY, *BINARY], F64, TARGET.lanes(F64))
    x = np.concatenate(
        [np.linspace(-30, 30, 4001), np.linspace(-1, 1, 1001), SPECIAL.astype(np.float64), [-745.0, 709.7, 1e-310, 1e300]]
    )
    near = np.random.default_rng(0).integers(-700_000, 700_000, 2000) * (np.pi / 2)  # zeros of sines, and of cosines
    x = np.concatenate([x, near, near * (1 + 1e-9), np.logspace(-300, 300, 2001), 1 - np.logspace(-16, -1, 200)])
    for name in UNARY:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(
                run(jit, name, x),
                reference(name)(x),
                rtol={"digamma": 1e-10, "erfcx": 1e-13}.get(name, 4e-15),  # PyTorch's own error
                atol=1e-300,
                err_msg=name,
            )
    a, b = (v.ravel() for v in np.meshgrid(SPECIAL.astype(np.float64), SPECIAL.astype(np.float64)))
    for name in BINARY:
        np.testing.assert_allclose(run(jit, name, a, b), reference(name)(a, b), rtol=1e-15, err_msg=name)


def test_powers_of_f64() -> None:
    """Results all over the range of numbers, of bases near 1, too: their exponents are large."""
    rng, n = np.random.default_rng(1), 2000
    parts = [np.exp(rng.uniform(-width, width, n)) for width in (700, 12, 0.7, 1e-2, 1e-9)]
    x = np.concatenate(parts)
    y = rng.uniform(-1, 1, x.size) * 700 / np.abs(np.log(x))
    got = run(build(["pow"], F64, TARGET.lanes(F64)), "pow", x, y)
    np.testing.assert_allclose(got, np.power(x, y), rtol=5e-16)


def test_a_function_is_emitted_once_for_a_type() -> None:
    m = KernelModule(TARGET)
    f = Fn(m, "f", [("x", vec(F32, LANES))], vec(F32, LANES), internal=False)
    f.ret(vmath.call(f, "exp", vmath.call(f, "exp", f.args[0])))
    f.done()
    assert [name for name in m.functions if name.startswith("vm_")] == [f"vm_exp_f32x{LANES}"]
    with pytest.raises(KeyError):
        vmath.call(f, "no_such_function", f.args[0])


def quiet(elem: str) -> Array:
    """Operands far from the subnormal numbers, large, small, of either sign and not finite."""
    dtype, most = (np.float32, 120) if elem == F32 else (np.float64, 1000)
    powers = np.exp2(np.linspace(-most, most, 4001))
    dense = np.concatenate([np.linspace(-k, k, 4001) for k in (1.2, 12, 120, 800)])
    x = np.concatenate([powers, -powers, dense, [0.0, -0.0, np.inf, -np.inf]]).astype(dtype)
    return x[(np.abs(x) >= 2.0**-most) | (x == 0)]


def normal(x: Array) -> Array:
    return np.isnan(x) | (x == 0) | (np.abs(x) >= np.finfo(x.dtype).tiny)


@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.OPERATION_NAME)
def test_activations_make_no_nans_but_plain_ones_of_plain_ones(op: type[Op]) -> None:
    """Rounding to bf16 by operations on integers relies on it: the lower half of these NaNs is zero."""
    name = op.OPERATION_NAME.removeprefix("dhlo.")
    x = (np.array([*range(0x7FC0, 0x8000), *range(0xFFC0, 0x10000)], np.uint32) << 16).view(np.float32)
    got = run(build([name], F32, LANES), name, x)
    assert np.isnan(got).all() and not (got.view(np.uint32) & 0xFFFF).any()


# Not libm's, nor made of its functions.
OWN_F64 = tuple(
    "exp exp2 exp_below expm1 log log2 log10 log1p rsqrt sigmoid sin cos tan tanh sinh cosh asin acos atan atanh erf erfc".split()
)


@pytest.mark.skipif(not CAN_TELL, reason="needs the status register of x86")
@pytest.mark.parametrize(
    "name, elem", [*((n, F32) for n in (*UNARY, "exp_below", "normal_cdf", "sigmoid_short")), *((n, F64) for n in OWN_F64)], ids=str
)
def test_subnormals_arise_only_as_results(name: str, elem: str) -> None:
    """CPUs take a hundred cycles for an operation that reads or makes one."""
    x = quiet(elem)
    x = x[x <= 0] if name == "exp_below" else x
    jit = build([name], elem, TARGET.lanes(elem))
    kept = x[normal(run(jit, name, x))]
    kept = np.concatenate([kept, np.ones(-kept.size % PAD, x.dtype)])
    assert not touches_subnormals(lambda: run(jit, name, kept))
