"""Times the convolution kernels on ResNet-18's and other layers against PyTorch, with 1 and 2 threads; with `--bytes` those of
bytes, in order and by Winograd's algorithm."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.quantised import ByteConv
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.codegen.families.conv.winograd_transforms import SIDES
from tests.codegen.conv_host import build_byte_conv, build_conv, byte_conv_params, byte_operands, conv_params
from tests.codegen.harness import Launch, aligned
from tests.targets import TILES

CEILING = 117.0  # GFLOP/s of fp32 FMA a core
# (in, out, kernel, stride, divisor of the image size, how often ResNet-18 has it)
LAYERS = [
    (3, 64, 7, 2, 1, 1),
    (64, 64, 3, 1, 4, 4),
    (64, 128, 3, 2, 4, 1),
    (64, 128, 1, 2, 4, 1),
    (128, 128, 3, 1, 8, 3),
    (128, 256, 3, 2, 8, 1),
    (128, 256, 1, 2, 8, 1),
    (256, 256, 3, 1, 16, 3),
    (256, 512, 3, 2, 16, 1),
    (256, 512, 1, 2, 16, 1),
    (512, 512, 3, 1, 32, 3),
]
IMAGES = [(1, 224, 224), (4, 96, 128)]


def best(run: Callable[[], object], seconds: float = 0.25) -> float:
    """Minimum time of a call in seconds."""
    run()
    times, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times) < 3:
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    return min(times)


def best_parallel(launches: list[Launch], threads: int, seconds: float = 0.25) -> float:
    """Minimum over repetitions of the slowest of `threads` threads that start together, each on its static share."""
    barrier = threading.Barrier(threads)
    spent: list[list[float]] = [[] for _ in range(threads)]
    stop = time.perf_counter() + seconds

    def work(w: int) -> None:
        scratch = [aligned(launch.scratch, 0) for launch in launches]
        while True:
            if barrier.wait() == 0 and time.perf_counter() > stop:
                barrier.abort()
            t = time.perf_counter()
            for launch, memory in zip(launches, scratch, strict=True):
                lo, hi = launch.count * w // threads, launch.count * (w + 1) // threads
                launch.kept[w] = 0
                launch.kernel(launch.args.ctypes.data, lo, hi, w, memory.ctypes.data)
            spent[w].append(time.perf_counter() - t)

    def guarded(w: int) -> None:
        try:
            work(w)
        except threading.BrokenBarrierError:
            return

    pool = [threading.Thread(target=guarded, args=(w,)) for w in range(threads)]
    for t in pool:
        t.start()
    for t in pool:
        t.join()
    return min(max(pair) for pair in zip(*spent, strict=False))


@dataclass(frozen=True)
class Layer:
    """A convolution on one input; `times` is how often the network has it."""

    conv: Conv
    shape: tuple[int, ...]
    times: int = 1

    @property
    def label(self) -> str:
        c = self.conv
        groups = f" g{c.groups}" if c.groups > 1 else ""
        return f"{'x'.join(map(str, self.shape))} -> {c.out_channels} {'x'.join(map(str, c.kernel))}/{c.stride[0]}{groups}"


def square(ci: int, co: int, k: int, stride: int, groups: int = 1) -> Conv:
    """A 2-D convolution with padding k // 2."""
    return Conv(ci, co, (k, k), (stride, stride), ((k // 2, k // 2),) * 2, (1, 1), groups, spec=TILES)


def resnet(image: tuple[int, int, int]) -> list[Layer]:
    """ResNet-18's layers on images [batch, height, width]."""
    b, h, w = image
    return [Layer(square(ci, co, k, s), (b, ci, -(-h // div), -(-w // div)), n) for ci, co, k, s, div, n in LAYERS]


OTHERS = [
    Layer(square(64, 256, 1, 1), (1, 64, 56, 56)),
    Layer(square(256, 64, 1, 1), (1, 256, 56, 56)),
    Layer(square(512, 2048, 1, 1), (1, 512, 7, 7)),
    Layer(square(24, 144, 1, 1), (1, 24, 56, 56)),
    Layer(square(960, 160, 1, 1), (1, 960, 7, 7)),
    Layer(square(320, 80, 1, 1), (8, 320, 1, 1)),
    Layer(square(144, 144, 3, 1, 144), (1, 144, 56, 56)),
    Layer(square(144, 144, 3, 2, 144), (1, 144, 56, 56)),
    Layer(square(960, 960, 3, 1, 960), (1, 960, 7, 7)),
    Layer(square(96, 96, 7, 1, 96), (1, 96, 56, 56)),
    Layer(square(128, 128, 3, 1, 32), (1, 128, 56, 56)),
    Layer(Conv(3, 768, (16, 16), (16, 16), ((0, 0),) * 2, (1, 1), spec=TILES), (1, 3, 224, 224)),
    Layer(Conv(80, 384, (3,), (1,), ((1, 1),), (1,), spec=TILES), (1, 80, 3000)),
    Layer(Conv(384, 384, (3,), (2,), ((1, 1),), (1,), spec=TILES), (1, 384, 3000)),
]


def with_algorithm(layer: Layer, algorithm: str) -> Layer:
    """The layer computed so: in order, by Winograd's algorithm of so many points, or by what the cost model chooses."""
    sides = {"direct": (), "chosen": SIDES}.get(algorithm) if not algorithm.isdigit() else (int(algorithm),)
    return replace(layer, conv=replace(layer.conv, winograd=sides))


def measure(layer: Layer, algorithm: str = "chosen") -> tuple[float, list[float], list[float]]:
    """Flops, our seconds with 1 and 2 threads, PyTorch's."""
    rng, conv = np.random.default_rng(0), with_algorithm(layer, algorithm).conv
    x = aligned(4 * int(np.prod(layer.shape)), 0).view(np.float32).reshape(layer.shape)
    x[...] = rng.standard_normal(layer.shape, np.float32)
    weight = rng.standard_normal((conv.out_channels, conv.in_channels // conv.groups, *conv.kernel), np.float32)
    params, out = conv_params(conv, x, weight)
    if algorithm.isdigit():
        with mock.patch.object(Winograd, "cost", lambda self, host, out, cut: host.fn.i64(0)):
            program = build_conv(conv)
    else:
        program = build_conv(conv)
    launches = program.record(num_threads=2, **params)
    ours = [best_parallel(launches, n) for n in (1, 2)]
    tx, tw = torch.from_numpy(x), torch.from_numpy(weight)
    zeros, pads = [0] * len(conv.kernel), [p for p, _ in conv.padding]

    def run() -> torch.Tensor:
        return torch.convolution(tx, tw, None, conv.stride, pads, conv.dilation, False, zeros, conv.groups)

    theirs = []
    for n in (1, 2):
        torch.set_num_threads(n)
        with torch.no_grad():
            theirs.append(best(run))
    return 2.0 * out.size * weight[0].size, ours, theirs


def compare_bytes(layer: Layer) -> None:
    """Prints the time of the same sums of bytes in order and by Winograd's algorithm, and one over the other."""
    c = layer.conv
    spec = replace(TILES, unsigned=True, target=replace(TILES.target, tiles=None))
    conv = ByteConv(c.in_channels, c.out_channels, c.kernel, c.stride, c.padding, c.dilation, 1, 0, spec)
    x, weight = byte_operands(conv, (layer.shape[0], *layer.shape[2:]), 0)
    params, out = byte_conv_params(conv, x, weight // 4)
    with mock.patch.object(Winograd, "cost", lambda self, host, out, cut: host.fn.i64(0)):
        program = build_byte_conv(conv)
    cells = []
    for n in (1, 2):
        seconds = []
        for exact in (0, 1):
            params["w"].view(np.int32)[-1] = exact  # 0: as if sums might not fit
            seconds.append(best_parallel(program.record(num_threads=n, **params), n))
        cells.append(f"{n}t {seconds[0] * 1e3:7.3f} and {seconds[1] * 1e3:7.3f} ms: {seconds[0] / seconds[1]:5.2f}")
    print(f"{layer.label:34} {'  '.join(cells)}", flush=True)


def main() -> None:
    """Prints one line a layer, then the sums over the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of the labels of the layers wanted; by default all")
    algorithms = ("chosen", "direct", *map(str, SIDES))
    parser.add_argument("--algorithm", choices=algorithms, default="chosen", help="a number: Winograd's of so many points")
    parser.add_argument("--bytes", action="store_true", help="3 x 3 layers of bytes: in order, and by Winograd's algorithm")
    a = parser.parse_args()
    if a.bytes:
        for image in IMAGES:
            for layer in resnet(image):
                if layer.conv.kernel == (3, 3) and layer.conv.stride == (1, 1):
                    compare_bytes(layer)
        return
    sets: list[tuple[str, list[Layer]]] = [(f"ResNet-18 on {i}", resnet(i)) for i in IMAGES] + [("others", OTHERS)]
    for title, layers in sets:
        total = np.zeros(5)
        for layer in layers:
            if a.only and not any(o in layer.label for o in a.only):
                continue
            flops, ours, theirs = measure(layer, a.algorithm)
            total += layer.times * np.array([flops, *ours, *theirs])
            cells = [
                f"{t * 1e3:8.3f} ms {flops / t / 1e9:5.0f} GFLOP/s {flops / t / 1e9 / CEILING / n * 100:4.0f}%"
                for n, t in zip((1, 2, 1, 2), (*ours, *theirs), strict=True)
            ]
            print(f"{layer.label:34} 1t {cells[0]}  2t {cells[1]} | torch 1t {cells[2]}  2t {cells[3]}", flush=True)
        ms = total[1:] * 1e3
        floor = total[0] / CEILING / 1e6
        print(
            f"{title}: {total[0] / 1e9:.2f} GFLOP; ours {ms[0]:.2f} / {ms[1]:.2f} ms, "
            f"torch {ms[2]:.2f} / {ms[3]:.2f} ms; "
            f"ceiling {floor:.2f} / {floor / 2:.2f} ms"
        )


if __name__ == "__main__":
    main()
