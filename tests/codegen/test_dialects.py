"""From MLIR's LLVM dialect to the LLVM that makes code: spellings of floats, bf16 on targets without it, attributes."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from dhlo.codegen.backends.cpu.dialects import in_older_spelling
from dhlo.codegen.backends.cpu.llvm import Jit, compile_object, lower_to_llvm_ir
from dhlo.codegen.kernel_ir.builder import I1, I64, PTR, Fn, KernelModule, vec
from dhlo.codegen.target import Target, parse_target
from dhlo.errors import InternalError
from tests.targets import TARGET

LEVEL = parse_target(TARGET.name.partition("+")[0])
"""The target without extensions, so without bf16."""
NUMBERS = (0.0, -0.0, 1.0, 0.1, -2.5, 3.0e-41, 65504.0, 1e30, 2.0**24 + 2, math.pi, math.inf, -math.inf, math.nan)
WIDTHS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}


def bits(x: float, elem: str) -> int:
    """What numpy makes of the number; bf16 by rounding f32 to even."""
    with np.errstate(over="ignore"):
        if elem == "bf16":
            (found,) = np.array([x], np.float32).view(np.uint32).tolist()
            return found >> 16 if x != x else found + 0x7FFF + (found >> 16 & 1) >> 16
        found = np.array([x], {"f16": np.float16, "f32": np.float32, "f64": np.float64}[elem])
    return int(found.view(WIDTHS[elem])[0])


@pytest.mark.parametrize("elem", WIDTHS)
@pytest.mark.parametrize("target", {t.name: t for t in (TARGET, LEVEL)}.values(), ids=lambda t: t.name)
def test_constants_keep_their_bits(target: Target, elem: str) -> None:
    """In stores, vectors, choices, branches and calls."""
    numbers = [x for x in NUMBERS if elem != "f16" or not 65504 < abs(x) < math.inf]
    module = KernelModule(target)
    same = Fn(module, "same", [("x", elem)], elem, noinline=True)
    same.ret(same.args[0])
    same.done()
    fn = Fn(module, "store", [("to", PTR), ("first", I1)], internal=False)
    to, first = fn.args
    for i, (x, y) in enumerate(zip(numbers, reversed(numbers), strict=True)):
        a, b = fn.const(x, elem), fn.const(y, elem)
        (branch,) = fn.if_else(first, lambda a=a: [a], lambda b=b: [b], [elem])
        found = [a, fn.select(first, a, b), branch, fn.call("same", [a], elem)]
        for k, v in enumerate(found):
            assert v is not None
            fn.store(v, fn.gep(to, 4 * i + k, elem))
    fn.store(fn.dense(numbers[:8], elem), fn.gep(to, 4 * len(numbers), elem))
    fn.store(fn.const(0.1, vec(elem, 8)), fn.gep(to, 4 * len(numbers) + 8, elem))
    fn.done()
    jit = Jit([compile_object(lower_to_llvm_ir(module.text(), target), target)])
    out = np.zeros(4 * len(numbers) + 16, WIDTHS[elem])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_bool)(jit.address("store"))(out.ctypes.data, True)
    want = [bits(x, elem) for x in numbers for _ in range(4)] + [bits(x, elem) for x in numbers[:8]] + [bits(0.1, elem)] * 8
    assert out.tolist() == want


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("  %8 = fadd float %7, +qnan", "  %8 = fadd float %7, 0x7FF8000000000000"),
        ("  %8 = fadd float %7, -nan(0x1)", "  %8 = fadd float %7, 0xFFF8000020000000"),
        ("  store double +snan(0x1), ptr %1", "  store double 0x7FF0000000000001, ptr %1"),
        ("  ret half f0x3C01", "  ret half 0xH3C01"),
        ("  ret bfloat 1.000980e-01", "  ret bfloat 0xR3DCD"),
        ("  %6 = phi float [ %5, %1 ], [ -inf, %2 ]", "  %6 = phi float [ %5, %1 ], [ 0xFFF0000000000000, %2 ]"),
        ("  %6 = call float @f.1(double 1.5e+00, <2 x float> splat (float 1.000000e-01))",
         "  %6 = call float @f.1(double 0x3FF8000000000000, <2 x float> splat (float 0x3FB99999A0000000))"),
        ("@t = constant [2 x half] [half 1.0e+00, half f0x7C00]", "@t = constant [2 x half] [half 0xH3C00, half 0xH7C00]"),
        ('@name = constant [13 x i8] c"double 1.5e+0"', '@name = constant [13 x i8] c"double 1.5e+0"'),
        ("!0 = !{float 2.500000e+00}", "!0 = !{float 2.500000e+00}"),
        ("  %info.1 = add i64 %nan, -12", "  %info.1 = add i64 %nan, -12"),
    ],
)  # fmt: skip
def test_floats_are_spelled_as_the_older_llvm_reads_them(written: str, read: str) -> None:
    assert in_older_spelling(f"a\n{written}\nb") == f"a\n{read}\nb"


@pytest.mark.parametrize(
    ("line", "message"),
    [("  ret f0x3F800000", "a float without a type"), ("  ret double f0x3F800000", "f0x3F800000 for a double")],
)
def test_floats_that_cannot_be_read_are_named(line: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        in_older_spelling(line)


def test_arithmetic_in_bf16_needs_a_target_that_has_it() -> None:
    module = KernelModule(LEVEL)
    fn = Fn(module, "sum", [("x", "bf16")], "bf16", internal=False)
    fn.ret(fn.add(fn.args[0], fn.args[0]))
    fn.done()
    with pytest.raises(InternalError, match="without bf16 computes in it"):
        lower_to_llvm_ir(module.text(), LEVEL)


def test_functions_say_what_their_code_may_consist_of() -> None:
    module = KernelModule(LEVEL)
    fn = Fn(module, "one", [], I64, noinline=True)
    fn.ret(fn.i64(1))
    fn.done()
    text = lower_to_llvm_ir(module.text(), LEVEL)
    (attributes,) = [line for line in text.split("\n") if line.startswith("attributes ")]
    for part in ("noinline", f'"tune-cpu"="{LEVEL.tune}"', f'"prefer-vector-width"="{LEVEL.vector_bits}"', LEVEL.features[-1]):
        assert part in attributes


def test_addresses_further_than_an_instruction_says() -> None:
    """Constant indices have 32 bits, in MLIR as in LLVM's text; constants of a model may take more."""
    indices = [i for n in (1, (1 << 31) - 1, 1 << 31, (1 << 32) + 5, 1 << 40) for i in (n, -n)]
    module = KernelModule(TARGET)
    fn = Fn(module, "store", [("to", PTR), ("base", PTR)], internal=False)
    to, base = fn.args
    for k, i in enumerate(indices):
        fn.store(fn.ptr_to_int(fn.gep(base, i, "f32")), fn.gep(to, k, I64))
    fn.done()
    jit = Jit([compile_object(lower_to_llvm_ir(module.text(), TARGET), TARGET)])
    out, base_address = np.zeros(len(indices), np.int64), 1 << 45
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(jit.address("store"))(out.ctypes.data, base_address)
    assert out.tolist() == [base_address + 4 * i for i in indices]
