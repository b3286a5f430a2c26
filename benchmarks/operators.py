"""`python -m benchmarks.operators`: single operators and idioms of docs/performance.md beside eager; minima of calls in turns.

Both run with `--threads` threads (1 by default). `--only TEXT` keeps the rows whose names have it.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

_SECONDS = 0.7  # of each row
_LEAST = 5  # sizes from here on are dynamic


def _pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def _numbers(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)
    return torch.view_as_real(z).flatten(-2)


def _planes(x: Tensor) -> Tensor:
    return (x.permute(2, 0, 1).float() / 255 - 0.45) / 0.22


def _resized(**how: Any) -> Callable[..., Tensor]:
    return lambda x: F.interpolate(x, **how)


def _istft(x: Tensor, window: Tensor) -> Tensor:
    return torch.istft(torch.complex(x, x / 2), 400, 160, window=window)


def _head(x: Tensor) -> Tensor:
    """Boxes and classes of a detector, of three anchors for each place."""
    y = x.unflatten(1, (3, -1)).permute(0, 1, 3, 4, 2)
    return torch.cat([y[..., :2].sigmoid() * 2, y[..., 2:4].exp(), y[..., 4:].sigmoid()], -1).flatten(1, 3)


def _synthesis(channels: int, kernel: int, stride: int) -> Callable[[Tensor], Tensor]:
    weight = torch.randn(channels, 1, kernel)
    return lambda x: F.conv_transpose1d(x, weight, stride=stride)


def _relative(x: Tensor) -> Tensor:
    """Scores of distances brought to keys, as Transformer-XL does."""
    b, t, s = x.shape
    return F.pad(x, (1, 0)).view(b, s + 1, t)[:, 1:].reshape(b, t, s)


def _frames(channels: int, window: int, stride: int) -> Callable[[Tensor], Tensor]:
    """A convolution of samples, as models of speech begin with."""
    weight = torch.rand(channels, 1, window)
    return lambda x: F.conv1d(x, weight, stride=stride)


def _channels_last(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of an image, of one whose channels lie last."""
    return lambda x: f(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def _tokens(f: Callable[..., Tensor], side: int = 28) -> Callable[..., Tensor]:
    """A function of an image that tokens make up, and of others."""
    return lambda x, *more: f(x.transpose(1, 2).reshape(x.shape[0], x.shape[2], side, side), *more)


def rows() -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """A function of tensors, and arguments, by name."""
    r = torch.rand
    image, table = r(1, 3, 224, 220), {"size": (512, 500), "antialias": True}
    mask, pixels = r(300, 500), (r(300, 400, 3) * 255).byte()
    positions = (r(1, 32, 100, 128), r(100, 64), r(100, 64))
    return {
        "enlarged, nearest": (_resized(scale_factor=2), (r(1, 64, 64, 60),)),
        "enlarged, bilinear": (_resized(scale_factor=2, mode="bilinear"), (r(1, 16, 64, 60),)),
        "enlarged, bicubic": (_resized(scale_factor=2, mode="bicubic"), (r(1, 16, 64, 60),)),
        "enlarged, antialiased, bilinear": (_resized(mode="bilinear", **table), (image,)),
        "enlarged, antialiased, bicubic": (_resized(mode="bicubic", **table), (image,)),
        "made smaller, antialiased": (_resized(size=(224, 225), mode="bilinear", antialias=True), (r(1, 3, 512, 500),)),
        "bytes made smaller": (_resized(size=(224, 224), mode="bilinear"), ((r(1, 3, 300, 400) * 255).byte(),)),
        "grid_sample, 32 channels": (lambda x, g: F.grid_sample(x, g, align_corners=False), (r(8, 32, 50, 50), r(8, 300, 4, 2))),
        "grid_sample, 3 channels": (lambda x, g: F.grid_sample(x, g, align_corners=False), (r(1, 3, 224, 224), r(1, 224, 224, 2))),
        "bytes made much smaller, antialiased": (
            _resized(size=(224, 224), mode="bilinear", antialias=True),
            ((r(1, 3, 1080, 1920) * 255).byte(),),
        ),
        "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), (r(300, 500), torch.randint(0, 500, (300, 200)), r(300, 200))),
        "embedding_bag": (lambda i, w: F.embedding_bag(i, w, mode="sum"), (torch.randint(0, 10000, (128, 16)), r(10000, 64))),
        "two joined": (lambda a, b: torch.cat([a, b], -1), (r(300, 500), r(300, 400))),
        "rotated by 90 degrees": (lambda x: torch.rot90(x, 1, (-2, -1)), (r(3, 512, 500),)),
        "padded, reflected": (lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), (r(4, 3, 256, 250),)),
        "padded, circular": (lambda x: F.pad(x, (3, 3, 3, 3), mode="circular"), (r(4, 3, 256, 250),)),
        "stack of two": (lambda a, b: torch.stack([a, b], -1), (r(64, 1024), r(64, 1024))),
        "evens by odds": (lambda x: x[..., ::2] * x[..., 1::2], (r(64, 2048),)),
        "rotary pairs": (_pairs, positions),
        "rotary complex numbers": (_numbers, positions),
        "pixels to planes, normalised": (_planes, (pixels,)),
        "mean of channels": (lambda x: x.mean(-1), (r(300, 400, 3),)),
        "to grey": (lambda x, w: x @ w, (r(300, 400, 3), r(3))),
        "softmax of three": (lambda x: x.softmax(-1), (r(30000, 3),)),
        "unit vectors": (lambda x: x / x.norm(dim=-1, keepdim=True), (r(30000, 3),)),
        "cross products": (torch.linalg.cross, (r(30000, 3), r(30000, 3))),
        "repeat": (lambda x: x.repeat(3, 2), (r(300, 400),)),
        "matrix by vector, 100 x 500": (torch.mv, (r(100, 500), r(500))),
        "matrix by vector, 1,000 x 500": (torch.mv, (r(1000, 500), r(500))),
        "matrix by vector, 3,000 x 3,000": (torch.mv, (r(3000, 3000), r(3000))),
        "rfft, 1 x 1,024": (torch.fft.rfft, (r(1, 1024),)),
        "rfft, 1 x 16,000": (torch.fft.rfft, (r(1, 16000),)),
        "rfft, 64 x 4,096": (torch.fft.rfft, (r(64, 4096),)),
        "istft": (_istft, (r(1, 201, 1000), torch.hann_window(400))),
        "fold": (lambda x: F.fold(x, (64, 60), 3, padding=1), (r(1, 144, 3840),)),
        "mean of channels, 7 x 7": (lambda x: x.mean(1), (r(8, 512, 7, 7),)),
        "mean of places, 7 x 7": (lambda x: x.mean((2, 3)), (r(8, 512, 7, 7),)),
        "average of windows, 7 x 7": (lambda x: F.avg_pool2d(x, 7), (r(8, 256, 7, 7),)),
        "group norm, 14 x 14": (lambda x: F.group_norm(x, 8), (r(4, 256, 14, 14),)),
        "instance norm, 14 x 14": (F.instance_norm, (r(4, 256, 14, 14),)),
        "detector's head": (_head, (r(2, 255, 40, 44),)),
        "samples to 512 channels, 10 / 5": (_frames(512, 10, 5), (r(1, 1, 16000),)),
        "frames of 256, 128 apart": (_frames(258, 256, 128), (r(1, 1, 16000),)),
        "channels to samples, 256 / 128": (_synthesis(258, 256, 128), (r(1, 258, 300),)),
        "enlarged image of tokens": (_tokens(_resized(size=(64, 64), mode="bilinear"), 8), (r(2, 64, 256),)),
        "image of tokens and another": (_tokens(torch.add), (r(2, 784, 192), r(2, 192, 28, 28))),
        "image of tokens beside another": (_tokens(lambda x, y: torch.cat([x, y], 1), 64), (r(2, 4096, 256), r(2, 256, 64, 64))),
        "mean of an image of tokens": (_tokens(lambda x: x.mean((2, 3))), (r(2, 784, 192),)),
        "padded image of tokens": (_tokens(lambda x: F.pad(x, (1, 1, 1, 1))), (r(2, 784, 192),)),
        "maximum of 2 x 2 of an image of tokens": (_tokens(lambda x: F.max_pool2d(x, 2)), (r(2, 784, 192),)),
        "average of 3 x 3 of an image of tokens": (_tokens(lambda x: F.avg_pool2d(x, 3, 1, 1)), (r(2, 784, 192),)),
        "average of 7 x 7 of an image of tokens": (_tokens(lambda x: F.avg_pool2d(x, 7)), (r(2, 784, 192),)),
        "maximum of 3 x 3, channels last": (_channels_last(lambda x: F.max_pool2d(x, 3, 2, 1)), (r(4, 112, 112, 64),)),
        "softmax of transposed tokens and others": (
            lambda x, y: (x.transpose(1, 2) + y).softmax(-1),
            (r(2, 196, 192), r(2, 192, 196)),
        ),
        "sum of transposed tokens and others": (lambda x, y: (x.transpose(1, 2) + y).sum(-1), (r(16, 500, 512), r(16, 512, 500))),
        "transposed, 16 MB": (lambda x: x.t().contiguous(), (r(2000, 2000),)),
        "gated tokens, transposed": (lambda x: F.glu(x.transpose(1, 2), 1), (r(2, 784, 384),)),
        "shift of relative scores": (_relative, (r(4, 400, 400),)),
        "bincount": (lambda x: torch.bincount(x, minlength=1000), (torch.randint(0, 1000, (1_000_000,)),)),
        "quotients of integers": (torch.floor_divide, (torch.randint(1, 100_000, (100_000,)), torch.randint(1, 300, (100_000,)))),
        "remainders of integers by a size": (lambda x, y: x % y.shape[0], (torch.randint(1, 100_000, (100_000,)), r(37))),
        "remainders of i32": (
            torch.remainder,
            (torch.randint(1, 100_000, (100_000,)).int(), torch.randint(1, 300, (100_000,)).int()),
        ),
        **{f"{f.__name__} of f64": (f, (r(100_000).double(),)) for f in (torch.sin, torch.tanh, torch.log1p, torch.erf)},
        "pow of f64": (torch.pow, (r(100_000).double(), r(100_000).double())),
        "fmod of f64": (torch.fmod, (r(100_000).double(), r(100_000).double() + 0.1)),
        "power of 2.2": (lambda x: x**2.2, (r(1000, 1000),)),
        "nonzero": (lambda x: torch.nonzero(x > 0.5), (mask,)),
        "x[mask]": (lambda x: x[x > 0.5], (mask,)),
        "windows of audio": (lambda x, w: x.unfold(-1, 400, 160) * w, (r(8, 16000), r(400))),
        "adaptive average, 500 to 50": (lambda x: F.adaptive_avg_pool1d(x, 50), (r(8, 64, 500),)),
        "made smaller, area": (_resized(size=(112, 110), mode="area"), (image,)),
        "topk, 5 of 1,000": (lambda x: x.topk(5), (r(64, 1000),)),
        "det": (torch.linalg.det, (r(100, 8, 8),)),
        "solve": (torch.linalg.solve, (r(10, 64, 64) + 9 * torch.eye(64), r(10, 64, 4))),
        "svdvals": (torch.linalg.svdvals, (r(10, 32, 32),)),
    }


class _Call(torch.nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Tensor) -> Any:
        return self.f(*args)


def _exported(f: Callable[..., Any], args: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """With all larger sizes dynamic but channels of images, if torch.export can write that."""
    dims = tuple({d: Dim.AUTO for d, n in enumerate(x.shape) if n >= _LEAST and (d, x.dim()) != (1, 4)} for x in args)
    try:
        return torch.export.export(_Call(f), args, dynamic_shapes=(dims,))
    except Exception:  # whatever torch.export has against it
        return torch.export.export(_Call(f), args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["DHLO_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    import dhlo  # reads the environment

    print(f"{'us':38}{'eager':>10}{'dhlo':>10}{'times':>8}")
    for name, (f, args) in rows().items():
        if options.only not in name:
            continue
        model = dhlo.compile(_exported(f, args), cache="")
        torch.testing.assert_close(model(*args), f(*args), rtol=1e-3, atol=1e-3)
        best, start = [float("inf")] * 2, time.perf_counter()
        while time.perf_counter() - start < _SECONDS:
            for i, call in enumerate((f, model)):
                t = time.perf_counter()
                call(*args)
                best[i] = min(best[i], time.perf_counter() - t)
        print(f"{name:38}{best[0] * 1e6:10.1f}{best[1] * 1e6:10.1f}{best[0] / best[1]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
