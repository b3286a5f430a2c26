"""Convolution networks in plain PyTorch with random weights, as their papers and torchvision define them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "DecoderVAE",
    "Detector",
    "UNet",
    "convnext_tiny",
    "efficientnet_b0",
    "generator",
    "mobilenet_v2",
    "mobilenet_v3",
    "regnet_y",
    "resnet3d",
    "resnet50",
    "whisper_front",
]

Activation = Callable[[], nn.Module]


def conv(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1, act: Activation | None = nn.ReLU) -> nn.Sequential:
    """A convolution of odd window `k` with batch norm and an activation."""
    layers: list[nn.Module] = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act()] if act else []))


def _head(channels: int, classes: int = 1000) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


class _Residual(nn.Module):
    """x + branch(x), or shortcut(x) + branch(x), and an activation."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut, self.act = branch, shortcut or nn.Identity(), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.branch(x) + self.shortcut(x))
        return y


class _Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, hidden: int, act: Activation = nn.ReLU, gate: Activation = nn.Sigmoid) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.gate(self.fc2(self.act(self.fc1(x.mean((2, 3), keepdim=True)))))
        return y


def resnet50() -> nn.Module:
    """ResNet-50."""

    def block(i: int, width: int, stride: int) -> nn.Module:
        o = 4 * width
        branch = nn.Sequential(conv(i, width, 1), conv(width, width, 3, stride), conv(width, o, 1, act=None))
        return _Residual(branch, conv(i, o, 1, stride, act=None) if i != o or stride > 1 else None, nn.ReLU())

    blocks, i = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for n in range(count):
            blocks.append(block(i, width, stride if n == 0 else 1))
            i = 4 * width
    return nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *_head(i))


def _inverted(
    i: int, hidden: int, o: int, k: int, stride: int, act: Activation, squeeze: Callable[[int], nn.Module] | None = None
) -> nn.Module:
    """Expansion, depthwise convolution, maybe squeeze, projection."""
    layers = [] if hidden == i else [conv(i, hidden, 1, act=act)]
    layers.append(conv(hidden, hidden, k, stride, hidden, act))
    layers += [] if squeeze is None else [squeeze(hidden)]
    body = nn.Sequential(*layers, conv(hidden, o, 1, act=None))
    return _Residual(body) if stride == 1 and i == o else body


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 1.0."""
    layers, i = [conv(3, 32, 3, 2, act=nn.ReLU6)], 32
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    blocks = []
    for t, o, count, stride in plan:
        for n in range(count):
            blocks.append(_inverted(i, t * i, o, 3, stride if n == 0 else 1, nn.ReLU6))
            i = o
    return nn.Sequential(*layers, *blocks, conv(i, 1280, 1, act=nn.ReLU6), *_head(1280))


def mobilenet_v3() -> nn.Module:
    """MobileNetV3 large."""
    plan = (
        (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
        (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
        (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
    )  # fmt: skip
    blocks, i = [], 16
    for k, hidden, o, squeezed, hard, stride in plan:
        squeeze = (lambda c: _Squeeze(c, _round(c // 4), gate=nn.Hardsigmoid)) if squeezed else None
        blocks.append(_inverted(i, hidden, o, k, stride, nn.Hardswish if hard else nn.ReLU, squeeze))
        i = o
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)]
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.Hardswish), *blocks, conv(i, 960, 1, act=nn.Hardswish), *head)


def _round(channels: int) -> int:
    """The nearest multiple of 8."""
    return max(8, (channels + 4) // 8 * 8)


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0."""
    plan = (
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    )
    blocks, i = [], 32
    for t, k, o, count, stride in plan:
        for n in range(count):
            hidden = max(1, i // 4)
            blocks.append(_inverted(i, t * i, o, k, stride if n == 0 else 1, nn.SiLU, lambda c, h=hidden: _Squeeze(c, h, nn.SiLU)))
            i = o
    return nn.Sequential(conv(3, 32, 3, 2, act=nn.SiLU), *blocks, conv(i, 1280, 1, act=nn.SiLU), *_head(1280))


class _LayerNorm2d(nn.LayerNorm):
    """Over the channels of [batch, channels, height, width]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNext(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    """ConvNeXt-T."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), _LayerNorm2d(96)]
    for stage, count in enumerate((3, 3, 9, 3)):
        c = 96 << stage
        layers += [] if stage == 0 else [_LayerNorm2d(c // 2), nn.Conv2d(c // 2, c, 2, 2)]
        layers += [_ConvNext(c) for _ in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000))


def regnet_y() -> nn.Module:
    """RegNetY-400MF: groups of 8 channels."""

    def block(i: int, o: int, stride: int) -> nn.Module:
        branch = nn.Sequential(conv(i, o, 1), conv(o, o, 3, stride, o // 8), _Squeeze(o, max(8, i // 4)), conv(o, o, 1, act=None))
        return _Residual(branch, conv(i, o, 1, stride, act=None) if i != o or stride > 1 else None, nn.ReLU())

    blocks, i = [], 32
    for o, count in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for n in range(count):
            blocks.append(block(i, o, 2 if n == 0 else 1))
            i = o
    return nn.Sequential(conv(3, 32, 3, 2), *blocks, *_head(i))


class UNet(nn.Module):
    """A U-Net of four levels; images of multiples of 8."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w = [width << k for k in range(4)]
        self.first = self._twice(3, w[0])
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), self._twice(a, b)) for a, b in zip(w, w[1:], strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(w, w[1:], strict=False))
        self.join = nn.ModuleList(self._twice(2 * a, a) for a in w[:-1])
        self.last = nn.Conv2d(width, 2, 1)

    def _twice(self, i: int, o: int) -> nn.Module:
        return nn.Sequential(conv(i, o), conv(o, o))

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(kept[-1]))
        y = kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            y = join(torch.cat((kept.pop(), up(y)), 1))
        out: Tensor = self.last(y)
        return out


class _Normed(nn.Module):
    """Group norm, SiLU, convolution, twice, and the shortcut."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, 1, 1), nn.GroupNorm(8, o), nn.SiLU(), nn.Conv2d(o, o, 3, 1, 1)
        )
        self.shortcut = nn.Identity() if i == o else nn.Conv2d(i, o, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shortcut(x) + self.body(x)
        return y


class _Attention2d(nn.Module):
    """Attention of all positions, one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.flatten(2).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, 1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).unflatten(2, x.shape[2:])
        z: Tensor = x + self.out(y)
        return z


class DecoderVAE(nn.Module):
    """The decoder of a variational autoencoder, of Stable Diffusion's make at a quarter of its width: latents to images of eight
    times the size."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        c = 4 * width
        layers: list[nn.Module] = [nn.Conv2d(4, c, 3, 1, 1), _Normed(c, c), _Attention2d(c), _Normed(c, c)]
        for level, o in enumerate((c, c, 2 * width, width)):
            layers += [_Normed(c, o), _Normed(o, o)]
            layers += [] if level == 3 else [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(o, o, 3, 1, 1)]
            c = o
        self.layers = nn.Sequential(*layers, nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, 1, 1))

    def forward(self, z: Tensor) -> Tensor:
        y: Tensor = self.layers(z)
        return y


class _Split(nn.Module):
    """YOLO's C2f: a part of the channels goes through residual blocks, and all of their results are joined."""

    def __init__(self, i: int, o: int, count: int, shortcut: bool) -> None:
        super().__init__()
        h = o // 2
        self.first, self.last = conv(i, o, 1, act=nn.SiLU), conv((2 + count) * h, o, 1, act=nn.SiLU)
        blocks = [nn.Sequential(conv(h, h, act=nn.SiLU), conv(h, h, act=nn.SiLU)) for _ in range(count)]
        self.blocks = nn.ModuleList(_Residual(b) if shortcut else b for b in blocks)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        y: Tensor = self.last(torch.cat(parts, 1))
        return y


class _PoolPyramid(nn.Module):
    """YOLO's SPPF."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = conv(channels, channels // 2, 1, act=nn.SiLU), conv(2 * channels, channels, 1, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        y: Tensor = self.last(torch.cat(parts, 1))
        return y


class Detector(nn.Module):
    """YOLOv8-n: backbone, both ways through the pyramid, heads for boxes and classes; images of multiples of 32."""

    def __init__(self, width: int = 16, classes: int = 80) -> None:
        super().__init__()
        w = [width << k for k in range(5)]

        def down(i: int, o: int) -> nn.Module:
            return conv(i, o, 3, 2, act=nn.SiLU)

        self.p3 = nn.Sequential(
            down(3, w[0]), down(w[0], w[1]), _Split(w[1], w[1], 1, True), down(w[1], w[2]), _Split(w[2], w[2], 2, True)
        )
        self.p4 = nn.Sequential(down(w[2], w[3]), _Split(w[3], w[3], 2, True))
        self.p5 = nn.Sequential(down(w[3], w[4]), _Split(w[4], w[4], 1, True), _PoolPyramid(w[4]))
        self.n4, self.n3 = _Split(w[4] + w[3], w[3], 1, False), _Split(w[3] + w[2], w[2], 1, False)
        self.d4, self.m4 = down(w[2], w[2]), _Split(w[2] + w[3], w[3], 1, False)
        self.d5, self.m5 = down(w[3], w[3]), _Split(w[3] + w[4], w[4], 1, False)

        def head(i: int, hidden: int, o: int) -> nn.Module:
            return nn.Sequential(conv(i, hidden, act=nn.SiLU), conv(hidden, hidden, act=nn.SiLU), nn.Conv2d(hidden, o, 1))

        self.boxes = nn.ModuleList(head(c, 64, 64) for c in w[2:])
        self.classes = nn.ModuleList(head(c, max(w[2], classes), classes) for c in w[2:])

    def forward(self, x: Tensor) -> Tensor:
        c3 = self.p3(x)
        c4 = self.p4(c3)
        c5 = self.p5(c4)
        n4 = self.n4(torch.cat((F.interpolate(c5, scale_factor=2.0), c4), 1))
        n3 = self.n3(torch.cat((F.interpolate(n4, scale_factor=2.0), c3), 1))
        m4 = self.m4(torch.cat((self.d4(n3), n4), 1))
        m5 = self.m5(torch.cat((self.d5(m4), c5), 1))
        maps = [torch.cat((b(m), c(m)), 1).flatten(2) for b, c, m in zip(self.boxes, self.classes, (n3, m4, m5), strict=True)]
        return torch.cat(maps, 2)


def whisper_front(width: int = 384) -> nn.Module:
    """Whisper tiny's front end: spectrograms [batch, 80, frames] to states at half the rate."""
    return nn.Sequential(nn.Conv1d(80, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU())


def _conv3d(i: int, o: int, stride: int = 1, act: bool = True) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv3d(i, o, 3, stride, 1, bias=False), nn.BatchNorm3d(o)]
    return [*layers, nn.ReLU()] if act else layers


def resnet3d(width: int = 32) -> nn.Module:
    """R3D-18 at half its width, one block a stage: clips [batch, 3, frames, height, width]."""
    layers: list[nn.Module] = [nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(width), nn.ReLU()]
    i = width
    for stage in range(4):
        o, stride = width << stage, 1 if stage == 0 else 2
        branch = nn.Sequential(*_conv3d(i, o, stride), *_conv3d(o, o, act=False))
        shortcut = None if stride == 1 else nn.Sequential(nn.Conv3d(i, o, 1, stride, bias=False), nn.BatchNorm3d(o))
        layers.append(_Residual(branch, shortcut, nn.ReLU()))
        i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(i, 400))


def generator(width: int = 64, latent: int = 100) -> nn.Module:
    """DCGAN's generator: latents [batch, latent, height, width] to images of 16 times their size and more."""
    layers: list[nn.Module] = []
    for i, o, stride, pad in (
        (latent, 8 * width, 1, 0),
        (8 * width, 4 * width, 2, 1),
        (4 * width, 2 * width, 2, 1),
        (2 * width, width, 2, 1),
    ):
        layers += [nn.ConvTranspose2d(i, o, 4, stride, pad, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())
