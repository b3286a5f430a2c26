"""The table of element types: one code a type, sizes in bits, and what is made of both."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import dhlo
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.target import BITS
from dhlo.frontend.compat import VERSION
from dhlo.ir.dtypes import DTYPES, DType
from dhlo.ir.symbols import evaluate
from dhlo.ir.types import TensorType, from_torch_dtype

NIBBLE = DType("i4", "quint4x2", 4, "i8", 99)


def test_names_and_codes_are_of_one_type_each() -> None:
    table = list(DTYPES.values())
    for names in ([d.code for d in table], [d.torch_name for d in table], [d.name for d in table]):
        assert len(set(names)) == len(table)
    assert [d.code for d in table] == list(range(len(table)))


@pytest.mark.parametrize("name", DTYPES)
def test_an_element_is_as_large_as_torchs(name: str) -> None:
    d = DTYPES[name]
    assert from_torch_dtype(d.torch) is d
    assert d.bytes * 8 == d.bits == d.torch.itemsize * 8
    assert str(d.torch) == f"torch.{d.torch_name}"
    assert abi.DTYPES[d.torch_name] == d.code and abi.DTYPE_BYTES[d.torch_name] == d.bytes
    assert BITS[d.register] >= 1


def test_registers_have_the_bits_of_their_types() -> None:
    assert BITS == {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def test_floats_of_eight_bits_convert_as_in_pytorch() -> None:
    """Every f16 and bf16, f32 of all magnitudes, ties and limits; and back every code."""
    e4, e5 = torch.float8_e4m3fn, torch.float8_e5m2

    class Casts(torch.nn.Module):
        def forward(self, x: Any, h: Any, b: Any, d: Any, i: Any, q: Any) -> list[Any]:
            narrow = [v.to(e) for v in (x, h, b, d, i) for e in (e4, e5)]
            codes = [q.view(e) for e in (e4, e5)]
            wide = [c.to(t) for c in codes for t in (torch.float32, torch.bfloat16, torch.float16, torch.float64)]
            wide += [v.to(e).to(torch.float32) for v in (q, q.view(torch.int8), *codes) for e in (e4, e5)]  # in registers
            rows, index = codes[1][:, None].expand(-1, 3), torch.arange(x.shape[0]) // 2
            wide += [
                v.to(torch.float32) for v in (rows.t().contiguous(), rows[index], torch.where(x[:, None] > 0, rows, rows[index]))
            ]
            rounded = [(x * 2).to(e).to(torch.float32) + 1 for e in (e4, e5)]
            return [*narrow, *wide, *rounded, narrow[0].view(torch.uint8), torch.cat([codes[0], codes[0]]), codes[0].to(e5)]

    def inputs(n: int) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(n)
        bits = torch.arange(n, dtype=torch.int32)
        ties = torch.arange(256).to(torch.uint8).view(e4).float()
        ties = torch.cat([ties, (ties[1:] + ties[:-1]) / 2])[torch.randint(0, 511, (n,), generator=g)]
        any_f32 = torch.randint(-(1 << 31), 1 << 31, (n,), generator=g).to(torch.int32).view(torch.float32)
        x = torch.where(torch.rand(n, generator=g) < 0.5, ties, any_f32)
        h, b = (bits.to(torch.int16).view(t) for t in (torch.float16, torch.bfloat16))
        return [x, h, b, x.double(), torch.randint(-600, 600, (n,), generator=g), bits.to(torch.uint8)]

    n = torch.export.Dim("n")
    model = dhlo.compile(torch.export.export(Casts(), tuple(inputs(64)), dynamic_shapes=(({0: n},) * 6)))
    for size in (0, 1, 2, 17, 1 << 16):
        args = inputs(size)
        for k, (got, want) in enumerate(zip(model(*args), Casts()(*args), strict=True)):
            assert got.dtype == want.dtype and got.shape == want.shape
            if got.dtype == torch.uint8:  # e4m3fn's bits, of which NaN has two
                got, want = (v.view(e4) for v in (got, want))
            got, want = got.double(), want.double()
            if VERSION < (2, 13):  # where numbers beyond e4m3fn's largest become NaN
                want = torch.where(want.isnan(), got, want)
            assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(9), want.nan_to_num(9)), (size, k)


def test_types_narrower_than_a_byte_lie_without_gaps() -> None:
    t = TensorType.of(NIBBLE, ["n", 3])
    assert [evaluate(t.bytes, {"n": n}) for n in (0, 1, 2, 5)] == [0, 2, 3, 8]
    with pytest.raises(TypeError, match="4 bits"):
        _ = NIBBLE.bytes


def test_tensors_of_whole_bytes_have_plain_sizes() -> None:
    assert str(TensorType.of("f32", ["n", 3]).bytes) == "12*n"
    assert TensorType.of("bf16", [2, 3]).bytes == 12
    assert torch.empty(2, 3, dtype=torch.bfloat16).nbytes == 12


def test_hashes_are_bits_of_64() -> None:
    """Of several dtypes, along dims and of all; their bits move, compare and combine as PyTorch's."""

    class Hashes(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            h, rows = torch.hash_tensor(x), torch.hash_tensor(x, 1)
            both = torch.stack([rows, torch.hash_tensor(x.half(), [1])])
            whole = torch.hash_tensor(i, 0, keepdim=True), torch.hash_tensor(i > 0), torch.hash_tensor(x.double())
            return h, both.t(), *whole, h == rows, h.view(torch.int64) ^ 1, both[0].view(torch.int32)

    for rows, columns, k in ((5, 7, 4), (1, 1, 1), (17, 300, 9)):  # torch.export fixes the sizes of what is hashed
        x, i = torch.randn(rows, columns), torch.randint(-9, 9, (k, 3))
        want = Hashes()(x, i)
        compiled = dhlo.compile(torch.export.export(Hashes(), (x, i)))
        for got, w in zip(compiled(x, i), want, strict=True):
            assert got.dtype == w.dtype and torch.equal(got, w)


def test_there_is_no_arithmetic_of_unsigned_64_bits() -> None:
    class Number(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.hash_tensor(x, 1).to(torch.int64)

    with pytest.raises(dhlo.CompileError, match="no arithmetic of uint64"):
        dhlo.compile(torch.export.export(Number(), (torch.randn(3, 4),)))


def test_reduced_floats_become_each_other() -> None:
    """Their sixteen bits hold different numbers: rounded also where the result stays in registers."""

    class Casts(torch.nn.Module):
        def forward(self, h: Any, b: Any) -> list[Any]:
            return [h.to(torch.bfloat16).float(), b.to(torch.float16).float(), h.to(torch.bfloat16) + b, b.to(torch.float16) * h]

    n = torch.export.Dim("n")
    args = [torch.arange(8, dtype=torch.int16).view(t) for t in (torch.float16, torch.bfloat16)]
    model = dhlo.compile(torch.export.export(Casts(), tuple(args), dynamic_shapes=({0: n}, {0: n})))
    for size in (0, 1, 17, 1 << 16):
        args = [torch.arange(size, dtype=torch.int32).to(torch.int16).view(t) for t in (torch.float16, torch.bfloat16)]
        for got, want in zip(model(*args), Casts()(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_unsigned_64_bits_as_inputs_and_constants() -> None:
    class Bits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("c", torch.tensor([0, 1, (1 << 63) + 5], dtype=torch.uint64))

        def forward(self, x: Any, i: Any) -> list[Any]:
            return [x.view(torch.int64) * 2, x[i], (~x).view(torch.int64), (~self.c).view(torch.int64)[i], x[i] == self.c[i]]

    n, k = torch.export.Dim("n"), torch.export.Dim("k")
    x, i = torch.arange(4).to(torch.uint64), torch.tensor([0, 2])
    model = dhlo.compile(torch.export.export(Bits(), (x, i), dynamic_shapes=({0: n}, {0: k})))
    for size, count in ((4, 2), (3, 0), (9, 5)):
        x, i = (torch.randint(-9, 9, (size,)) << 60).view(torch.uint64), torch.arange(count) % 3
        c = Bits().c
        want = [x.view(torch.int64) * 2, x[i], ~x.view(torch.int64), (~c.view(torch.int64))[i], x[i] == c[i]]
        for got, w in zip(model(x, i), want, strict=True):
            assert got.dtype == w.dtype and torch.equal(got, w)


def test_numbers_too_large_for_a_type_on_the_way_overflow() -> None:
    """The largest f16 is rounded up to bf16, and then is no f16 any more."""

    class Casts(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return [x.bfloat16().half().bfloat16(), x.bfloat16().float().bfloat16(), x.float().bfloat16().half().bfloat16().float()]

    x = torch.tensor([65504.0, -65504.0, 3.0, 1e-7, torch.nan], dtype=torch.float16)
    for got, want in zip(dhlo.compile(torch.export.export(Casts(), (x,)))(x), Casts()(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_integers_of_what_they_do_not_hold_are_the_same_each_time() -> None:
    """Which ones, PyTorch doesn't say; what memory held before isn't it."""

    class Undefined(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            bounded = torch.clamp(torch.round(x * 2.0), 0.0, math.nan)
            return bounded.to(torch.int8), (x * math.nan).to(torch.uint8), (x * 0 + 1e30).int(), (x.double() * math.nan).long()

    rows = {0: torch.export.Dim("n", max=999)}
    model = dhlo.compile(torch.export.export(Undefined(), (torch.randn(40),), dynamic_shapes=(rows,)), cache="")
    first, *others = ([r.unique().tolist() for r in model(torch.randn(n))] for n in (1, 17, 999))
    assert all(len(values) == 1 for values in first) and all(other == first for other in others)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_statistics_of_any_floats_are_as_in_pytorch(dtype: torch.dtype) -> None:
    """Means, variances and their roots far from 0, which are rounded once; and what is counted in a wider type."""

    class Statistics(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4, dtype=dtype)

        def forward(self, x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
            pairs = *torch.var_mean(x, -1), *torch.std_mean(x, 0, keepdim=True, correction=0), *torch.var_mean(x)
            return *pairs, torch.bincount(torch.zeros_like(weights, dtype=torch.int64), weights, 3), self.norm(x)

    module, auto = Statistics(), torch.export.Dim.DYNAMIC

    def arguments(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (torch.randn(rows, 4) + 1000).to(dtype), torch.ones(rows * 100, dtype=dtype)

    exported = torch.export.export(module, arguments(5), dynamic_shapes=({0: auto}, {0: auto}))
    model = dhlo.compile(exported)
    mean, var = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    for rows in (2, 3, 15, 17, 50):
        given = arguments(rows)
        for got, want in zip(model(*given)[:-1], module(*given)[:-1], strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)
        mean, var = 0.9 * mean + 0.1 * given[0].double().mean(0), 0.9 * var + 0.1 * given[0].double().var(0)
    bound = 0.02 if dtype.itemsize == 2 else 1e-4  # eager's own are farther off: of bf16 it rounds the mean first
    for name, want in (("norm.running_mean", mean), ("norm.running_var", var)):
        torch.testing.assert_close(model.read_state(name).double(), want, rtol=bound, atol=0)
