"""What a worker prepares for a block of items it prepares once, in however many ranges it gets them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dhlo.codegen.families.gemm.quantised import FORMS
from dhlo.codegen.families.gemm.quantised_dots import has_dots
from dhlo.codegen.families.gemm.register_tile import BF16, tile_spec
from dhlo.codegen.kernel_ir.builder import F32
from tests.codegen import test_conv_tiles
from tests.codegen.conv_host import build_conv, conv_params
from tests.codegen.test_conv import CONVS, operands, reference
from tests.codegen.test_matmul import program, run, tensor
from tests.codegen.test_matmul_bytes import runs_here
from tests.codegen.test_quantised_products import Product
from tests.codegen.test_tiles import WITHOUT
from tests.codegen.test_winograd import cube, forced, square
from tests.targets import TARGET, TILES

POINTWISE, WINDOWS = CONVS[4], replace(CONVS[11], groups=1)
BUILT = {
    "positions in vectors": (POINTWISE, build_conv, (1, 2, TILES.nr(F32) // 2)),
    "channels in vectors": (WINDOWS, build_conv, (1, 2, 3)),
    "winograd": (square(40, 72), lambda c: forced(c, (4,)), (1, 8, 8)),
    "winograd of planes": (cube(8, 72), lambda c: forced(c, (4,), by_planes=True), (1, 2, 4, 4)),
}


def spoil(x: Any) -> None:
    """Makes an operand NaN that has been read for good."""
    x[...] = np.nan


@pytest.mark.parametrize("name", BUILT)
def test_images_are_packed_once(name: str) -> None:
    conv, build, sizes = BUILT[name]
    x, weight = operands(conv, sizes)
    want, built = reference(conv, x, weight), build(conv)
    params, out = conv_params(conv, x, weight)
    (launch,) = built.record(**params)
    assert launch.count == -(-conv.out_channels // conv.spec.panel(F32)) > 1  # one block
    with built.in_two_ranges(lambda: spoil(x)):
        built(**params)
    assert np.isnan(x).all()
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-3)
    # Another worker, or another call, packs them again.
    fresh, _ = operands(conv, sizes)
    params, out = conv_params(conv, fresh, weight)
    for seed in (1, 2, 3):
        out[...] = 777
        built(num_threads=2, seed=seed, **params)
        np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-3)
    fresh *= 2
    built(**params)
    np.testing.assert_allclose(out, 2 * want, rtol=1e-3, atol=2e-3)


@pytest.mark.skipif(not runs_here(WITHOUT), reason="dot products of bf16 stand beside tiles")
def test_images_are_laid_once_for_matrix_registers() -> None:
    c = test_conv_tiles.conv(64, 96, 1)
    x, weight = test_conv_tiles.operands(c, (1, 5, 8))
    want = torch.conv2d(x.double(), weight.double()).numpy()
    built = test_conv_tiles.build(c)
    params, out = test_conv_tiles.parameters(c, x, weight, test_conv_tiles.FAST)
    with built.in_two_ranges(lambda: x.fill_(float("nan"))):
        built(**params)
    np.testing.assert_allclose(np.asarray(out), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("elem", [F32, BF16])
def test_rows_are_packed_once(elem: str) -> None:
    """Those of a transposed left side, which isn't read where it lies."""
    rng = np.random.default_rng(3)
    a, b = np.swapaxes(tensor(rng, (1, 1, 70, 23), elem), -1, -2), tensor(rng, (1, 1, 70, 200), elem)
    want = run(a, b, packed=True)
    with program(elem, True, False, TILES).in_two_ranges(lambda: np.copyto(a, np.full_like(a, np.nan if elem == F32 else 0x7FC0))):
        got = run(a, b, packed=True)
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(want).all()


@pytest.mark.skipif(not has_dots(TARGET, FORMS["i8"]), reason="no dot products of bytes")
@pytest.mark.parametrize("block", [0, 64])
def test_rows_are_rounded_once(block: int) -> None:
    """For weights as codes: to limbs, and to bytes where activations are."""
    g = torch.Generator().manual_seed(1)
    q = torch.randint(-128, 128, (64, 200), dtype=torch.int8, generator=g)
    product = Product(tile_spec(TARGET), "i8", q, torch.rand((1, 200), generator=g), block=block)
    a = torch.randn((1, 5, 64), generator=g)
    want = product(a)
    with product.program.in_two_ranges(lambda: a.fill_(float("nan"))):
        got = product(a)
    assert a.isnan().all() and want.isfinite().all() and torch.equal(got, want)
