"""Small models of images, signals, series and packed weights: more of `small_models.SMALL`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.small_models import D, Small, small

__all__: list[str] = []

rn = torch.randn
PLANE = {0: D, 2: D, 3: D}


class Windows(nn.Module):
    """Swin's: padded, rolled, attention inside of windows, a mask that is filled region by region."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        b, h, w, _ = x.shape
        y = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        rows, columns = y.shape[1:3]
        regions, parts = torch.zeros(1, rows, columns, 1), (slice(0, -4), slice(-4, -2), slice(-2, None))
        for n, (r, c) in enumerate((r, c) for r in parts for c in parts):
            regions[:, r, c] = n
        cut = lambda t: t.view(-1, rows // 4, 4, columns // 4, 4, t.shape[-1]).transpose(2, 3).reshape(-1, 16, t.shape[-1])
        number = cut(regions).squeeze(-1)
        mask = torch.where(number[:, None] != number[:, :, None], -100.0, 0.0)
        q, k, v = self.qkv(cut(torch.roll(y, (-2, -2), (1, 2)))).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * 10
        a = (a.view(b, -1, 2, 16, 16) + mask[None, :, None]).view(-1, 2, 16, 16).softmax(-1) @ v
        y = a.transpose(1, 2).reshape(b, rows // 4, columns // 4, 4, 4, 8).transpose(2, 3).reshape(b, rows, columns, 8)
        return torch.roll(y, (2, 2), (1, 2))[:, :h, :w].contiguous()


@small
def windows() -> Small:
    return Windows(), lambda b, h, w: (rn(b, h, w, 8),), ({0: D, 1: D, 2: D},), ((2, 10, 14), (1, 7, 5), (3, 17, 9))


class Flow(nn.Module):
    """Optical flow: correlations of all pairs at two scales, looked up around the flow; convex upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Conv2d(50, 36, 1)

    def forward(self, a, b, flow):
        n, c, h, w = a.shape
        pairs = (a.view(n, c, h * w).transpose(1, 2) @ b.view(n, c, h * w)).view(n * h * w, 1, h, w) / math.sqrt(c)
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        at = (torch.stack([x, y]).float()[None] + flow).permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
        d = torch.linspace(-2, 2, 5)
        around = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1)[None]
        seen = []
        for k in range(2):
            size = torch.tensor([pairs.shape[3] - 1, pairs.shape[2] - 1])
            grid = 2 * (at / 2**k + around) / size - 1
            seen.append(F.grid_sample(pairs, grid, align_corners=True).view(n, h, w, -1))
            pairs = F.avg_pool2d(pairs, 2, 2)
        out = torch.cat(seen, -1).permute(0, 3, 1, 2)
        weights = self.mask(out).view(n, 1, 9, 2, 2, h, w).softmax(2)
        up = (weights * F.unfold(2 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)).sum(2)
        return out, up.permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 2 * h, 2 * w)


@small
def optical_flow() -> Small:
    args = lambda n, h, w: (rn(n, 8, h, w), rn(n, 8, h, w), rn(n, 2, h, w))
    return Flow(), args, (PLANE,) * 3, ((2, 8, 6), (3, 9, 7), (4, 11, 5))


class Modulated(nn.Module):
    """StyleGAN's block: weights of each sample by a grouped convolution whose groups are the batch; blurred upsampling."""

    def __init__(self) -> None:
        super().__init__()
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.style, self.weight = nn.Linear(5, 4), nn.Parameter(rn(6, 4, 3, 3))
        self.register_buffer("blur", torch.outer(taps, taps)[None, None].expand(6, 1, 4, 4) / 64)

    def forward(self, x, w):
        b, c, h, k = x.shape
        kernel = self.weight * self.style(w)[:, None, :, None, None]
        kernel = kernel * torch.rsqrt(kernel.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        y = F.conv2d(x.view(1, b * c, h, k), kernel.view(b * 6, c, 3, 3), padding=1, groups=b)
        y = F.pad(y.view(b, 6, h, 1, k, 1), (0, 1, 0, 0, 0, 1)).reshape(b, 6, h * 2, k * 2)
        return F.leaky_relu(F.conv2d(F.pad(y, (2, 1, 2, 1)), self.blur, groups=6) * 4, 0.2)


@small
def modulated() -> Small:
    return Modulated(), lambda b, h, w: (rn(b, 4, h, w), rn(b, 5)), (PLANE, {0: D}), ((2, 6, 5), (1, 3, 4), (3, 8, 8))


class Deformed(nn.Module):
    """Attention that looks up features of two scales at learned offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.weights, self.value = nn.Linear(16, 48), nn.Linear(16, 24), nn.Linear(16, 16)

    def forward(self, q, large, small, at):
        b, n, _ = q.shape
        offsets = self.offsets(q).view(b, n, 4, 2, 3, 2).tanh() * 0.1
        weights = self.weights(q).view(b, n, 4, 6).softmax(-1).transpose(1, 2).reshape(b * 4, 1, n, 6)
        out = []
        for scale, f in enumerate((large, small)):
            v = self.value(f.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(b * 4, 4, *f.shape[2:])
            grid = (2 * (at[:, :, None, None] + offsets[:, :, :, scale]) - 1).transpose(1, 2).flatten(0, 1)
            out.append(F.grid_sample(v, grid, align_corners=False))
        return (torch.stack(out, -2).flatten(-2) * weights).sum(-1).view(b, 16, n).transpose(1, 2)


@small
def deformed() -> Small:
    def args(b: int, n: int, h: int, w: int) -> tuple[Any, ...]:
        return rn(b, n, 16), rn(b, 16, h, w), rn(b, 16, (h + 1) // 2, (w + 1) // 2), torch.rand(b, n, 2)

    two = {0: D, 1: D}
    return Deformed(), args, (two, PLANE, PLANE, two), ((2, 5, 8, 6), (1, 1, 3, 4), (3, 9, 12, 10))


class Denoiser(nn.Module):
    """A mask on a short-time spectrum, and back to the signal."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Linear(33, 33)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x):
        z = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        size = z.abs() * self.mask(z.abs().transpose(1, 2)).sigmoid().transpose(1, 2)
        return torch.istft(torch.polar(size, z.angle()), 64, 16, window=self.window)


@small
def denoiser() -> Small:
    return Denoiser(), lambda b, t: (rn(b, t),), ({0: D, 1: D},), ((2, 640), (5, 320), (3, 801))


class Series(nn.Module):
    """Autoformer's: trend by moving averages, correlation of a series with itself by Fourier transforms, the best two delays."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        b, t, c = x.shape
        padded = torch.cat([x[:, :1].repeat(1, 2, 1), x, x[:, -1:].repeat(1, 2, 1)], 1)
        trend = F.avg_pool1d(padded.transpose(1, 2), 5, 1).transpose(1, 2)
        q, k, v = (f(x - trend).transpose(1, 2) for f in (self.q, self.k, self.v))
        related = torch.fft.irfft(torch.fft.rfft(q) * torch.fft.rfft(k).conj(), n=t)
        weight, delay = related.mean(1).topk(2, dim=-1)
        at = torch.arange(t).expand(b, c, t)
        moved = [v.repeat(1, 1, 2).gather(-1, at + delay[:, i, None, None]) for i in range(2)]
        return sum(m * w[:, None, None] for m, w in zip(moved, weight.softmax(-1).unbind(1), strict=True)), trend, related


@small
def series() -> Small:
    return Series(), lambda b, t: (rn(b, t, 8),), ({0: D, 1: D},), ((2, 16), (1, 4), (3, 21))


class FourBits(nn.Module):
    """Weights of four bits, eight to an integer, with scales and zero points of groups."""

    def __init__(self) -> None:
        super().__init__()
        words = lambda *shape: torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)
        for name, x in (("weight", words(8, 16)), ("zeros", words(4, 2)), ("scales", torch.rand(4, 16) * 0.1)):
            self.register_buffer(name, x)

    def forward(self, x):
        shifts, group = torch.arange(0, 32, 4, dtype=torch.int32), torch.arange(64) // 16
        w = ((self.weight[:, None] >> shifts[None, :, None]) & 15).reshape(64, 16)
        zeros = ((self.zeros[:, :, None] >> shifts) & 15).reshape(4, 16) + 1
        y = x @ (self.scales[group] * (w - zeros[group]).float())
        return y, (y / 0.05).round().clamp(-128, 127).to(torch.int8)


@small
def four_bits() -> Small:
    return FourBits(), lambda b: (rn(b, 64),), ({0: D},), ((3,), (1,), (17,))


class Inverted(nn.Module):
    """Inverted residuals: expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, i: int, hidden: int, o: int, k: int, stride: int) -> None:
        super().__init__()
        self.expand, self.act = nn.Conv2d(i, hidden, 1), nn.Hardswish()
        self.mix = nn.Conv2d(hidden, hidden, k, stride, k // 2, groups=hidden)
        self.squeeze, self.excite = nn.Conv2d(hidden, 4, 1), nn.Conv2d(4, hidden, 1)
        self.project, self.same = nn.Conv2d(hidden, o, 1), i == o and stride == 1

    def forward(self, x):
        y = self.act(self.mix(self.act(self.expand(x))))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y) if self.same else self.project(y)


@small
def inverted_residuals() -> Small:
    net = nn.Sequential(Inverted(8, 40, 8, 3, 1), Inverted(8, 36, 12, 5, 2), Inverted(12, 72, 12, 3, 1))
    dims = {0: D, **{n: torch.export.Dim(f"side{n}", min=3, max=200) for n in (2, 3)}}
    return net, lambda b, h, w: (rn(b, 8, h, w),), (dims,), ((2, 10, 14), (1, 7, 5), (3, 17, 39))
