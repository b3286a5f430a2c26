"""Products with right sides of codes against the widened reference: every code, odd sizes, groups, strides, special values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dhlo.codegen.families.gemm.quantised import FORMS, QuantisedMatrix
from dhlo.ir.dialect import build
from dhlo.ir.ops.compute import Matmul
from dhlo.ir.ops.elementwise import Convert
from dhlo.ir.ops.movement import Transpose, Weight
from dhlo.ir.ops.quantised import CODES, Dequantize
from dhlo.ir.ops.sequence import GroupedMatmul
from dhlo.ir.types import TensorType, from_mlir, from_torch_dtype
from tests.programs import Module, Part, t

ROWS = (0, 1, 2, 5, 7, 13, 27, 35, 100)
# k, n, groups, zero points
SMALL = ((1, 1, 1, False), (2, 33, 1, True), (31, 32, 1, False), (64, 31, 2, True), (192, 65, 3, False))
# Several blocks of fixed point a group, and chunks of k that begin within groups.
SIZES = (*SMALL, (320, 40, 1, True), (1320, 33, 5, True))


def draw_codes(code: str, shape: Sequence[int], g: torch.Generator) -> torch.Tensor:
    """Any codes but infinities and NaN."""
    _, bits, _ = CODES[code]
    signed = code in ("i8", "i4")
    low = -(1 << bits - 1) if signed else 0
    q = torch.randint(low, low + (1 << bits), tuple(shape), generator=g)
    q = q.to(torch.int8 if signed else torch.uint8)
    if code == "f8e4m3fn":
        q[(q & 0x7F) == 0x7F] = 1
    if code == "f8e5m2":
        q[(q & 0x7C) == 0x7C] = 1
    return q


def weight(weights: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    name = f"w{len(weights)}"
    weights[name] = x
    return lambda: build(Weight, [], {"name_": name}, results=[TensorType.of(from_torch_dtype(x.dtype), list(x.shape))]).results[0]


def linear(
    weights: dict[str, torch.Tensor], code: str, q: torch.Tensor, *parameters: torch.Tensor, dtype: str = "f32", swap: bool = True
) -> Callable[[Any], Any]:
    """x times what codes stand for, the last two dims of these swapped."""
    q_, *rest = (weight(weights, p) for p in (q, *parameters))

    def body(x: Any) -> Any:
        w = build(Dequantize, [q_(), *(p() for p in rest)], {"code": code, "dtype": dtype}).results[0]
        order = list(range(q.dim()))
        order[-2:] = reversed(order[-2:])
        w = build(Transpose, [w], {"perm": order}).results[0] if swap else w
        return [build(Matmul, [x, w]).results[0]]

    return body


def normal(dtype: Any, size: Sequence[int], g: torch.Generator) -> torch.Tensor:
    return torch.randn(tuple(size), generator=g).to(dtype.torch)


def close(got: torch.Tensor, want: torch.Tensor, tol: float) -> None:
    assert got.shape == want.shape
    if want.numel():
        error = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1e-30)
        assert error <= tol, f"off by {error:.1e} of scale"


def products(code: str, sizes: Sequence[tuple[int, int, int, bool]]) -> Module:
    """One module of a code at all sizes, for f32 and bf16."""
    g, weights, parts = torch.Generator().manual_seed(0), dict[str, torch.Tensor](), []
    for k, n, groups, zero in sizes:
        for dtype in ("f32", "bf16"):
            parameters = [torch.rand((n, groups), generator=g) * 0.1 + 0.01]
            if zero:
                parameters.append(torch.randint(0, 16, (n, groups), generator=g).float() - 0.5)
            q = draw_codes(code, (n, k), g)
            parts.append(Part([(t(dtype, "m", k), normal)], linear(weights, code, q, *parameters, dtype=dtype)))
    return Module(parts, weights)


# Read as others are: but for a sign, or for other constants of the same conversion.
ALIKE = ("ui8", "i4", "f8e5m2")


@functools.cache
def programs(code: str) -> tuple[Module, Any]:
    module = products(code, SIZES)
    return module, module.compile()


def check(module: Module, model: Callable[..., Any], m: int) -> None:
    """One call with `m` rows, now and then with elements that don't lie side by side."""
    inputs = module.draw({"m": m}, m)
    if m == 7:
        inputs = [x.t().contiguous().t() for x in inputs]
    for x, got, want in zip(inputs, model(*inputs), module.interpret(inputs), strict=True):
        close(got, want, 1e-5 if x.dtype == torch.float32 else 2e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", [pytest.param(c, marks=pytest.mark.slow if c in ALIKE else ()) for c in CODES])
def test_every_code_at_every_size(code: str) -> None:
    module, (model, artifact) = programs(code)
    for m in ROWS:
        check(module, model, m)
    # The small sizes are filled up to panels of 32 columns, and to whole units.
    widened = sum(4 * k * -(-n // 32) * 32 for k, n, *_ in SIZES)
    assert artifact.constants.bytes < widened * 2, "codes were widened"


@pytest.mark.parametrize("code", ["i8", "ui4"])
def test_infinite_and_tiny_elements(code: str) -> None:
    module, (model, _) = programs(code)
    for m in (1, 3, 50):
        inputs = module.draw({"m": m}, m)
        for i, x in enumerate(inputs):
            x[0, 0] = (torch.inf, -torch.inf, torch.nan)[i % 3]
            if m > 1:
                x[1] *= 1e-28
                x[2] *= 1e30
        for x, got, want in zip(inputs, model(*inputs), module.interpret(inputs), strict=True):
            assert torch.equal(got[0].isnan(), want[0].isnan())
            finite = want.isfinite()
            assert torch.equal(got[~finite].nan_to_num(), want[~finite].nan_to_num())
            for r in range(1, m):
                close(got[r], want[r], 1e-5 if x.dtype == torch.float32 else 2e-2)


def test_an_outlier_leaves_other_blocks_alone() -> None:
    """What is lost of an element depends on the largest of its block of k, not of its row."""
    g, weights = torch.Generator().manual_seed(1), dict[str, torch.Tensor]()
    q = draw_codes("i4", (64, 1024), g)
    q[:, :32] = 0
    module = Module([Part([(t("f32", "m", 1024), normal)], linear(weights, "i4", q, torch.full((64, 32), 0.02)))], weights)
    model, _ = module.compile()
    x = torch.randn((2, 1024), generator=g)
    x[:, 3] = 1e8
    close(model(x), module.interpret([x])[0], 1e-5)


@pytest.mark.parametrize("code", ["i4", "i8"])
def test_small_scales_beside_large_elements(code: str) -> None:
    """What a large element meets only as a zero leaves the others' products with small scales as they are."""
    g, weights = torch.Generator().manual_seed(4), dict[str, torch.Tensor]()
    q = draw_codes(code, (64, 192), g)
    q[:, 5] = 0
    module = Module([Part([(t("f32", "m", 192), normal)], linear(weights, code, q, torch.full((64, 1), 2.0**-120)))], weights)
    model, _ = module.compile()
    for m in (1, 2, 5, 7, 12):
        x = torch.randn((m, 192), generator=g)
        x[:, 5] = 3e20
        close(model(x) * 2.0**100, module.interpret([x])[0] * 2.0**100, 1e-4)  # 12 bits of a block's smaller half


def test_e4m3_nan() -> None:
    g, weights = torch.Generator().manual_seed(2), dict[str, torch.Tensor]()
    q = draw_codes("f8e4m3fn", (40, 64), g)
    q[3, 5], q[39, 63] = 0x7F, 0xFF
    module = Module([Part([(t("f32", "m", 64), normal)], linear(weights, "f8e4m3fn", q, torch.ones((40, 4))))], weights)
    model, _ = module.compile()
    for m in (1, 40):
        x = module.draw({"m": m}, m)
        got, want = model(*x), module.interpret(x)[0]
        assert got.isnan().any(0).nonzero().flatten().tolist() == [3, 39]
        close(got.nan_to_num(), want.nan_to_num(), 1e-5)


def test_batches_and_codes_as_they_lie() -> None:
    g, weights = torch.Generator().manual_seed(3), dict[str, torch.Tensor]()
    batched = linear(weights, "i8", draw_codes("i8", (3, 40, 64), g), torch.rand((3, 40, 1), generator=g))
    straight = linear(weights, "ui4", draw_codes("ui4", (64, 40), g), torch.rand((2, 40), generator=g), swap=False)
    whole = linear(weights, "i8", draw_codes("i8", (40, 64), g), torch.rand((1, 1), generator=g))
    rows = [(t("f32", "m", 64), normal)]
    module = Module([Part([(t("f32", 3, "m", 64), normal)], batched), Part(rows, straight), Part(rows, whole)], weights)
    model, _ = module.compile()
    for m in (1, 4, 50):
        inputs = module.draw({"m": m}, m)
        for got, want in zip(model(*inputs), module.interpret(inputs), strict=True):
            close(got, want, 1e-5)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_groups_of_rows(dtype: str) -> None:
    """Matrices of experts, some of which have no rows."""
    g, weights = torch.Generator().manual_seed(6), dict[str, torch.Tensor]()
    q_, scale = (weight(weights, x) for x in (draw_codes("i4", (4, 64, 40), g), torch.rand((4, 2, 40), generator=g)))
    ends = weight(weights, torch.tensor([1, 1, 18, 30]))

    def body(x: Any) -> Any:
        w = build(Dequantize, [q_(), scale()], {"code": "i4", "dtype": dtype}).results[0]
        return [build(GroupedMatmul, [x, w, ends()]).results[0]]

    module = Module([Part([(t(dtype, "m", 64), normal)], body)], weights)
    model, artifact = module.compile()
    assert artifact.constants.bytes < 4 * 64 * 64
    for m in (18, 30, 70):
        x = module.draw({"m": m}, m)
        close(model(*x), module.interpret(x)[0], 1e-5 if dtype == "f32" else 2e-2)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8"])
def test_weights_that_are_only_converted(dtype: str) -> None:
    """They are kept as they are, whatever the order of transposition and conversion."""
    g, weights, parts = torch.Generator().manual_seed(4), dict[str, torch.Tensor](), []
    sizes = ((1, 1), (31, 33), (200, 70))
    for k, n in sizes:
        for convert_first in (True, False):
            stored = (torch.randn((n, k), generator=g) * 20).to(TensorType.of(dtype, [1]).dtype.torch)
            made = weight(weights, stored)

            def body(x: Any, made: Any = made, convert_first: bool = convert_first) -> Any:
                def convert(w: Any) -> Any:
                    return build(Convert, [w], results=[TensorType.of("f32", from_mlir(w).shape)]).results[0]

                def swap(w: Any) -> Any:
                    return build(Transpose, [w], {"perm": [1, 0]}).results[0]

                return [build(Matmul, [x, swap(convert(made())) if convert_first else convert(swap(made()))]).results[0]]

            parts.append(Part([(t("f32", "m", k), normal)], body))
    module = Module(parts, weights)
    model, artifact = module.compile()
    for m in (0, 1, 3, 8, 60):
        inputs = module.draw({"m": m}, m)
        for got, want in zip(model(*inputs), module.interpret(inputs), strict=True):
            close(got, want, 1e-5)
    panels = sum(-(-k // 4) * 4 * 32 * -(-n // 32) for k, n in sizes)
    assert artifact.constants.bytes < 2 * panels * (1 if dtype == "i8" else 2) + 6 * 1024, "weights were widened"


def test_f16_modules_round_once() -> None:
    import dhlo

    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48).half()
    rows = torch.export.Dim("rows", max=4096)
    model = dhlo.compile(torch.export.export(linear, (torch.randn(3, 64).half(),), dynamic_shapes=({0: rows},)))
    for m in (1, 2, 16, 100):
        x = torch.randn(m, 64).half()
        close(model(x), linear.float()(x.float()).half(), 1e-3)
        linear.half()


def test_what_has_no_form_is_widened() -> None:
    """Groups that cut units of codes apart."""
    g, weights = torch.Generator().manual_seed(5), dict[str, torch.Tensor]()
    q = draw_codes("ui4", (40, 12), g)
    product = linear(weights, "ui4", q, torch.rand((40, 4), generator=g))
    experts, scale, ends = (
        weight(weights, x) for x in (draw_codes("i4", (2, 12, 8), g), torch.rand((2, 4, 1)), torch.tensor([3, 9]))
    )

    def grouped(x: Any) -> Any:
        w = build(Dequantize, [experts(), scale()], {"code": "i4", "dtype": "f32"}).results[0]
        return [build(GroupedMatmul, [x, w, ends()]).results[0]]

    rows = [(t("f32", "m", 12), normal)]
    module = Module([Part(rows, product), Part(rows, grouped)], weights)
    model, _ = module.compile()
    for m in (9, 30):
        x = module.draw({"m": m}, m)
        for got, want in zip(model(*x), module.interpret(x), strict=True):
            close(got, want, 1e-5)


def test_panels_hold_scales_in_the_narrowest_type() -> None:
    q = torch.zeros((64, 32), dtype=torch.int8)
    exact, wide = torch.full((1, 32), 0.5), torch.full((1, 32), 0.1)
    assert QuantisedMatrix("i8", q, exact, None).coding.scale == "f16"
    assert QuantisedMatrix("i8", q, exact * 2.0**100, None).coding.scale == "bf16"
    assert QuantisedMatrix("i8", q, wide, None).coding.scale == "f32"
    matrix = QuantisedMatrix("i4", q, wide, exact)
    assert matrix.coding.zero == "f16"
    assert matrix.bytes == len(matrix.pack()) == 64 * 32 // 2 + 32 * (4 + 2)
    assert set(FORMS) == {*CODES, "f16", "bf16"}


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 1e37])
def test_parameters_out_of_proportion_are_widened(bad: float) -> None:
    """An infinite scale makes a column infinite or, where codes are 0, NaN, as it does code by code."""
    g, weights = torch.Generator().manual_seed(7), dict[str, torch.Tensor]()
    q, scale = draw_codes("i8", (40, 64), g), torch.rand((40, 2), generator=g) * 0.1 + 0.01
    q[4], scale[3, 1], scale[4, 0] = 5, bad, bad
    module = Module([Part([(t("f32", "m", 64), normal)], linear(weights, "i8", q, scale))], weights)
    model, _ = module.compile()
    for m in (1, 50):
        x = module.draw({"m": m}, m)
        got, want = model(*x), module.interpret(x)[0]
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
        usual = [c for c in range(40) if c not in (3, 4)]
        close(got[:, usual], want[:, usual], 1e-5)
