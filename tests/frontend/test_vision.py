"""torchvision's operators, without the library: boxes, regions and deformed windows, against what they are defined to compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.frontend.autocast import policy
from dhlo.ir.dialect import TypeError_, build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import vision
from tests import torchvision_operators as definition
from tests.frontend.helpers import Fn
from tests.programs import Module, Part, plain, t

A: Any = Dim.AUTO
F16, F32, F64 = torch.float16, torch.float32, torch.float64
T = torch.ops.torchvision
TOLERANCE = {F16: 5e-3, F32: 3e-6, F64: 1e-12}
TARGETS = ["", "x86-64-v3"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def compiled(fn: Any, args: Sequence[torch.Tensor], dims: Any, target: str = "") -> Any:
    module, dims = (fn, dims) if isinstance(fn, torch.nn.Module) else (Fn(fn), (dims,))
    return dhlo.compile(module, tuple(args), dynamic_shapes=dims, **({"target": target} if target else {}))


def agree(got: Any, want: Any, tolerance: float) -> None:
    for a, b in zip(*((x if isinstance(x, list | tuple) else [x]) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


# ---------------------------------------------------------------------------------------------------- boxes
def boxes(n: int, dtype: torch.dtype, strange: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes and scores; strange ones are empty, turned around or no numbers, and many have equal scores."""
    centre, size = torch.rand(n, 2) * 60, torch.rand(n, 2) * 25
    b, s = torch.cat([centre - size / 2, centre + size / 2], 1), torch.rand(n)
    if strange and n:
        b, s = b.round(), (s * 4).floor()
        b[::5, 2:] = b[::5, :2]
        b[1::7] = b[1::7].flip(1)
        b[2::9, 1], b[3::11, 2], s[4::13] = float("nan"), float("inf"), float("nan")
    return b.to(dtype), s.to(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "threshold"), [(F32, 0.5), (F64, 0.3), (F32, 0.0), (F32, 1.0)])
def test_nms(dtype: torch.dtype, threshold: float, target: str) -> None:
    model = compiled(lambda b, s: T.nms(b, s, threshold), boxes(9, dtype), ({0: A}, {0: A}), target)
    for n in (9, 0, 1, 2, 3, 16, 17, 33, 90, 0):
        for strange in (False, True):
            b, s = boxes(n, dtype, strange)
            assert torch.equal(model(b, s), definition.nms(b, s, threshold)), (n, strange)


def test_nms_compares_with_the_threshold_in_double_precision() -> None:
    """0.1 isn't a number of f32: the nearest one is above it."""
    b = torch.tensor([[0.0, 0, 1, 1], [0, 0, 0.1, 1]])
    s = torch.tensor([1.0, 0.5])
    for threshold in (0.1, float(torch.tensor(0.1))):
        model = compiled(lambda b, s, t=threshold: T.nms(b, s, t), (b, s), ({0: A}, {0: A}))
        assert torch.equal(model(b, s), definition.nms(b, s, threshold))


class Head(torch.nn.Module):
    """A detector's head: boxes of all places, those of each class suppressed by themselves, far from the others'."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(5, 7, 1)

    def forward(self, x):
        y = self.conv(x).flatten(2)[0].t()
        centre, size = y[:, :2] * 9, y[:, 2:4].exp() * 9
        scores, classes = y[:, 4:].sigmoid().max(1)
        boxes = torch.cat([centre - size, centre + size], 1)
        above = scores > 0.5
        boxes, scores, classes = boxes[above], scores[above], classes[above]
        keep = T.nms(boxes + classes[:, None] * 4096.0, scores, 0.45)
        return boxes[keep], scores[keep], classes[keep]


class EveryClass(Head):
    """Boxes of each class by themselves, and of all together as torchvision's batched_nms tells classes apart."""

    def forward(self, x):
        y = self.conv(x).flatten(2)[0].t()
        boxes = torch.cat([y[:, :2] * 9 - y[:, 2:4].exp() * 9, y[:, :2] * 9 + y[:, 2:4].exp() * 9], 1)
        scores, classes = y[:, 4:].sigmoid().max(1)
        shifted = boxes + (classes.to(boxes) * (boxes.max() + torch.tensor(1).to(boxes)))[:, None]
        found = [T.nms(boxes, y[:, 4 + c], 0.6) for c in range(3)]
        return [boxes[k] for k in (*found, T.nms(shifted, scores, 0.45))]


@pytest.mark.parametrize("head", [Head, EveryClass])
def test_heads_of_detectors(head: type[Head]) -> None:
    module = head().eval()
    with torch.no_grad():
        model = compiled(module, (torch.rand(1, 5, 6, 7),), ({2: A, 3: A},))
        for size in ((6, 7), (9, 4), (2, 2), (3, 11)):
            x = torch.randn(1, 5, *size)
            agree(model(x), module(x), 1e-5)


def test_a_module_may_keep_any_number_of_boxes() -> None:
    """The size that the operator's fake implementation makes may promise two boxes or more."""
    library = torch.library.Library("dhlo_tests_vision", "FRAGMENT")  # noqa: TOR901
    library.define("chosen(Tensor x) -> Tensor")
    torch.library.register_fake(
        "dhlo_tests_vision::chosen", lambda x: x.new_empty(torch.library.get_ctx().create_unbacked_symint()), lib=library
    )
    dhlo.register_decomposition(torch.ops.dhlo_tests_vision.chosen)(lambda x: x[x > 0])
    model = dhlo.compile(Fn(lambda x: torch.ops.dhlo_tests_vision.chosen(x) * 2), (torch.ones(4),))
    for x in (torch.tensor([1.0, -1, 2]), torch.tensor([-1.0, -2]), torch.tensor([-1.0, 3])):
        assert torch.equal(model(x), x[x > 0] * 2)


# ---------------------------------------------------------------------------------------------------- regions
def regions(n: int, images: int, height: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """In the image or partly beyond it; the first ones are turned around, of no size, and far away. Scaled by 2."""
    size = torch.tensor([width, height])
    centre, half = torch.rand(n, 2) * size * 1.2 - size * 0.1, torch.rand(n, 2) * size * 0.3
    found = torch.cat([centre - half, centre + half], 1) * 2
    for k, strange in enumerate(([5.0, 6, 2, 1], [3, 3, 3, 3], [-90, -80, -60, -70], [4.5, 2.5, 9, 7])):
        if k + 1 < n:
            found[k] = torch.tensor(strange)
    return torch.cat([torch.randint(0, images, (n, 1)), found], 1).to(dtype)


OPERATORS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "roi_align": (3, (2, False)),
    "roi_align aligned": (17, (2, True)),
    "roi_align adaptive": (3, (0, False)),
    "roi_align adaptive aligned": (2, (-1, True)),
    "roi_pool": (3, ()),
    "ps_roi_align": (3, (2,)),
    "ps_roi_align adaptive": (2, (0,)),
    "ps_roi_pool": (3, ()),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [F32, F64, F16])
@pytest.mark.parametrize("case", OPERATORS)
def test_regions(case: str, dtype: torch.dtype, target: str) -> None:
    name, (channels, more), cells = case.split()[0], OPERATORS[case], (2, 3)
    channels *= 6 if name.startswith("ps") else 1
    operator, defined = getattr(T, name), getattr(definition, name)
    example = (torch.rand(2, channels, 9, 11).to(dtype), regions(5, 2, 9, 11, dtype))
    model = compiled(lambda x, r: operator(x, r, 0.5, *cells, *more), example, ({0: A, 2: A, 3: A}, {0: A}), target)
    for images, height, width, n in ((2, 9, 11, 5), (1, 4, 5, 0), (1, 1, 1, 1), (3, 18, 37, 7), (2, 9, 11, 2)):
        x, r = torch.randn(images, channels, height, width).to(dtype), regions(n, images, height, width, dtype)
        agree(model(x, r), defined(x, r, 0.5, *cells, *more), TOLERANCE[dtype])


def test_regions_far_larger_than_the_image_take_no_time_and_no_memory() -> None:
    model = compiled(
        lambda x, r: T.roi_align(x, r, 1.0, 3, 3, 0, True), (torch.rand(1, 2, 9, 9), torch.rand(4, 5)), ({2: A, 3: A}, {0: A})
    )
    x = torch.rand(1, 2, 8, 10)
    inf, nan = float("inf"), float("nan")
    r = torch.tensor([[0, -1e9, -1e9, 1e9, 1e9], [0, -inf, 0, inf, 5], [0, nan, 0, 3, 3], [0, -150.0, 2, 150, 6]])
    y = model(x, r)
    assert (y[:3].abs() < 1e-6).all()
    agree(y[3:], definition.roi_align(x, r[3:], 1.0, 3, 3, 0, True), 1e-6)


def test_a_region_of_no_image_fails_the_call() -> None:
    for operator, more in ((T.roi_align, (2, False)), (T.roi_pool, ())):
        args = (torch.rand(2, 3, 8, 8), torch.tensor([[1.0, 1, 1, 5, 5], [0, 1, 1, 5, 5]]))
        model = compiled(lambda x, r, f=operator, m=more: f(x, r, 1.0, 2, 2, *m), args, ({0: A}, {0: A}))
        for image in (2.0, -1.0):
            bad = args[1].clone()
            bad[1, 0] = image
            with pytest.raises(ContractError, match="index out of range"):
                model(args[0], bad)
        with pytest.raises(ContractError, match="index out of range"):
            model(args[0][:0], args[1])
        assert model(args[0], args[1]) is not None


# ---------------------------------------------------------------------------------------------------- deformed windows
DEFORMED: dict[str, dict[str, Any]] = {
    "plain": {"channels": 3, "out": 4, "window": (3, 3), "numbers": (1, 1, 1, 1, 1, 1, 1, 1)},
    "strides, padding, dilation": {"channels": 6, "out": 4, "window": (3, 2), "numbers": (2, 1, 1, 2, 1, 2, 2, 3), "mask": True},
    "groups": {"channels": 36, "out": 6, "window": (1, 2), "numbers": (1, 2, 0, 1, 1, 1, 3, 2)},
    "each channel": {"channels": 4, "out": 4, "window": (3, 3), "numbers": (1, 1, 2, 2, 2, 2, 4, 4), "mask": True},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [F32, F64, F16])
@pytest.mark.parametrize("case", DEFORMED)
def test_deformed_windows(case: str, dtype: torch.dtype, target: str) -> None:
    how = DEFORMED[case]
    (kh, kw), numbers, mask = how["window"], how["numbers"], "mask" in how
    sh, sw, ph, pw, dh, dw, groups, offsets = numbers
    weight = torch.randn(how["out"], how["channels"] // groups, kh, kw).to(dtype) / 4
    bias = torch.randn(how["out"]).to(dtype)

    def args(batch: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
        out = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
        x = torch.randn(batch, how["channels"], height, width).to(dtype)
        moved = (torch.randn(batch, 2 * offsets * kh * kw, *out) * 3).to(dtype)
        return x, moved, torch.rand(batch, offsets * kh * kw if mask else 1, *out).to(dtype)

    def run(x, offset, factors):
        return T.deform_conv2d(x, weight, offset, factors, bias, *numbers, mask)

    model = compiled(run, args(2, 8, 9), ({0: A, 2: A, 3: A},) * 3, target)
    for sizes in ((2, 8, 9), (1, 5, 7), (3, 13, 8), (0, 8, 9), (1, 23, 21)):
        given = args(*sizes)
        want = definition.deform_conv2d(given[0], weight, *given[1:], bias, *numbers, mask)
        agree(model(*given), want, {F16: 2e-2, F32: 2e-5, F64: 1e-10}[dtype])


def test_offsets_that_are_whole_numbers_and_on_the_border() -> None:
    """Places at -1 and at the image's size are outside; what is read is exact."""
    x, weight, bias = torch.randn(1, 2, 4, 4), torch.ones(1, 2, 1, 1), torch.zeros(1)
    offset = torch.zeros(1, 2, 4, 4)
    offset[0, 0, 0], offset[0, 0, 3], offset[0, 1, :, 2] = -1, 1, -1e30
    offset[0, 0, 1, 1] = float("nan")
    model = compiled(
        lambda x, o: T.deform_conv2d(x, weight, o, x[:, :1], bias, 1, 1, 0, 0, 1, 1, 1, 1, False), (x, offset), ({0: A}, {0: A})
    )
    want = x.sum(1, keepdim=True)
    want[0, 0, 0], want[0, 0, 3], want[0, 0, :, 2], want[0, 0, 1, 1] = 0, 0, 0, 0
    torch.testing.assert_close(model(x, offset), want)


# ---------------------------------------------------------------------------------------------------- what is refused
def test_dtypes_without_kernels_are_errors_that_say_where() -> None:
    b, s = boxes(5, F16)
    with pytest.raises(
        CompileError, match=r"(?s)torchvision.nms.default.*no kernel of f16, f16.*convert all of them to float32.*at .*py:"
    ):
        compiled(lambda b, s: T.nms(b, s, 0.5), (b, s), ({}, {}))
    with pytest.raises(CompileError, match=r"torchvision.roi_align.default.*no kernel of bf16, bf16"):
        x, r = torch.rand(1, 2, 8, 8).bfloat16(), regions(3, 1, 8, 8, torch.bfloat16)
        compiled(lambda x, r: T.roi_align(x, r, 1.0, 2, 2, 2, False), (x, r), ({}, {}))


def test_inside_autocast_boxes_and_samples_are_of_single_precision() -> None:
    assert policy(T.nms.default) == policy(T.roi_align.default) == "float32"

    def pooled(x, r):
        with torch.autocast("cpu", torch.float16):
            return T.roi_align(x, r, 0.5, 2, 2, 0, False)

    x, r = torch.rand(2, 3, 9, 9).half(), regions(5, 2, 9, 9, F16)
    y = compiled(pooled, (x, r), ({0: A}, {0: A}))(x, r)
    agree(y, definition.roi_align(x.float(), r.float(), 0.5, 2, 2, 0, False).half(), 1e-3)


X, ROI = t("f32", 2, 6, "n", "m"), t("f32", "n", 5)
MALFORMED: dict[str, tuple[Any, list[Any], dict[str, Any], Any]] = {
    "suppress wants boxes": (vision.Suppress, [t("f16", 4, "n")], {"threshold": 0.5}, None),
    "wants a factor for each place": (
        vision.SampledColumns,
        [t("f32", 2, "n", "m", 6), t("f32", 2, 1, 9, 2, "n"), t("f64", 2, 1, 9, "n")],
        {},
        None,
    ),
    "groups that divide the channels": (
        vision.SampledColumns,
        [t("f32", 2, "n", "m", 6), t("f32", 2, 4, 9, 2, "n"), t("f32", 2, 4, 9, "n")],
        {},
        None,
    ),
    "counts are of i64": (vision.RoiAlign, [X, ROI, t("i32", "n", 3)], {"samples": 2, "sensitive": False}, t("f32", "n", 6, 2, 2)),
    "other channels than the images": (
        vision.RoiAlign,
        [X, ROI, t("i64", "n", 3)],
        {"samples": 2, "sensitive": True},
        t("f32", "n", 6, 2, 2),
    ),
    "rows and columns of a region are static": (
        vision.RoiPool,
        [X, t("i64", "n"), t("i64", "n", "m", 2), t("i64", "n", 2, 2)],
        {"how": "max", "sensitive": False},
        t("f32", "n", 6, "m", 2),
    ),
    "a pool is max or mean": (
        vision.RoiPool,
        [X, t("i64", "n"), t("i64", "n", 2, 2), t("i64", "n", 2, 2)],
        {"how": "argmax", "sensitive": False},
        t("f32", "n", 6, 2, 2),
    ),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_ops_are_rejected(message: str) -> None:
    cls, types, attrs, out = MALFORMED[message]
    results = None if out is None else [out]
    part = Part([(ty, plain) for ty in types], lambda *v: build(cls, v, attrs, results=results).results)
    with pytest.raises((TypeError_, ir.MLIRError), match=message):
        Module([part])
