"""Winograd's convolution of bytes: its sums are those of products in order, to the last bit, or it isn't chosen."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dhlo.codegen.families.conv.quantised import ByteConv, _UnitConv
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.codegen.families.conv.winograd_bytes import SHIFTS, WholeFilter, is_exact
from dhlo.codegen.families.conv.winograd_kernel import FIELDS
from dhlo.codegen.families.gemm.register_tile import TileSpec, tile_spec
from dhlo.codegen.target import parse_target
from tests.codegen.conv_host import build_byte_conv, byte_conv_params, byte_operands
from tests.codegen.harness import Program
from tests.codegen.test_conv import reference
from tests.codegen.test_tiles import AMX
from tests.targets import TILES

Array = Any
V3, V4 = (tile_spec(parse_target(name)) for name in ("x86-64-v3", "x86-64-v4"))
pytestmark = pytest.mark.skipif(not TILES.target.is_x86, reason="products of pairs are x86-64's")
SPEC = replace(TILES, target=replace(TILES.target, tiles=None))  # which would be left the bytes
PADS = ((1, 1), (1, 1))
SIZES = [(1, 8, 8), (1, 7, 7), (2, 14, 13), (1, 1, 1), (3, 5, 50), (1, 3, 300), (5, 2, 3), (1, 30, 31), (0, 8, 8), (2, 6, 701)]
FIELDS_OF_BYTES = len(FIELDS) + 2  # and what blocks keep


def square(ins: int, outs: int, zero: int = 0, unsigned: bool = True, pads: Any = PADS, spec: TileSpec = SPEC) -> ByteConv:
    return ByteConv(ins, outs, (3, 3), (1, 1), pads, (1, 1), 1, zero, replace(spec, unsigned=unsigned))


@functools.cache
def build(c: ByteConv, forced: bool = True) -> Program:
    """Takes the algorithm wherever it is exact, if `forced`, else where it costs less."""
    if not forced:
        return build_byte_conv(c)
    with mock.patch.object(Winograd, "cost", lambda self, host, out, cut: host.fn.i64(0)):
        return build_byte_conv(c)


def check(c: ByteConv, x: Array, weight: Array, taken: bool = True) -> None:
    """With any number of threads and in any chunks."""
    want = reference(c.conv, x.astype(np.float64) - c.zero, weight.astype(np.float64))
    for threads, seed in ((1, None), (2, 1), (3, 2)):
        params, out = byte_conv_params(c, x, weight)
        launches = build(c).record(num_threads=threads, **params)
        build(c)(num_threads=threads, seed=seed, **params)
        assert [len(launch.args) == FIELDS_OF_BYTES for launch in launches] == ([False, taken] if out.size else [])
        assert (out == want).all()


LAYERS = [
    square(64, 64),
    square(16, 40, 130),
    square(150, 90, -5, unsigned=False),
    square(37, 33, -128, unsigned=False, pads=((0, 2), (1, 0))),
    square(20, 17, 255, pads=((0, 0), (3, 0))),
]


@pytest.mark.parametrize("c", LAYERS, ids=lambda c: f"{c.in_channels}_{c.zero}")
def test_sums_are_exact_at_all_sizes(c: ByteConv) -> None:
    for number, sizes in enumerate(SIZES):
        if min(c.conv.output_size(sizes[1:])) >= 1:
            check(c, *byte_operands(c, sizes, number))


@pytest.mark.skipif(TILES.lanes("i32") != 16, reason="runs code for x86-64-v4")
@pytest.mark.parametrize("spec", [V3, V4], ids=str)
def test_targets_without_products_of_bytes(spec: TileSpec) -> None:
    """Units of two integers of 16 bits, 8 and 16 lanes, panels of several tiles."""
    for c in (square(33, 70, 7, spec=spec), square(100, 40, 9, unsigned=False, spec=spec)):
        for sizes in ((2, 7, 9), (1, 3, 290), (1, 28, 28)):
            check(c, *byte_operands(c, sizes, 0))


def extremes(c: ByteConv, channels: int, signs: str) -> tuple[Array, Array]:
    """An image and weights of the greatest numbers, in as many channels: `alike` adds all products, `apart` takes half of them
    from the others."""
    low, high = (0, 255) if c.spec.unsigned else (-128, 127)
    x = np.full((1, c.in_channels, 9, 10), high, np.uint8 if c.spec.unsigned else np.int8)
    weight = np.zeros((c.out_channels, c.in_channels, 3, 3), np.int8)
    weight[:, :channels] = 127 if signs == "alike" else -128
    if signs == "apart":
        weight[:, :channels:2], x[:, ::2] = 127, low
    weight[1::2, :channels] //= -2
    return x, weight


@pytest.mark.parametrize("signs", ["alike", "apart"])
@pytest.mark.parametrize(("zero", "unsigned"), [(0, True), (255, True), (128, True), (-128, False), (0, False)])
def test_greatest_sums(zero: int, unsigned: bool, signs: str) -> None:
    """Sums right below what fits are exact; beyond it products go in order."""
    c = square(1000, 20, zero, unsigned)
    least = (0 if unsigned else -128) - zero
    most = max(n for n in range(1, 1001) if is_exact(extremes(c, n, signs)[1], least, least + 255))
    assert 50 < most < 1000
    for channels in (most, most + 1, 1000):
        check(c, *extremes(c, channels, signs), taken=channels <= most)


def test_what_is_exact() -> None:
    """Bounds are of single outputs, at both ends."""
    weight = np.zeros((3, 2, 3, 3), np.int64)
    for at, most in ((1, (1 << 25) - 1), (-1, 1 << 25)):
        weight[1, 1, 2, 0] = at * most
        assert is_exact(weight, 0, 1) and is_exact(-weight, -1, 0)
        weight[1, 1, 2, 0] = at * (most + 1)
        assert not is_exact(weight, 0, 1) and not is_exact(-weight, -1, 0)


class _Exactly:
    """Does at once what a function's builder would write code for."""

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def shl(self, a: Any, b: int) -> Any:
        return a * 2**b


@given(st.lists(st.integers(-255, 255), min_size=6, max_size=6), st.lists(st.integers(-128, 127), min_size=3, max_size=3))
def test_maps_of_whole_numbers(data: list[int], taps: list[int]) -> None:
    """They make a correlation, times what shifts and the inverse of 9 take away, and keep within their bounds."""
    kind, f = WholeFilter(), _Exactly()
    d, g = kind.map_inputs(f, data), kind.map_weights(f, taps)  # type: ignore[arg-type]
    assert max(map(abs, d)) <= 10 * 255 and max(map(abs, g)) <= 7 * 128  # type: ignore[arg-type]
    out = kind.map_outputs(f, [a * b for a, b in zip(d, g, strict=True)])  # type: ignore[arg-type, operator]
    wanted = [sum(taps[k] * data[i + k] for k in range(3)) for i in range(4)]
    assert out == [3 * 2**s * y for s, y in zip(SHIFTS, wanted, strict=True)]


def launched(c: ByteConv, sizes: tuple[int, ...]) -> bool:
    """Whether a call chooses it."""
    x, weight = byte_operands(c, sizes, 0)
    params, out = byte_conv_params(c, x, weight // 4)
    *_, launch = build(c, False).record(num_threads=2, **params)
    build(c, False)(num_threads=2, **params)
    assert (out == reference(c.conv, x.astype(np.float64) - c.zero, (weight // 4).astype(np.float64))).all()
    return len(launch.args) == FIELDS_OF_BYTES


@pytest.mark.skipif(TILES.lanes("i32") != 16, reason="the bounds are those of 16 lanes")
def test_the_choice_follows_the_sizes() -> None:
    assert launched(square(64, 64), (1, 56, 56)) and launched(square(256, 256), (4, 14, 14))
    assert not launched(square(16, 16), (1, 2, 2)) and not launched(square(512, 512), (1, 3, 3))


@pytest.mark.parametrize(
    ("changes", "applies"),
    [
        ({}, True),
        ({"in_channels": 4}, False),
        ({"stride": (1, 2)}, False),
        ({"dilation": (2, 1)}, False),
        ({"groups": 2}, False),
        ({"kernel": (3, 1)}, False),
        ({"kernel": (5, 5)}, False),
        ({"spec": AMX}, False),
        ({"spec": parse_target("aarch64")}, False),
    ],
)
def test_which_convolutions_it_is_for(changes: dict[str, Any], applies: bool) -> None:
    c = replace(square(64, 64), **{k: v if k != "spec" else tile_spec(v) for k, v in changes.items()})
    assert (isinstance(c.conv, _UnitConv) and c.conv.has_winograd) is applies
    weight = np.ones((64, c.in_channels // c.groups, *c.kernel), np.int8)
    assert c.pack_weight(weight).nbytes == c.weight_bytes


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_sizes_drawn_at_random(data: st.DataObject) -> None:
    c = data.draw(st.sampled_from(LAYERS))
    sizes = tuple(data.draw(st.integers(1, most)) for most in (3, 40, 70))
    if min(c.conv.output_size(sizes[1:])) >= 1:
        check(c, *byte_operands(c, sizes, data.draw(st.integers(0, 99))))
