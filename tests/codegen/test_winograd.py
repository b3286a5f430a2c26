"""Winograd's convolution against PyTorch in float64: maps, sizes, splits, epilogues, strides, targets, and when it is chosen."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import dhlo
from dhlo.codegen.families.conv import winograd_transforms as maps
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.codegen.families.conv.winograd_kernel import FIELDS
from dhlo.codegen.families.conv.winograd_planes import WinogradOfPlanes
from dhlo.codegen.families.gemm.register_tile import tile_spec
from dhlo.codegen.kernel_ir.builder import KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.target import parse_target
from tests.codegen.conv_host import build_conv, conv_params, run_conv
from tests.codegen.harness import Program
from tests.codegen.test_conv import operands, reference
from tests.targets import TILES

SIZES = [(1, 8, 8), (1, 7, 7), (2, 14, 13), (1, 1, 1), (3, 5, 50), (1, 3, 300), (5, 2, 3), (1, 30, 31), (0, 8, 8)]
PADS = ((1, 1), (1, 1))


def square(ins: int, outs: int, pads: Any = PADS, **options: Any) -> Conv:
    return Conv(ins, outs, (3, 3), (1, 1), pads, (1, 1), spec=options.pop("spec", TILES), winograd=maps.SIDES, **options)


def cube(
    ins: int, outs: int, planes: int = 3, stride: int = 1, dilation: int = 1, pads: Any = ((1, 1), *PADS), **options: Any
) -> Conv:
    """Windows of some planes of 3 x 3."""
    spec = options.pop("spec", TILES)
    return Conv(ins, outs, (planes, 3, 3), (stride, 1, 1), pads, (dilation, 1, 1), spec=spec, winograd=maps.SIDES, **options)


@functools.cache
def forced(conv: Conv | ConvTranspose, sides: tuple[int, ...], by_planes: bool = False, **options: bool) -> Program:
    """The convolution compiled so that it takes a tile of that side wherever it can; if `by_planes`, with planes mapped once."""

    def cost(self: Winograd, host: HostContext, out: Any, cut: Any) -> V:
        return host.fn.i64(int(by_planes is not isinstance(self, WinogradOfPlanes)))

    with mock.patch.object(Winograd, "cost", cost):
        return build_conv(replace(conv, winograd=sides), **options)


def error(out: Any, expected: Any) -> float:
    """The greatest difference, as a part of the greatest value."""
    return float(np.abs(out - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-30))


class _Numbers:
    """Does at once what a function's builder would write code for."""

    def const(self, value: float, ty: str) -> _Number:
        return _Number(Fraction(value).limit_denominator(1000))

    def add(self, a: _Number, b: _Number) -> _Number:
        return _Number(a.value + b.value)

    def sub(self, a: _Number, b: _Number) -> _Number:
        return _Number(a.value - b.value)

    def mul(self, a: _Number, b: _Number) -> _Number:
        return _Number(a.value * b.value)

    def fma(self, a: _Number, b: _Number, c: _Number) -> _Number:
        return _Number(a.value * b.value + c.value)


class _Number:
    type = "number"

    def __init__(self, value: Fraction | int) -> None:
        self.value = Fraction(value)


@pytest.mark.parametrize("n", maps.SIDES)
def test_windows_two_inputs_apart(n: int) -> None:
    """A filter of three taps as one of two and one in order, exactly."""
    kind = maps.Filter(n, 3, 2)
    assert (kind.points, kind.inputs, kind.step, kind.overlap) == (2 * kind.m + 1, 2 * kind.m + 1, 2 * kind.m, 1)
    f: Any = _Numbers()
    data, taps = [Fraction(3 * i * i - 7, 5) for i in range(kind.inputs)], [Fraction(2), Fraction(-3, 7), Fraction(11)]
    d: Any = kind.map_inputs(f, [_Number(x) for x in data])  # type: ignore[misc]
    g: Any = kind.map_weights(f, [_Number(x) for x in taps])  # type: ignore[misc]
    assert (len(d), len(g)) == (kind.points, kind.factors)
    products: Any = [_Number(x.value * g[min(i, len(g) - 1)].value) for i, x in enumerate(d)]
    out: Any = kind.map_outputs(f, products)
    assert [y.value for y in out] == [sum(taps[k] * data[2 * i + k] for k in range(3)) for i in range(kind.m)]


@pytest.mark.parametrize("r", maps.TAPS)
@pytest.mark.parametrize("n", maps.SIDES)
def test_the_maps_are_those_of_the_points(n: int, r: int) -> None:
    """Code and matrices agree exactly, and make a correlation."""
    bt, g, at = maps.matrices(n, r)
    f: Any = _Numbers()

    def columns(matrix: list[list[Fraction]], run: Any) -> None:
        count = len(matrix[0])
        for j in range(count):
            unit = [_Number(int(i == j)) for i in range(count)]
            assert [x.value for x in run(unit)] == [row[j] for row in matrix]

    columns(bt, lambda d: maps.inputs(f, d))
    columns(g, lambda w: maps.weights(f, w, n))
    columns(at, lambda s: maps.outputs(f, s, n - r + 1))
    data, taps = [Fraction(3 * i * i - 7, 5) for i in range(n)], [Fraction(2), Fraction(-3, 7), Fraction(11)][:r]

    def times(matrix: list[list[Fraction]], x: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, x, strict=True)), Fraction(0)) for row in matrix]

    products = [a * b for a, b in zip(times(g, taps), times(bt, data), strict=True)]
    assert times(at, products) == [sum(taps[k] * data[i + k] for k in range(r)) for i in range(n - r + 1)]


@pytest.mark.parametrize("side", maps.SIDES)
@pytest.mark.parametrize(
    "conv",
    [square(16, 32), square(100, 70), square(200, 33, ((0, 2), (1, 0))), square(17, 16, ((0, 0), (0, 0))), square(150, 90)],
    ids=lambda c: c.name,
)
def test_matches_pytorch_at_all_sizes_and_splits(conv: Conv, side: int) -> None:
    """One compiled kernel set serves all sizes; neither the number of threads nor a split in chunks changes a bit."""
    for sizes in SIZES:
        if min(conv.output_size(sizes[1:])) < 1:
            continue
        x, weight = operands(conv, sizes)
        out = run_conv(conv, forced(conv, (side,)), x, weight)
        assert error(out, reference(conv, x, weight)) < 1e-5
        for seed, threads in ((None, 1), (1, 2), (2, 3), (None, 7)):
            assert (run_conv(conv, forced(conv, (side,)), x, weight, seed=seed, threads=threads) == out).all()


SIDE_BY_SIDE = [
    cube(32, 40),
    cube(17, 33, pads=((0, 1), *PADS)),
    cube(100, 20, planes=2, pads=((2, 0), (0, 2), (1, 0))),
    cube(16, 48, planes=9, pads=((4, 4), *PADS)),
]
"""Convolutions whose windows have planes next to one another, one apart."""


def check_planes(conv: Conv | ConvTranspose, side: int, by_planes: bool) -> None:
    for sizes in ((1, 5, 8, 8), (2, 3, 7, 9), (1, 1, 1, 1), (1, 4, 3, 70), (2, 2, 30, 5), (0, 4, 8, 8), (1, 12, 14, 14)):
        if min(conv.output_size(sizes[1:])) < 1:
            continue
        x, weight = operands(conv, sizes)
        program = forced(conv, (side,), by_planes)
        out = run_conv(conv, program, x, weight)
        assert error(out, reference(conv, x, weight)) < 1e-5
        for seed, threads in ((1, 2), (None, 3)):
            assert (run_conv(conv, program, x, weight, seed=seed, threads=threads) == out).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("side", maps.SIDES)
@pytest.mark.parametrize(
    "conv",
    [
        *SIDE_BY_SIDE,
        cube(16, 16, planes=5, stride=2, pads=((2, 2), *PADS)),
        cube(24, 18, dilation=2, pads=((2, 2), *PADS)),
        cube(16, 17, planes=1, stride=3, pads=((1, 0), *PADS)),
    ],
    ids=lambda c: c.name,
)
def test_windows_of_several_planes(conv: Conv, side: int) -> None:
    check_planes(conv, side, by_planes=False)


@pytest.mark.parametrize("side", maps.SIDES)
@pytest.mark.parametrize(
    "conv",
    [
        *SIDE_BY_SIDE,
        cube(20, 33, pads=((4, 3), *PADS)),  # whole windows lie beyond the image
        ConvTranspose(16, 24, (4, 4, 4), (2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1), spec=TILES),
    ],
    ids=lambda c: c.name,
)
def test_planes_mapped_once_for_all_windows(conv: Conv | ConvTranspose, side: int) -> None:
    check_planes(conv, side, by_planes=True)


def test_planes_are_mapped_once_where_that_costs_less() -> None:
    """A run of planes in one image; not of many images that are a tile each."""
    for conv, sizes, by_planes in (
        (cube(64, 64), (1, 8, 28, 28), True),
        (cube(256, 256), (1, 2, 7, 7), True),
        (cube(64, 64), (64, 1, 4, 4), False),
    ):
        x, weight = operands(conv, sizes)
        params, _ = conv_params(conv, x, weight)
        (launch,) = build_conv(conv).record(num_threads=1, **params)
        assert len(launch.args) == len(FIELDS) + by_planes + 1, (conv, sizes)


@pytest.mark.parametrize("side", maps.SIDES)
def test_windows_of_2_x_2(side: int) -> None:
    """Those of transposed convolutions' phases among them."""
    for conv in (
        Conv(32, 40, (2, 2), (1, 1), ((1, 0), (0, 1)), (1, 1), spec=TILES, winograd=(side,)),
        Conv(72, 17, (2, 2), (1, 1), ((1, 1), (0, 0)), (1, 1), spec=TILES, winograd=(side,)),
        Conv(140, 33, (2, 2, 2), (2, 1, 1), ((1, 0), (2, 1), (1, 1)), (1, 1, 1), spec=TILES, winograd=(side,)),
        ConvTranspose(24, 50, (4, 4), (2, 2), (1, 1), (0, 0), (1, 1), spec=TILES, winograd=(side,)),
        ConvTranspose(36, 16, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), spec=TILES, winograd=(side,)),
    ):
        for sizes in ((1, 8, 8), (2, 7, 9), (1, 2, 71), (3, 30, 2), (1, 25, 25)):
            sizes = (*sizes[:1], *(3,) * (len(conv.kernel) - 2), *sizes[1:])
            x, weight = operands(conv, sizes)
            out = run_conv(conv, forced(conv, (side,)), x, weight)
            assert error(out, reference(conv, x, weight)) < 1e-5
            assert (run_conv(conv, forced(conv, (side,)), x, weight, seed=1, threads=3) == out).all()


def row(ins: int, outs: int, window: int = 3, stride: int = 1, pads: tuple[int, int] = (1, 1), **options: Any) -> Conv:
    """Windows in one dim."""
    spec = options.pop("spec", TILES)
    return Conv(ins, outs, (window,), (stride,), (pads,), (1,), spec=spec, winograd=maps.SIDES, **options)


def strip(kernel: tuple[int, ...], stride: tuple[int, ...], pads: Any, ins: int = 40, outs: int = 33) -> Conv:
    """Windows in one of several dims, or in planes and one dim."""
    return Conv(ins, outs, kernel, stride, pads, (1,) * len(kernel), spec=TILES, winograd=maps.SIDES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("side", maps.SIDES)
@pytest.mark.parametrize(
    "conv",
    [
        row(32, 40),
        row(100, 17, pads=(0, 2)),
        row(150, 33, 2, pads=(1, 0)),
        row(100, 33, stride=2),
        row(200, 40, stride=2, pads=(0, 3)),
        strip((3, 1), (1, 1), ((1, 1), (0, 0))),
        strip((1, 3), (1, 1), ((0, 1), (1, 1))),
        strip((3, 1), (2, 1), ((0, 1), (0, 0))),
        strip((1, 3), (1, 2), ((0, 0), (1, 1))),
        strip((3, 3, 1), (2, 2, 1), ((1, 1), (1, 0), (0, 0))),
    ],
    ids=lambda c: f"{c.name}_{c.stride[-1]}",
)
def test_windows_in_one_dim(conv: Conv, side: int) -> None:
    """All widths around tiles and vectors, and rows of several groups; no bit depends on the splits."""
    rank = len(conv.kernel)
    for n in (1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 200, 1501):
        sizes = [(2, n)] if rank == 1 else [(2, n, 3), (1, 4, n)] if rank == 2 else [(1, 4, n, 3), (2, 3, 5, n)]
        for size in ((0, *sizes[0][1:]), *sizes):
            if min(conv.output_size(size[1:])) < 1:
                continue
            x, weight = operands(conv, size)
            out = run_conv(conv, forced(conv, (side,)), x, weight)
            assert error(out, reference(conv, x, weight)) < 1e-5
            for seed, threads in ((1, 2), (None, 3)):
                assert (run_conv(conv, forced(conv, (side,)), x, weight, seed=seed, threads=threads) == out).all()


@pytest.mark.parametrize("side", maps.SIDES)
@pytest.mark.parametrize("stride", [1, 2])
def test_rows_of_numbers_that_are_none(stride: int, side: int) -> None:
    """NaN and infinity reach all of their windows and no other image; those around a slice reach nothing."""
    conv = row(20, 20, stride=stride)
    x, weight = operands(conv, (3, 70))
    big = np.full((6, 20, 170), np.nan, np.float32)
    view = big[::2, :, 50:120]
    view[...] = x
    out = run_conv(conv, forced(conv, (side,), strided=True), view, weight, strided=True)
    assert error(out, reference(conv, x, weight)) < 1e-5
    x[1, 2, 6], x[1, 3, 40] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        out, expected = run_conv(conv, forced(conv, (side,)), x, weight), reference(conv, x, weight)
    assert not np.isfinite(out[~np.isfinite(expected)]).any()
    assert np.isfinite(out[[0, 2]]).all()
    assert np.isfinite(out[1]).any()


@pytest.mark.parametrize("side", maps.SIDES)
def test_rows_with_bias(side: int) -> None:
    """The epilogue sees every element once."""
    for conv in (row(24, 45), row(24, 45, stride=2)):
        for sizes in ((2, 19), (1, 1999)):
            x, weight = operands(conv, sizes)
            bias = np.linspace(-9, 9, 45, dtype=np.float32)
            out = run_conv(conv, forced(conv, (side,), bias_relu=True), x, weight, bias)
            assert error(out, np.maximum(reference(conv, x, weight) + bias[None, :, None], 0)) < 1e-5


@pytest.mark.parametrize("side", maps.SIDES)
def test_rows_wider_than_a_group(side: int) -> None:
    """Rows of tiles in several groups, whose outputs are handed on row by row."""
    conv = square(20, 40)
    x, weight = operands(conv, (2, 6, 701))
    for threads in (1, 2):
        out = run_conv(conv, forced(conv, (side,)), x, weight, threads=threads, seed=threads)
        assert error(out, reference(conv, x, weight)) < 1e-5


@pytest.mark.parametrize("side", maps.SIDES)
def test_the_epilogue_sees_every_element_once_with_its_channel(side: int) -> None:
    """bias + relu; unwritten outputs would keep 777."""
    conv = square(24, 45)
    for sizes in ((2, 9, 11), (1, 2, 500)):
        x, weight = operands(conv, sizes)
        bias = np.linspace(-9, 9, 45, dtype=np.float32)
        out = run_conv(conv, forced(conv, (side,), bias_relu=True), x, weight, bias)
        expected = np.maximum(reference(conv, x, weight) + bias[None, :, None, None], 0)
        assert error(out, expected) < 1e-5


@pytest.mark.parametrize("side", maps.SIDES)
def test_strided_input_and_what_lies_around_it(side: int) -> None:
    """A slice of a larger tensor of NaN: nothing outside of it is used."""
    conv = square(18, 20)
    program = forced(conv, (side,), strided=True)
    for sizes in ((2, 9, 12), (1, 1, 1), (1, 4, 33)):
        x, weight = operands(conv, sizes)
        big = np.full((2 * sizes[0], 18, sizes[1] + 3, sizes[2] + 40), np.nan, np.float32)
        view = big[::2, :, 1 : 1 + sizes[1], 20 : 20 + sizes[2]]
        view[...] = x
        out = run_conv(conv, program, view, weight, strided=True)
        assert error(out, reference(conv, x, weight)) < 1e-5


@pytest.mark.parametrize("side", maps.SIDES)
def test_nan_and_infinity_reach_all_their_windows(side: int) -> None:
    """No output whose window holds one stays finite, and no image but theirs is touched."""
    conv = square(20, 20)
    x, weight = operands(conv, (3, 14, 13))
    x[1, 2, 6, 5], x[1, 3, 0, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        out, expected = run_conv(conv, forced(conv, (side,)), x, weight), reference(conv, x, weight)
    assert not np.isfinite(out[~np.isfinite(expected)]).any()
    assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.skipif(not TILES.target.is_x86, reason="runs code for x86-64")
@pytest.mark.parametrize("side", maps.SIDES)
@pytest.mark.parametrize("by_planes", [False, True])
def test_what_negative_padding_crops_is_not_read(side: int, by_planes: bool) -> None:
    conv = ConvTranspose(32, 20, (3, 3, 3), (1, 1, 1), (1, 3, 3), (0, 0, 0), (1, 1, 1), spec=TILES)
    for height, width in ((17, 9), (33, 22), (8, 8), (7, 40)):
        x, weight = operands(conv, (1, 4, height, width))
        for cropped in ((..., -1, slice(None)), (..., 0, slice(None)), (..., -1), (..., 0)):
            x[cropped] = np.nan
        out = run_conv(conv, forced(conv, (side,), by_planes), x, weight)
        assert error(out, reference(conv, np.nan_to_num(x), weight)) < 1e-5


@pytest.mark.parametrize("side", maps.SIDES)
def test_avx2_and_weights_shared_between_targets(side: int) -> None:
    """8 lanes, 16 registers, panels of several tiles."""
    narrow = tile_spec(parse_target("x86-64-v3"))
    for spec in (narrow, replace(narrow, per_panel=1)):
        conv = square(44, 52, spec=spec)
        for sizes in ((2, 7, 9), (1, 3, 290), (1, 28, 28)):
            x, weight = operands(conv, sizes)
            assert error(run_conv(conv, forced(conv, (side,)), x, weight, seed=1), reference(conv, x, weight)) < 1e-5
        for stride in (1, 2):
            conv = row(44, 52, stride=stride, spec=spec)
            x, weight = operands(conv, (2, 290))
            assert error(run_conv(conv, forced(conv, (side,)), x, weight, seed=1), reference(conv, x, weight)) < 1e-5


@pytest.mark.parametrize(
    "conv,applies",
    [
        (square(64, 64), True),
        (square(3, 64), False),
        (replace(square(64, 64), stride=(2, 2)), False),
        (replace(square(64, 64), dilation=(1, 2)), False),
        (replace(square(64, 64), groups=2), False),
        (replace(square(64, 64), kernel=(3, 2)), False),
        (replace(square(64, 64), kernel=(2, 2)), True),
        (cube(64, 64, planes=2, stride=2, dilation=3), True),
        (replace(cube(64, 64), stride=(1, 2, 2)), False),
        (replace(cube(64, 64), kernel=(3, 1, 3)), True),
        (replace(square(64, 64), elem="f64"), False),
        (replace(cube(64, 64), kernel=(3, 1, 3), stride=(1, 2, 1)), False),
        (replace(cube(64, 64), kernel=(3, 3, 1), stride=(3, 2, 1)), True),
        (row(64, 64), True),
        (row(64, 64, stride=2), True),
        (row(64, 64, stride=3), False),
        (row(64, 64, 2, stride=2), False),
        (replace(row(64, 64), dilation=(2,)), False),
        (row(64, 64, 5), False),
        (row(64, 64, 1), False),
    ],
)
def test_which_convolutions_it_is_for(conv: Conv, applies: bool) -> None:
    p = conv.params(KernelModule(TILES.target))
    assert bool(Winograd.variants(p, conv.winograd)) is applies
    assert Winograd.variants(p, ()) == []


def launched(conv: Conv, sizes: tuple[int, ...], threads: int = 2) -> str:
    """What a call chooses: how many columns of outputs its tiles have, or "direct"."""
    x, weight = operands(conv, sizes)
    params, _ = conv_params(conv, x, weight)
    (launch,) = functools.cache(build_conv)(conv).record(num_threads=threads, **params)
    if len(launch.args) < len(FIELDS):
        return "direct"
    rows, th, tw = (int(launch.args[FIELDS.index(n)]) for n in ("rows", "th", "tw"))
    assert rows == sizes[0] * th
    return str(round(conv.output_size(sizes[1:])[-1] / tw))


@pytest.mark.skipif(TILES.lanes("f32") != 16, reason="the bounds are those of 16 lanes")
def test_the_choice_follows_the_sizes() -> None:
    """Large tiles where the image fills them; in order where there is too little to do for what the maps cost."""
    assert launched(square(64, 64), (1, 56, 56)) == "4"
    assert launched(square(128, 128), (1, 28, 28)) == "4"
    assert launched(square(16, 16), (1, 1, 1)) == "direct"
    assert launched(square(512, 512), (1, 2, 2)) == "direct"
    for conv in (row(80, 384), row(384, 384, stride=2)):
        assert launched(conv, (1, 3000)) != "direct"
        assert launched(conv, (1, 1)) == "direct"


def model() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 32, 3, padding=(0, 1)), torch.nn.ReLU()
    ).eval()
    dims = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("h", min=8), 3: torch.export.Dim("w", min=8)}
    return torch.export.export(layers, (torch.randn(2, 32, 16, 20),), dynamic_shapes=(dims,))


def test_one_option_turns_it_off() -> None:
    """Errors of whole programs, with and without."""
    exported = model()
    double = copy.deepcopy(exported.module()).double()
    with_, without = dhlo.compile(exported, cache=""), dhlo.compile(exported, cache="", winograd=False)
    for shape in ((1, 32, 40, 40), (3, 32, 9, 61), (1, 32, 8, 8)):
        x = torch.randn(shape)
        expected = double(x.double())
        scale = expected.abs().max()
        assert (with_(x) - expected).abs().max() / scale < 5e-5
        assert (without(x) - expected).abs().max() / scale < 5e-6
        if shape[2] == 40:
            assert not torch.equal(with_(x), without(x))
