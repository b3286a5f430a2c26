"""Convolution kernels against PyTorch in float64: sizes, parameters, variants, splits, epilogues, strides."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy
import torch

from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.microkernel import lines_of_step, share_of_fetching
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.families.gemm.register_tile import tile_spec
from dhlo.codegen.kernel_ir.builder import F32, F64, I64, KernelModule
from dhlo.codegen.target import parse_target
from tests.codegen.conv_host import build_conv, conv_params, numpy_type, run_conv
from tests.codegen.harness import Program, TestHost
from tests.targets import TILES

build = functools.cache(build_conv)
SIZES = {
    1: [(1, 9), (2, 1), (3, 64), (1, 131), (0, 8)],
    2: [(1, 7, 7), (2, 14, 13), (1, 1, 5), (3, 5, 50), (1, 33, 40), (2, 2, 2), (0, 8, 8)],
    3: [(1, 5, 6, 7), (2, 3, 9, 17), (1, 1, 1, 1), (0, 4, 4, 4)],
}
CONVS = [
    Conv(16, 64, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), spec=TILES),
    Conv(80, 40, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), spec=TILES),
    Conv(5, 7, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), spec=TILES),
    Conv(3, 33, (7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1), spec=TILES),
    Conv(24, 70, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), spec=TILES),
    Conv(10, 12, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), groups=2, elem=F64, spec=TILES),
    Conv(9, 40, (1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), spec=TILES),
    Conv(4, 5, (2, 3), (3, 4), ((0, 2), (1, 0)), (2, 1), spec=TILES),
    Conv(3, 2, (2, 2), (1, 1), ((5, 4), (3, 6)), (1, 1), spec=TILES),
    Conv(1, 1, (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), spec=TILES),
    Conv(12, 12, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups=3, spec=TILES),
    Conv(8, 72, (3, 3), (2, 1), ((1, 1), (2, 2)), (1, 2), groups=2, spec=TILES),
    Conv(6, 6, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups=6, spec=TILES),
    Conv(4, 12, (5, 5), (2, 2), ((2, 2), (2, 2)), (1, 1), groups=4, spec=TILES),
    Conv(3, 3, (3, 8), (1, 3), ((1, 1), (4, 2)), (1, 2), groups=3, spec=TILES),
    Conv(2, 2, (8, 8), (1, 1), ((4, 3), (4, 3)), (1, 1), groups=2, spec=TILES),
    Conv(8, 33, (3,), (3,), ((2, 1),), (2,), spec=TILES),
    Conv(16, 16, (5,), (1,), ((2, 2),), (1,), spec=TILES),
    Conv(7, 7, (4,), (1,), ((3, 0),), (1,), groups=7, spec=TILES),
    Conv(6, 10, (3, 2, 3), (1, 1, 1), ((1, 1), (1, 0), (1, 1)), (1, 1, 1), groups=2, spec=TILES),
    Conv(4, 35, (1, 3, 3), (2, 1, 2), ((0, 0), (1, 1), (2, 2)), (1, 1, 2), spec=TILES),
    Conv(6, 6, (3, 3, 3), (1, 2, 2), ((1, 1), (1, 1), (1, 1)), (1, 1, 1), groups=6, spec=TILES),
    Conv(24, 40, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), spec=TILES),
    Conv(40, 20, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), elem=F64, spec=TILES),
    Conv(5, 9, (3, 3), (2, 3), ((1, 1), (0, 1)), (1, 1), elem=F64, spec=TILES),
    Conv(5, 5, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), groups=5, elem=F64, spec=TILES),
    # Of one input channel, many output channels: products of windows and weights.
    Conv(1, 40, (10,), (5,), ((0, 0),), (1,), spec=TILES),
    Conv(1, 17, (31,), (1,), ((15, 15),), (1,), spec=TILES),
    Conv(1, 33, (80,), (4,), ((0, 39),), (1,), elem=F64, spec=TILES),
    Conv(3, 24, (2, 9), (1, 4), ((0, 1), (4, 0)), (1, 1), groups=3, spec=TILES),
    Conv(1, 35, (2, 3, 3), (1, 2, 3), ((0, 1), (1, 1), (0, 0)), (1, 1, 2), spec=TILES),
]


TRANSPOSED = [
    ConvTranspose(16, 40, (3, 3), (1, 1), (1, 1), (0, 0), (1, 1), spec=TILES),
    ConvTranspose(12, 36, (4, 4), (2, 2), (1, 1), (0, 0), (1, 1), spec=TILES),
    ConvTranspose(5, 7, (3, 2), (2, 3), (0, 1), (1, 2), (1, 1), spec=TILES),
    ConvTranspose(4, 6, (2, 2), (3, 2), (0, 0), (2, 1), (1, 1), groups=2, spec=TILES),
    ConvTranspose(6, 6, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), groups=6, spec=TILES),
    ConvTranspose(3, 5, (3, 4), (2, 4), (3, 1), (0, 0), (2, 2), spec=TILES),
    ConvTranspose(9, 4, (5,), (3,), (2,), (1,), (2,), spec=TILES),
    ConvTranspose(4, 3, (2, 3, 3), (2, 1, 2), (0, 1, 1), (1, 0, 0), (1, 1, 1), spec=TILES),
    ConvTranspose(5, 9, (3, 3), (2, 2), (1, 1), (0, 0), (1, 1), elem=F64, spec=TILES),
    ConvTranspose(3, 2, (18,), (17,), (0,), (0,), (1,), spec=TILES),  # more phases than a vector has lanes
    ConvTranspose(16, 20, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), spec=TILES),  # phases are channels of one convolution
    ConvTranspose(6, 4, (2, 3, 1), (2, 3, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1), groups=2, spec=TILES),
    ConvTranspose(6, 33, (2, 1, 4), (2, 1, 4), (0, 0, 0), (0, 0, 0), (1, 1, 1), spec=TILES),
    ConvTranspose(6, 12, (3,), (3,), (0,), (0,), (1,), elem=F64, spec=TILES),
    ConvTranspose(6, 12, (2,), (2,), (0,), (0,), (1,), elem=F64, spec=TILES),
    ConvTranspose(6, 12, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), groups=6, spec=TILES),
    # Phases of a row that meet the same inputs are channels of one convolution.
    ConvTranspose(5, 3, (16,), (8,), (4,), (0,), (1,), spec=TILES),
    ConvTranspose(4, 2, (41,), (20,), (3,), (1,), (1,), spec=TILES),
    ConvTranspose(7, 1, (70,), (35,), (0,), (0,), (1,), spec=TILES),
    ConvTranspose(3, 2, (37,), (18,), (5,), (2,), (1,), elem=F64, spec=TILES),
    ConvTranspose(6, 4, (8, 8), (4, 4), (2, 1), (1, 0), (1, 1), groups=2, spec=TILES),
    ConvTranspose(4, 8, (3, 12), (2, 5), (1, 4), (0, 3), (1, 1), groups=4, spec=TILES),
    ConvTranspose(3, 5, (2, 6), (3, 20), (0, 0), (2, 16), (1, 1), spec=TILES),  # most phases are zero
    ConvTranspose(2, 3, (2, 1, 12), (2, 1, 6), (1, 0, 3), (0, 0, 1), (1, 1, 1), spec=TILES),
    ConvTranspose(3, 4, (6,), (4,), (1,), (0,), (2,), spec=TILES),  # of points apart no two meet the same
]


def reference(conv: Conv | ConvTranspose, x: Any, weight: Any) -> Any:
    """torch.convolution in float64; asymmetric padding by padding first."""
    if isinstance(conv, ConvTranspose):
        return torch.convolution(
            torch.from_numpy(x).double(),
            torch.from_numpy(weight).double(),
            None,
            conv.stride,
            conv.padding,
            conv.dilation,
            True,
            conv.output_padding,
            conv.groups,
        ).numpy()
    pad = [n for pair in reversed(conv.padding) for n in pair]
    wide = torch.nn.functional.pad(torch.from_numpy(np.ascontiguousarray(x)).double(), pad)
    zeros = [0] * len(conv.kernel)
    return torch.convolution(
        wide, torch.from_numpy(weight).double(), None, conv.stride, zeros, conv.dilation, False, zeros, conv.groups
    ).numpy()


def operands(conv: Conv | ConvTranspose, sizes: tuple[int, ...], seed: int = 0) -> tuple[Any, Any]:
    """A random input and weight."""
    rng, dtype = np.random.default_rng(seed), numpy_type(conv.elem)
    x = rng.standard_normal((sizes[0], conv.in_channels, *sizes[1:])).astype(dtype)
    outer, inner = conv.out_channels, conv.in_channels
    if isinstance(conv, ConvTranspose):
        outer, inner = inner, outer
    return x, rng.standard_normal((outer, inner // conv.groups, *conv.kernel)).astype(dtype)


def check(conv: Conv | ConvTranspose, program: Program, x: Any, weight: Any, **options: Any) -> None:
    """Compares with the reference; the tolerance grows with the reduction's depth."""
    out, expected = run_conv(conv, program, x, weight, **options), reference(conv, x, weight)
    eps = float(np.finfo(out.dtype).eps)
    tolerance = 4 * eps * ((weight.size / conv.out_channels) ** 0.5 + 8)
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("conv", CONVS, ids=lambda c: c.name)
def test_matches_pytorch_at_all_sizes_and_splits(conv: Conv) -> None:
    """One compiled kernel set serves all sizes; any split in chunks on two threads gives the same."""
    tried = 0
    for sizes in SIZES[len(conv.kernel)]:
        if min(conv.output_size(sizes[1:])) < 1:
            continue
        x, weight = operands(conv, sizes)
        for seed in (None, 1, 2):
            check(conv, build(conv), x, weight, seed=seed)
        tried += 1
    assert tried > 1


@pytest.mark.parametrize(
    ("groups", "outputs", "kernel", "stride", "alone"),
    [
        (64, 1, (3, 3), (1, 1), True),
        (1, 1, (251,), (4,), True),
        (1, 8, (3, 3), (1, 1), True),
        (8, 2, (5, 5), (2, 2), True),
        (1, 64, (80,), (4,), False),
        (1, 512, (10,), (5,), False),
        (1, 258, (256,), (128,), False),
        (1, 64, (16, 16), (16, 16), False),
        (1, 64, (7, 7), (1, 1), False),
    ],
)
def test_windows_of_one_channel_serve_many_outputs(
    groups: int, outputs: int, kernel: tuple[int, ...], stride: tuple[int, ...], alone: bool
) -> None:
    rank = len(kernel)
    conv = Conv(groups, groups * outputs, kernel, stride, ((0, 0),) * rank, (1,) * rank, groups=groups, spec=TILES)
    assert conv.depthwise is alone


DEPTHWISE = [
    Conv(3, 3, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups=3, spec=TILES),
    Conv(2, 4, (3, 3), (2, 2), ((0, 1), (0, 1)), (1, 1), groups=2, spec=TILES),
    Conv(2, 2, (5, 5), (1, 2), ((2, 2), (2, 2)), (1, 1), groups=2, spec=TILES),
    Conv(2, 2, (3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2), groups=2, spec=TILES),
    Conv(2, 2, (7, 7), (1, 1), ((3, 3), (3, 3)), (1, 1), groups=2, spec=TILES),
    Conv(2, 2, (3, 2), (3, 3), ((1, 0), (0, 2)), (1, 1), groups=2, spec=TILES),
]


@pytest.mark.parametrize("conv", DEPTHWISE, ids=lambda c: c.name)
def test_depthwise_tiles_of_all_sizes(conv: Conv) -> None:
    """Rows and columns around whole tiles, half vectors and blocks of columns; NaN and infinity stay in their windows."""
    for height in (1, 2, 7, 8, 9, 17):
        for width in (1, 7, 8, 9, 15, 16, 17, 24, 33):
            if min(conv.output_size((height, width))) >= 1:
                x, weight = operands(conv, (2, height, width), height * width)
                x[0, 0, height // 2, width // 2] = np.nan
                x[1, 1, 0, width - 1] = np.inf
                with np.errstate(invalid="ignore"):
                    check(conv, build(conv), x, weight)
    x, weight = operands(conv, (1, 11, 1100))
    check(conv, build(conv), x, weight, seed=1)


AVX2 = tile_spec(parse_target("x86-64-v3"))


@pytest.mark.skipif(not TILES.target.is_x86, reason="runs code for x86-64")
@pytest.mark.parametrize("conv", [CONVS[13], CONVS[21], CONVS[25], *DEPTHWISE[:5]], ids=lambda c: c.name)
def test_depthwise_without_mask_registers(conv: Conv) -> None:
    """Tiles that read a copy of their input with zeros around it, and those whose windows still take masks; an input of NaN beyond
    its ends is not read."""
    conv = replace(conv, spec=AVX2)
    for sizes in (*SIZES[len(conv.kernel)], (1, 40, 23), (2, 9, 600)):
        if len(sizes) == len(conv.kernel) + 1 and min(conv.output_size(sizes[1:])) >= 1:
            x, weight = operands(conv, (sizes[0] + 2, *sizes[1:]))
            x[0] = x[-1] = np.nan
            check(conv, build(conv), x[1:-1], weight, seed=1)


@pytest.mark.parametrize("positions", [1, 31, 32, 33, 511, 513, 1000])
def test_pointwise_blocks(positions: int) -> None:
    """Positions around whole panels and blocks of them, dense and as a slice of a larger tensor."""
    conv = Conv(40, 45, (1,), (1,), ((0, 0),), (1,), spec=TILES)
    x, weight = operands(conv, (2, positions))
    check(conv, build(conv), x, weight, seed=positions)
    big, weight = operands(conv, (2, positions + 5))
    big[:, :, 2] = big[:, :, -1] = np.nan
    check(conv, build(conv, strided=True), big[:, :, 3:-2], weight, strided=True)


def test_chunks_give_bitwise_equal_results() -> None:
    """The order of additions doesn't depend on how items are split."""
    conv = CONVS[1]
    x, weight = operands(conv, (2, 14, 13))
    outs = [run_conv(conv, build(conv), x, weight, seed=seed, threads=threads) for seed, threads in ((None, 1), (None, 2), (7, 2))]
    assert (outs[0] == outs[1]).all() and (outs[0] == outs[2]).all()


@pytest.mark.parametrize("sizes", [(1, 7, 7), (2, 28, 28), (1, 1, 1)])
def test_channel_runs_and_depth_blocks(sizes: tuple[int, ...]) -> None:
    """More channels than one run keeps tiles for, and several depth blocks."""
    conv = Conv(100, 560, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), spec=TILES)
    x, weight = operands(conv, sizes)
    check(conv, build(conv), x, weight)


@pytest.mark.parametrize("conv", [CONVS[i] for i in (0, 1, 4, 6, 11, 22, 23, 24)], ids=lambda c: c.name)
def test_blocks_of_several_images(conv: Conv) -> None:
    """Small images are packed together, as many as divide the batch or not; one of NaN spoils no other."""
    together = 0
    for sizes in ((23, 3, 4), (40, 2, 3), (31, 4, 8), (18, 8, 8)):
        x, weight = operands(conv, sizes)
        x[3] = np.nan
        (launch,) = build(conv).record(num_threads=1, **conv_params(conv, x, weight)[0])
        *_, images, blocks, _ = launch.args
        assert images == sizes[0] >= blocks
        together += images > blocks
        for seed in (None, 1, 2):
            check(conv, build(conv), x, weight, seed=seed, threads=1 if seed is None else 2)
    assert together > 1


@pytest.mark.parametrize("sizes,variant", [((1, 7, 7), "swapped"), ((1, 16, 16), "normal")])
def test_the_variant_follows_the_sizes(sizes: tuple[int, ...], variant: str) -> None:
    """Position counts that fill no vector tile are the broadcast operand."""
    conv = CONVS[0]
    x, weight = operands(conv, sizes)
    params, _ = conv_params(conv, x, weight)
    program = build(conv)
    (launch,) = program.record(num_threads=2, **params)
    panels, width = launch.args[15], TILES.mr if variant == "swapped" else TILES.nr(conv.elem)
    assert panels == -(-sizes[1] * sizes[2] // width)


def test_nothing_is_launched_for_an_empty_output() -> None:
    """Batch 0, or an input smaller than the kernel."""
    conv = Conv(4, 4, (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), spec=TILES)
    for sizes in ((0, 8, 8), (2, 2, 8), (1, 0, 0)):
        x, weight = operands(conv, sizes)
        params, _ = conv_params(conv, x, weight)
        assert build(conv).record(num_threads=2, **params) == []


def test_the_epilogue_sees_every_element_once_with_its_channel() -> None:
    """bias + relu with channel offsets of groups; unwritten outputs would keep 777."""
    conv = Conv(8, 72, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups=2, spec=TILES)
    x, weight = operands(conv, (2, 9, 11))
    bias = np.linspace(-9, 9, 72, dtype=np.float32)
    out = run_conv(conv, build_conv(conv, bias_relu=True), x, weight, bias)
    expected = np.maximum(reference(conv, x, weight) + bias[None, :, None, None], 0)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("conv", [CONVS[0], CONVS[2], CONVS[11], CONVS[18]], ids=lambda c: c.name)
def test_strided_input(conv: Conv) -> None:
    """A slice of a larger tensor: all strides but the last one free."""
    program = build_conv(conv, strided=True)
    sizes = SIZES[len(conv.kernel)][1]
    big, weight = operands(conv, (sizes[0] * 2, *(n + 3 for n in sizes[1:])))
    window = tuple(slice(1, 1 + n) for n in sizes[1:])
    check(conv, program, big[::2][(slice(None), slice(None), *window)], weight, strided=True)


@pytest.mark.parametrize("conv", [CONVS[0], CONVS[2], CONVS[11]], ids=lambda c: c.name)
def test_nan_spreads_exactly_as_far_as_its_windows(conv: Conv) -> None:
    """A NaN input reaches the outputs whose windows hold it and, through zero padding or unused lanes, no other."""
    x, weight = operands(conv, (2, 14, 13))
    x[1, 2, 6, 5] = np.nan
    x[0, 3, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        out, expected = run_conv(conv, build(conv), x, weight), reference(conv, x, weight)
    assert (np.isnan(out) == np.isnan(expected)).all()
    assert (np.isinf(out) == np.isinf(expected)).all()


def test_output_size_takes_expressions() -> None:
    """Sizes may be symbols of the exported program."""
    conv = Conv(3, 8, (7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1), spec=TILES)
    h = sympy.Symbol("h", integer=True, positive=True)
    assert conv.output_size([224, 33]) == [112, 17]
    assert conv.output_size([h, h])[0].subs(h, 33) == 17


def test_packed_weights_hold_every_weight_once() -> None:
    """The packed layout is a permutation plus zeros."""
    conv = Conv(10, 36, (3, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), groups=2, spec=TILES)
    weight = np.arange(1, 36 * 5 * 6 + 1, dtype=np.float32).reshape(36, 5, 3, 2)
    packed = conv.pack_weight(weight)
    assert packed.shape == conv.layout.shape
    assert sorted(packed[packed != 0]) == sorted(weight.ravel())
    with pytest.raises(ValueError, match="expected"):
        conv.pack_weight(weight[:, :4])


WIDER = replace(TILES, per_panel=2)


@pytest.mark.parametrize("conv", [CONVS[i] for i in (0, 1, 2, 4, 5, 10, 11, 16, 23)], ids=lambda c: c.name)
def test_panels_wider_than_tiles(conv: Conv) -> None:
    """Weights packed for wider tiles, constant or packed at run time, at sizes of both variants."""
    wide = replace(conv, spec=WIDER)
    for sizes in SIZES[len(conv.kernel)][:4]:
        if min(conv.output_size(sizes[1:])) >= 1:
            x, weight = operands(conv, sizes)
            check(wide, build(wide), x, weight, seed=5)
            check(wide, build(wide, pack=True), x, weight, pack=True)


def test_targets_share_packed_weights() -> None:
    """Panels as wide as another target's tiles make one layout, and equal keys, of what both pack."""
    narrow, broad = (tile_spec(parse_target(name)) for name in ("x86-64-v3", "x86-64-v4"))
    narrow = replace(narrow, per_panel=broad.nr(F32) // narrow.nr(F32))
    for conv in [*CONVS, *TRANSPOSED]:
        a, b = replace(conv, spec=narrow), replace(conv, spec=broad)
        _, weight = operands(conv, SIZES[len(conv.kernel)][0])
        assert a.layouts == b.layouts
        assert (a.pack_weight(weight) == b.pack_weight(weight)).all()
    dense = CONVS[0]
    assert replace(dense, spec=narrow.alone).layout != replace(dense, spec=broad).layout
    depthwise = CONVS[12]
    assert replace(depthwise, spec=narrow.alone).layout == replace(depthwise, spec=broad).layout


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="groups"):
        Conv(5, 6, (3,), (1,), ((0, 0),), (1,), groups=2, spec=TILES)
    with pytest.raises(ValueError, match="entries"):
        Conv(5, 6, (3, 3), (1,), ((0, 0),), (1,), spec=TILES)


@pytest.mark.parametrize("conv", TRANSPOSED, ids=lambda c: f"{c.name}-{c.kernel}")
def test_transposed_matches_pytorch(conv: ConvTranspose) -> None:
    """All sizes whose output isn't empty; the workspace is as large as was said."""
    program = build(conv)
    for sizes in SIZES[len(conv.kernel)]:
        if min(conv.output_size(sizes[1:])) >= 1:
            x, weight = operands(conv, sizes)
            check(conv, program, x, weight)
            check(conv, program, x, weight, seed=3)


@pytest.mark.parametrize(
    "conv",
    [
        CONVS[1],
        CONVS[10],
        CONVS[12],
        CONVS[18],
        CONVS[22],
        TRANSPOSED[3],
        TRANSPOSED[4],
        TRANSPOSED[7],
        TRANSPOSED[10],
        TRANSPOSED[11],
        *TRANSPOSED[16:],
    ],
    ids=lambda c: f"{c.name}-{c.kernel}",
)
def test_weights_packed_at_run_time(conv: Conv | ConvTranspose) -> None:
    """A weight that is a run-time value gives bitwise the packed layout of a constant one."""
    program = build(conv, pack=True)
    x, weight = operands(conv, SIZES[len(conv.kernel)][1])
    params, _ = conv_params(conv, x, weight, pack=True)
    program(num_threads=2, seed=1, **params)
    assert (params["packed"] == conv.pack_weight(weight).ravel()).all()
    check(conv, program, x, weight, pack=True)


@pytest.mark.parametrize(
    ("tiles", "side_by_side"), [*((n, 1) for n in (1, 2, 3, 14, 100, 129, 500)), *((n, 2) for n in (2, 3, 4, 14, 129))]
)
def test_tiles_of_a_weight_panel_fetch_all_of_the_next_one(tiles: int, side_by_side: int) -> None:
    """Each line once or more, and little behind it."""
    host = TestHost(KernelModule(TILES.target))
    ahead, out = host.pointer("ahead"), host.pointer("out")
    at, step = share_of_fetching(host.fn, 128, ahead, host.size("k"), host.size("tile"), host.size("tiles"))
    fetched_lines = lines_of_step(host.fn, 128, side_by_side, step)
    for i, x in enumerate((host.fn.ptr_to_int(at), step, *fetched_lines)):
        host.fn.store(x, host.fn.gep(out, i, I64))
    program, start, found = host.build(), 1 << 20, np.zeros(2 + len(fetched_lines), np.int64)
    for k in (1, 7, 64, 300):
        fetched = set[int]()
        for tile in range(tiles):
            program(ahead=start, out=found, k=k, tile=tile, tiles=tiles)
            first, apart, *lines = (int(x) for x in found)
            fetched |= {(first - start + s * apart + line) // 64 for s in range(k) for line in lines}
        assert set(range(2 * k)) <= fetched
        assert max(fetched) <= 2 * k + k * -(-128 // tiles) // 64
