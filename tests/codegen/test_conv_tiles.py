"""Convolutions of bf16 and bytes in matrix registers against PyTorch in float64, on an emulator of tiles where the CPU has none."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.quantised import ByteConv
from dhlo.codegen.families.conv.tiles import ConvTiles
from dhlo.codegen.families.conv.tiles_form import Phases
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.families.gemm.register_tile import BF16, TileSpec, tile_spec
from dhlo.codegen.families.gemm.tiles import TILES_PAY
from dhlo.codegen.kernel_ir.builder import KernelModule
from dhlo.codegen.target import parse_target
from tests.codegen import tile_machine
from tests.codegen.conv_host import build_byte_conv, byte_conv_params, byte_operands, emit_store
from tests.codegen.harness import Program, TestHost, aligned, build_hosts
from tests.codegen.test_conv import reference
from tests.codegen.test_matmul_bytes import runs_here
from tests.codegen.test_tiles import AMX, WITHOUT

pytestmark = pytest.mark.skipif(not runs_here(WITHOUT), reason="dot products of bf16 stand beside tiles")

SPEC = tile_spec(AMX)
FACTS = ("tiles_percent", "bf16_percent", "l2_bytes", "memory_bytes_per_us")
FAST = {"tiles_percent": TILES_PAY, "bf16_percent": 50, "l2_bytes": 2 << 20, "memory_bytes_per_us": 20_000}
Array = Any


def conv(channels: int, outs: int, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Conv:
    """Of bf16; numbers stand for all dims, which are two unless `kernel` has more."""

    rank = len(kernel) if isinstance(kernel, tuple) else 2

    def pair(x: Any) -> tuple[int, ...]:
        return (x,) * rank if isinstance(x, int) else tuple(x)

    pads = tuple((n, n) if isinstance(n, int) else n for n in pair(padding))
    form: dict[str, Any] = {"code": BF16, "image": BF16, "winograd": (4, 6)}
    return Conv(channels, outs, pair(kernel), pair(stride), pads, pair(dilation), groups, spec=SPEC, **form)


CONVS = [
    conv(64, 64, 3, padding=1),
    conv(80, 72, 3, padding=1),  # a step of half as many channels
    conv(64, 96, 1),
    conv(37, 33, 1, stride=2),
    conv(96, 40, 3, stride=2, padding=1),
    conv(160, 70, 3, padding=1),  # several blocks of channels, the last of which is not whole
    conv(64, 64, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 4), groups=2),
    conv(32, 33, 5, padding=4, dilation=2),
    conv(24, 40, (1, 3), stride=(1, 3), padding=((0, 0), (2, 0))),
    conv(17, 5, (4, 2), stride=(3, 4), padding=((0, 3), (1, 0)), dilation=(2, 1)),
    conv(3, 64, 7, stride=2, padding=3),  # columns of windows are channels
    conv(3, 16, 5, padding=4, dilation=2),
    conv(12, 24, (3, 2), stride=3, padding=1, groups=2),
    conv(8, 40, 3, padding=1),
    conv(12, 40, 1),  # few channels, and one column
    Conv(80, 48, (3,), (2,), ((1, 1),), (1,), spec=SPEC, code=BF16, image=BF16),
    Conv(4, 6, (7,), (1,), ((3, 3),), (1,), 2, spec=SPEC, code=BF16, image=BF16),
    conv(40, 48, (3, 3, 3), stride=(1, 2, 2), padding=(1, 1, 1), dilation=(2, 1, 1)),
    conv(16, 33, (4, 1, 3), stride=(3, 1, 1), padding=((2, 1), (0, 0), (1, 1)), dilation=(1, 1, 1)),
    conv(3, 40, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3), dilation=(1, 1, 1)),
    conv(104, 104, 3, padding=1, groups=13),  # groups together, the last of which are fewer
    conv(48, 48, 3, stride=2, padding=1, groups=6),
    conv(24, 48, (3, 2), stride=(1, 3), groups=6),
    conv(36, 12, 3, padding=2, dilation=2, groups=4),
    conv(32, 32, 3, padding=1, groups=2),
    conv(10, 70, 3, groups=5),
    conv(6, 40, 1, groups=2),
    conv(8, 18, 7, padding=3, groups=2),  # columns take fewer steps
    conv(20, 15, (3, 2, 3), stride=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 1, 1), groups=5),
    Conv(40, 20, (5,), (1,), ((2, 2),), (1,), 5, spec=SPEC, code=BF16, image=BF16),
]
GATED = [replace(conv(*channels, 1), gated=True) for channels in ((64, 96), (80, 72), (37, 33), (17, 5), (12, 40), (300, 20))]
GATED += [replace(conv(*channels, 1, groups=5), gated=True) for channels in ((40, 40), (60, 20))]
SIZES = [(1, 14, 13, 9), (2, 1, 1, 7), (3, 7, 7, 7), (1, 2, 70, 3), (1, 33, 5, 8), (0, 9, 9, 9), (2, 40, 17, 4), (1, 3, 300, 6)]
every = pytest.mark.parametrize("c", CONVS, ids=lambda c: c.name)


@pytest.fixture(autouse=True)
def _clean_tiles() -> Iterator[None]:
    """Nothing that would trap, and no tiles that are kept."""
    tile_machine.report()
    yield
    tile_machine.report()


@functools.cache
def build(c: Conv | ConvTranspose, choose: bool = False, strided: bool = False) -> Program:
    """Compiles a convolution, by tiles unless calls are to `choose`."""
    with pytest.MonkeyPatch.context() as patch:
        if not choose:
            patch.setattr(ConvTiles, "cost", lambda self, host, blocks: host.fn.i64(-1))
        module = KernelModule(c.spec.target)
        c.emit_kernels(module)
        epilogue, host = emit_store(module, c.elem), TestHost(module, asked=FACTS)
        sizes = [host.size(f"n{i}") for i in range(len(c.kernel) + 1)]
        strides = [host.size(f"s{i}") for i in range(len(c.kernel) + 2)] if strided else None
        x, w, eargs = (host.pointer(n) for n in ("x", "w", "eargs"))
        for fact in FACTS:
            host.size(fact)
        symbol = host.fn.address_of(epilogue)
        args: dict[str, Any] = {"sizes": sizes, "epilogue": symbol, "epilogue_args": eargs, "x_strides": strides}
        own: dict[str, Any] = {"workspace": x} if isinstance(c, ConvTranspose) else {}
        if isinstance(c, Conv) and c.gated:
            own["gates"] = [host.pointer("gates")]
        c.emit_launch(host, x=x, w=w, **args, **own)
        return host.build()


def operands(c: Conv, sizes: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(sizes[0], c.in_channels, *sizes[1 : len(c.kernel) + 1])
    return x.bfloat16(), torch.randn(c.out_channels, c.in_channels // c.groups, *c.kernel).bfloat16()


def parameters(
    c: Conv | ConvTranspose, x: torch.Tensor, weight: torch.Tensor, facts: dict[str, int]
) -> tuple[dict[str, Any], Array]:
    """Parameters of a call, and where its result goes."""
    spatial = [max(0, n) for n in c.output_size(x.shape[2:])]
    out = np.full((x.shape[0], c.out_channels, *spatial), 777.0, np.float32)
    packed = c.pack_codes(weight)
    w = aligned(packed.nbytes)
    w[:] = packed.ravel().view(np.uint8)
    assert packed.nbytes == c.workspace_bytes
    eargs = np.array([out.ctypes.data, int(np.prod(spatial)), c.out_channels, 0], np.int64)
    params: dict[str, Any] = {"x": x.view(torch.int16).numpy(), "w": w, "eargs": eargs} | FAST | facts
    return params | {f"n{i}": n for i, n in enumerate((x.shape[0], *x.shape[2:]))}, out


def run(
    c: Conv | ConvTranspose, x: torch.Tensor, weight: torch.Tensor, *, threads: int = 2, seed: int | None = None, **facts: int
) -> Array:
    """The convolution by tiles alone."""
    params, out = parameters(c, x, weight, facts)
    assert len(build(c).record(num_threads=threads, **params)) == (out.size > 0)
    tile_machine.report()
    build(c)(num_threads=threads, seed=seed, **params)
    if tile_machine.is_needed(SPEC.target):
        assert (tile_machine.report() > 0) == (out.size > 0)
    return out


def check(c: Conv | ConvTranspose, x: torch.Tensor, weight: torch.Tensor, **options: Any) -> None:
    """Products of bf16 are exact in f32, and sums are rounded to it."""
    out, want = run(c, x, weight, **options), reference(c, x.float().numpy(), weight.float().numpy())
    tolerance = 4 * 2**-23 * ((weight[0].numel()) ** 0.5 + 8)
    np.testing.assert_allclose(out, want, rtol=tolerance, atol=4 * tolerance * max(1, weight[0].numel() ** 0.5 / 8))


@pytest.mark.sampled(2)
@every
def test_matches_pytorch_at_all_sizes(c: Conv) -> None:
    """One compiled kernel serves all sizes, in any split."""
    tried = 0
    for number, sizes in enumerate(SIZES):
        if min(c.output_size(sizes[1 : len(c.kernel) + 1])) >= 1:
            check(c, *operands(c, sizes, number), seed=number)
            tried += 1
    assert tried >= 3


@pytest.mark.parametrize("c", [*CONVS[:10:3], *CONVS[17:]], ids=lambda c: c.name)
@pytest.mark.parametrize("l2_bytes", [64 << 10, 256 << 10, 8 << 20])
def test_blocks_of_images_rows_and_columns(c: Conv, l2_bytes: int) -> None:
    """A small cache cuts images to pieces of rows and columns, a large one takes several together."""
    for sizes in ((5, 7, 18, 17), (2, 41, 19, 9), (1, 9, 260, 12)):
        check(c, *operands(c, sizes), l2_bytes=l2_bytes, threads=3)


@every
def test_threads_and_blocks_change_no_bit(c: Conv) -> None:
    x, weight = operands(c, (3, 19, 22, 9))
    first = run(c, x, weight, threads=1)
    for l2_bytes, threads, seed in ((2 << 20, 2, None), (96 << 10, 1, None), (96 << 10, 3, 5)):
        assert (run(c, x, weight, threads=threads, seed=seed, l2_bytes=l2_bytes) == first).all()


@every
def test_nan_spreads_exactly_as_far_as_its_windows(c: Conv) -> None:
    """And so do infinities: neither through zeros behind the last channel nor through positions that are no output."""
    x, weight = operands(c, (2, 14, 19, 8))
    x[(1, 2, *[6, 5, 4][: x.dim() - 2])] = float("nan")
    x[(0, 1, *[0, 0, 0][: x.dim() - 2])] = float("inf")
    with np.errstate(invalid="ignore"):
        out, want = run(c, x, weight), reference(c, x.float().numpy(), weight.float().numpy())
    assert (np.isnan(out) == np.isnan(want)).all() and (np.isinf(out) == np.isinf(want)).all()


@every
def test_infinite_weights_stay_in_their_channel(c: Conv) -> None:
    """The last unit of a point isn't multiplied by the first one of the next, nor by what lies behind the weights."""
    x, weight = operands(c, (1, 12, 19, 9))
    weight[0, -1].view(-1)[-1] = float("inf")
    weight[2, 0].view(-1)[0] = float("nan")
    out = run(c, x, weight)
    assert np.isnan(out[:, 2]).any() and np.isfinite(out[:, [1, *range(3, c.out_channels)]]).all()
    assert not np.isfinite(out[:, 0]).all()


@pytest.mark.parametrize("c", GATED, ids=lambda c: c.name)
@pytest.mark.parametrize("in_tiles", [True, False])
def test_gates_multiply_channels(c: Conv, in_tiles: bool) -> None:
    """What each product with a gate is rounded to is multiplied; neither gates nor image are read beyond their ends. A gate that
    isn't finite stays in its image."""
    percent = TILES_PAY if in_tiles else 0
    for number, sizes in enumerate(SIZES):
        x, weight = operands(c, sizes, number)
        gates = torch.rand(sizes[0], c.in_channels).bfloat16()
        if sizes[0] > 2:
            gates[1, c.in_channels - 1] = float("inf")
        params, out = parameters(c, x, weight, {"tiles_percent": percent})
        params["gates"] = gates.view(torch.int16).numpy()
        build(c, choose=not in_tiles)(num_threads=2, seed=number, **params)
        product = x * gates[:, :, None, None]
        with np.errstate(invalid="ignore"):
            want = reference(c, product.float().numpy(), weight.float().numpy())
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=5e-4, equal_nan=True)


@pytest.mark.parametrize("c", [CONVS[i] for i in (0, 4, 10, 15, 17)], ids=lambda c: c.name)
def test_strided_input(c: Conv) -> None:
    """A slice of a larger tensor, beside which there are numbers that aren't finite: all strides but the last one free."""
    sizes = (4, 20, 23, 11)[: len(c.kernel) + 1]
    big, weight = operands(c, sizes, 3)
    inner = (slice(None, None, 2), slice(None), *[slice(1, n - 2) for n in sizes[1:]])
    outside = torch.full_like(big, float("nan"))
    outside[inner] = big[inner]
    x = outside[inner]
    params, out = parameters(c, x.contiguous(), weight, {})
    params["x"] = outside.view(torch.int16)[inner].numpy()
    strides = {f"s{i}": n for i, n in enumerate(x.stride())}
    build(c, strided=True)(num_threads=2, **params, **strides)
    want = reference(c, x.float().contiguous().numpy(), weight.float().numpy())
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(
    ("c", "sizes", "percent", "in_tiles"),
    [
        (CONVS[0], (1, 28, 28), TILES_PAY, True),
        (CONVS[0], (1, 28, 28), TILES_PAY - 1, False),  # tiles that aren't faster
        (CONVS[2], (1, 20, 20), TILES_PAY, True),
        (CONVS[10], (1, 64, 64), TILES_PAY, True),
        (CONVS[12], (1, 64, 64), TILES_PAY, False),  # groups of few outputs
    ],
)
def test_calls_choose(c: Conv, sizes: tuple[int, ...], percent: int, in_tiles: bool) -> None:
    x, weight = operands(c, sizes)
    params, out = parameters(c, x, weight, {"tiles_percent": percent})
    program = build(c, choose=True)
    tile_machine.report()
    program(num_threads=1, **params)
    (launch,) = program.record(num_threads=1, **params)
    only = build(c).record(num_threads=1, **params)[0]
    assert (len(launch.args) == len(only.args)) == in_tiles
    want = reference(c, x.float().numpy(), weight.float().numpy())
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("channels", [(16, 48), (48, 16), (24, 56), (3, 35), (64, 32)])
def test_convolutions_of_one_module_share_no_more_than_is_the_same(channels: tuple[int, int]) -> None:
    """Functions that lay rows know how many channels there are."""
    convs = [conv(c, 40, 3, padding=1) if c > 3 else CONVS[10] for c in channels]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConvTiles, "cost", lambda self, host, blocks: host.fn.i64(-1))
        module = KernelModule(SPEC.target)
        epilogue = emit_store(module, convs[0].elem)
        hosts = []
        for number, c in enumerate(convs):
            c.emit_kernels(module)
            host = TestHost(module, name=f"host{number}", asked=FACTS)
            sizes = [host.size(f"n{i}") for i in range(3)]
            x, w, eargs = (host.pointer(n) for n in ("x", "w", "eargs"))
            for fact in FACTS:
                host.size(fact)
            c.emit_launch(host, x=x, w=w, sizes=sizes, epilogue=host.fn.address_of(epilogue), epilogue_args=eargs)
            hosts.append(host)
        programs = build_hosts(hosts)
    for c, program in zip(convs, programs, strict=True):
        x, weight = operands(c, (2, 17, 19))
        params, out = parameters(c, x, weight, {})
        program(num_threads=2, **params)
        want = reference(c, x.float().numpy(), weight.float().numpy())
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=2e-3)


@settings(max_examples=30, deadline=None)
@given(
    kernel=st.integers(1, 9),
    stride=st.integers(1, 5),
    before=st.integers(0, 4),
    dilation=st.integers(1, 4),
    outputs=st.integers(1, 9),
)
def test_phases_hold_what_windows_read(kernel: int, stride: int, before: int, dilation: int, outputs: int) -> None:
    """Each point of each window is where its place says, within the phase's positions."""
    phases = Phases(kernel, stride, before, dilation)
    for output in range(outputs):
        for point in range(kernel):
            number, on = phases.place(point)
            position = output + on
            assert position < outputs + phases.reach
            assert position * stride + phases.all[number] - before == output * stride - before + point * dilation


def test_which_convolutions_have_tiles() -> None:
    """Of bf16 alone, unless a window is far too wide or has too few numbers in a row."""

    def has(**changes: Any) -> bool:
        base: dict[str, Any] = {"channels": 32, "kernel": (3, 3), "code": BF16, "image": BF16, "dilation": (1, 1), "groups": 1}
        a = base | changes
        rank = len(a["kernel"])
        spec: TileSpec = a.get("spec", SPEC)
        ones, none = (1,) * rank, ((0, 0),) * rank
        c = Conv(
            a["channels"], 32, a["kernel"], ones, none, a["dilation"], a["groups"], spec=spec, code=a["code"], image=a["image"]
        )
        return c.tiles

    assert has() and has(channels=16) and has(channels=3, kernel=(7, 7)) and has(kernel=(5,), dilation=(1,))
    assert not has(code="") and not has(image="") and not has(code="f16", image="f16")
    assert not has(channels=2) and not has(channels=15) and not has(groups=32)
    assert has(kernel=(3, 3, 3), dilation=(1, 1, 1)) and not has(dilation=(1, 100)) and not has(kernel=(12, 12))
    assert not has(spec=tile_spec(parse_target("x86-64-v4+bf16")))


# ---------------------------------------------------------------------------------------------------- bytes
def bytes_conv(c: Conv, zero: int, unsigned: bool) -> ByteConv:
    """The same windows over bytes."""
    form = (c.in_channels, c.out_channels, c.kernel, c.stride, c.padding, c.dilation, c.groups)
    return ByteConv(*form, zero, replace(SPEC, unsigned=unsigned))


BYTES = [
    bytes_conv(conv(64, 64, 3, padding=1), 0, True),
    bytes_conv(conv(80, 72, 3, stride=2, padding=1), 130, True),  # 20 units: a step and a quarter
    bytes_conv(conv(37, 33, 1, stride=2), -5, False),
    bytes_conv(conv(300, 40, 1), 7, False),
    bytes_conv(conv(130, 96, 3, padding=2, dilation=2), 255, True),
    bytes_conv(conv(3, 64, 7, stride=2, padding=3), 117, True),  # columns of windows are channels
    bytes_conv(conv(24, 40, (3, 2), stride=3, padding=1, groups=2), -128, False),
    bytes_conv(Conv(80, 48, (3,), (2,), ((1, 1),), (1,), spec=SPEC), 3, True),
    bytes_conv(conv(70, 36, (3, 3, 3), stride=(2, 1, 1), padding=(1, 1, 0), dilation=(1, 1, 1)), 9, False),
]


@functools.cache
def build_bytes(c: ByteConv, tiles: bool) -> Program:
    """Compiles a convolution of bytes, by tiles or by vectors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConvTiles, "cost", lambda self, host, blocks: host.fn.i64(-1 if tiles else (1 << 63) - 1))
        return build_byte_conv(c, FACTS)


def run_bytes(c: ByteConv, x: Array, weight: Array, *, tiles: bool = True, threads: int = 2, seed: int | None = None) -> Array:
    """The sums."""
    assert c.conv.tiles
    params, out = byte_conv_params(c, x, weight)
    tile_machine.report()
    build_bytes(c, tiles)(num_threads=threads, seed=seed, **params, **FAST)
    if tile_machine.is_needed(SPEC.target):
        assert (tile_machine.report() > 0) == (tiles and out.size > 0)
    return out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("c", BYTES, ids=lambda c: c.conv.name)
def test_sums_of_bytes_are_exact_at_all_sizes(c: ByteConv) -> None:
    """Less the image's zero, which is what lies outside; vectors find the same."""
    for number, sizes in enumerate(SIZES):
        if min(c.conv.output_size(sizes[1 : len(c.kernel) + 1])) >= 1:
            x, weight = byte_operands(c, sizes, number)
            want = reference(c.conv, x.astype(np.float32) - c.zero, weight.astype(np.float32))
            assert (run_bytes(c, x, weight, seed=number) == want).all()
            assert (run_bytes(c, x, weight, threads=1) == want).all()
            assert (run_bytes(c, x, weight, tiles=False) == want).all()


@pytest.mark.parametrize(("stride", "outs"), [((2, 2), 24), ((3, 4), 21)])
def test_phases_of_transposed_convolutions_are_channels(stride: tuple[int, int], outs: int) -> None:
    """Rows of the output come from tiles as from vectors."""
    form: dict[str, Any] = {"spec": SPEC, "code": BF16, "image": BF16}
    c = ConvTranspose(64, outs, stride, stride, (0, 0), (0, 0), (1, 1), **form)
    assert not c.interleaves
    for sizes in ((1, 14, 13), (2, 1, 1), (3, 7, 70), (0, 9, 9)):
        torch.manual_seed(0)
        check(c, torch.randn(sizes[0], 64, *sizes[1:]).bfloat16(), torch.randn(64, outs, *stride).bfloat16())


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_weights_are_packed_by_phase(stride: int) -> None:
    """Each phase finds its codes where its offset says."""
    form: dict[str, Any] = {"spec": SPEC, "code": BF16, "image": BF16}
    both, pads = (stride, stride), ((1, 1), (0, 0))
    c = ConvTranspose(40, 24, (3, 4), both, *pads, (1, 1), **form)
    weight = torch.randn(40, 24, 3, 4).bfloat16()
    packed = c.pack_codes(weight)
    assert packed.nbytes == c.workspace_bytes
    bits = weight.view(torch.int16).numpy()
    assert sorted(packed[packed != 0]) == sorted(bits[bits != 0].ravel())
    with pytest.raises(ValueError, match="doesn't fit"):
        c.pack_codes(weight[:, :3])
