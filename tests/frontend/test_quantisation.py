"""Quantised programs: what PyTorch's quantisers leave in a graph, and operators of other libraries that are Python code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators

import dhlo
from tests.frontend.helpers import export
from tests.frontend.test_more_ops import compiled

A: Any = torch.ops.aten
Q: Any = torch.ops.quantized_decomposed
i8 = torch.int8
LIMITS = (-128, 127, i8)


def rn(*shape: int) -> torch.Tensor:
    return 9 * torch.randn(shape)


def scales(n: int) -> list[torch.Tensor]:
    return [torch.rand(n) + 0.1, torch.randint(-4, 4, (n,))]


def test_static_quantisation() -> None:
    def f(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        q, c = Q.quantize_per_tensor(x, 0.1, 3, *LIMITS), Q.quantize_per_channel(x, s, z, 1, *LIMITS)
        plain = Q.dequantize_per_channel(c, s, None, 1, *LIMITS)
        return q, c, plain, Q.dequantize_per_tensor(q, 0.1, 3, *LIMITS), Q.dequantize_per_channel(c, s, z, 1, *LIMITS)

    compiled(f, *([rn(m, n), *scales(n)] for m, n in ((3, 4), (1, 1), (0, 5), (17, 33))))


def test_quantisation_chosen_at_the_call() -> None:
    def f(x: torch.Tensor) -> Any:
        s, z = Q.choose_qparams(x, -128, 127, 1e-5, i8)
        q = Q.quantize_per_tensor.tensor(x, s, z, *LIMITS)
        st, zt = Q.choose_qparams_per_token_asymmetric(x, i8)
        t = Q.quantize_per_token(x, st, zt, *LIMITS)
        back = Q.dequantize_per_tensor.tensor(q, s, z, *LIMITS), Q.dequantize_per_token(t, st, zt, *LIMITS, torch.float32)
        return s, z, *back, *Q.choose_qparams_symmetric(x, -128, 127, 1e-5, i8), *Q.choose_qparams_per_token(x, i8)

    compiled(f, [rn(3, 4)], [rn(7, 1)], [rn(16, 40) + 50], [torch.zeros(2, 3)])


def test_groups_of_weights() -> None:
    def f(w: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        return Q.dequantize_per_channel_group(w, s, z, -8, 7, i8, 4, torch.float32)

    compiled(f, [torch.randint(-8, 7, (3, 8), dtype=i8), torch.rand(3, 2), torch.zeros(3, 2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fake_quantisation(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        one, zero = s[0], z[0].int()
        return (
            *A.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -128, 127),
            torch.fake_quantize_per_tensor_affine(x, one, zero, -8, 7),
            torch.fake_quantize_per_channel_affine(x, s, z.int(), 1, -20, 100),
        )

    x, s, z = rn(5, 7).to(dtype), *scales(7)
    model = dhlo.compile(export(f, (x, s, z), ({}, {}, {})))  # PyTorch can't trace it at dynamic sizes
    for got, want in zip(model(x, s, z), f(x, s, z), strict=True):
        torch.testing.assert_close(got, want)


def test_products_of_bytes() -> None:
    def bytes_(*shape: int) -> torch.Tensor:
        return torch.randint(-128, 127, shape, dtype=i8)

    compiled(torch._int_mm, [bytes_(32, 16), bytes_(16, 32)], [bytes_(33, 8), bytes_(8, 40)])
    unsigned: Any = lambda *shape: torch.randint(0, 256, shape, dtype=torch.uint8)
    compiled(torch._int_mm, [unsigned(32, 16), bytes_(16, 32)], [unsigned(1, 9), bytes_(9, 1)], [unsigned(3, 0), bytes_(0, 4)])
    compiled(torch.matmul, [bytes_(4, 3, 16), bytes_(4, 16, 5)], [bytes_(2, 1, 131), bytes_(2, 131, 40)])
    compiled(torch.matmul, [unsigned(5, 16), unsigned(16, 3)], [unsigned(1, 300), unsigned(300, 2)])
    w8 = lambda x, w, s: A._weight_int8pack_mm(x, w, s)
    compiled(w8, [torch.rand(8, 16).bfloat16(), bytes_(32, 16), torch.rand(32).bfloat16()])


class Quantised(torch.nn.Module):
    """Products of one left side, which become one product with a wider right side."""

    def __init__(self) -> None:
        super().__init__()
        for n in "qkv":
            self.register_buffer(n, torch.randint(-128, 128, (24, 40), dtype=i8))
            self.register_buffer(n + "_bias", torch.randint(-999, 999, (24,), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        products = (torch._int_mm(x, getattr(self, n).t()) + getattr(self, n + "_bias") for n in "qkv")
        return torch.stack([y.reshape(-1, 4, 6).transpose(0, 1) for y in products])


def test_joined_products_of_bytes() -> None:
    module = Quantised().eval()
    draw: Any = lambda n: torch.randint(-128, 128, (n, 40), dtype=i8)
    model = dhlo.compile(export(module, (draw(5),), ({0: torch.export.Dim.AUTO},)))
    for n in (1, 2, 7, 33):
        x = draw(n)
        assert torch.equal(model(x), module(x))


@torch.library.custom_op("dhlo_test::shifted", mutates_args=())
def shifted(x: torch.Tensor, n: int) -> torch.Tensor:
    return (x * n).sin() + x.sum()


@shifted.register_fake
def _(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("dhlo_test::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, n: int) -> None:
    x.add_(n)


@torch.library.custom_op("dhlo_test::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)


@through_numpy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_in_python_are_traced() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.clone()
        add_to(y, 3)
        return y, shifted(x, 3), shifted(x, x.size(0))

    compiled(f, [torch.rand(3, 4)], [torch.rand(7, 1)], [torch.rand(40, 5)])


def test_operators_that_leave_pytorch_are_refused() -> None:
    with pytest.raises(dhlo.UnsupportedError, match=r"dhlo_test\.through_numpy\.default"):
        dhlo.compile(export(through_numpy, [torch.rand(3, 4)]))
