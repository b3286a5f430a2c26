"""python -m benchmarks.convnets: convolution networks of many kinds, batch and image size changing at every call, beside peers."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn, randn
from torch.export import Dim

from benchmarks import convnet_models as nets
from benchmarks import convnets_narrow, measure, models, report
from benchmarks.workloads import Shape, Workload, select
from dhlo.bench.subject import Subject

__all__ = ["command", "main", "networks", "subject"]

_PEERS = ("eager", "ort", "openvino", "dhlo")
_IMAGES: Sequence[Shape] = ((1, 224, 224), (1, 256, 192), (4, 224, 224), (4, 96, 128))
_TINY: Sequence[Shape] = ((1, 64, 64), (2, 96, 64))
_BATCH = Dim("batch", min=1, max=64)


def _images(multiple: int = 1, least: int = 64, most: int = 1024) -> Any:
    """Dynamic dims of images whose sides are multiples."""
    sides = [Dim(n, min=-(-least // multiple), max=most // multiple) for n in ("height", "width")]
    return (
        {0: _BATCH, 2: multiple * sides[0] if multiple > 1 else sides[0], 3: multiple * sides[1] if multiple > 1 else sides[1]},
    )


def networks(tiny: bool = False) -> dict[str, Workload]:
    """The networks by name; `tiny` runs them on small inputs."""
    return {w.name: w for w in (*_classifiers(tiny), *_others(tiny))}


def _classifiers(tiny: bool) -> Iterator[Workload]:
    makers: dict[str, Callable[[], nn.Module]] = {
        "resnet18": models.resnet18,
        "resnet50": nets.resnet50,
        "mobilenet_v2": nets.mobilenet_v2,
        "mobilenet_v3": nets.mobilenet_v3,
        "efficientnet_b0": nets.efficientnet_b0,
        "convnext_tiny": nets.convnext_tiny,
        "regnet_y_400mf": nets.regnet_y,
    }
    for name, make in makers.items():
        yield _network(name, make, 3, _TINY if tiny else _IMAGES, _images())


def _network(name: str, make: Callable[[], nn.Module], channels: int, shapes: Sequence[Shape], dims: Any) -> Workload:
    def inputs(b: int, *size: int) -> tuple[torch.Tensor]:
        return (randn(b, channels, *size),)

    def scaled() -> nn.Module:
        """Weights that keep the scale of activations, so that errors of deep layers show in the results."""
        net = make()
        for m in net.modules():
            if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
        return net

    example = tuple(2 * s if i == 0 else s for i, s in enumerate(shapes[-1]))
    return Workload(name, "convolution networks", scaled, inputs, dims, shapes, example)


def _others(tiny: bool) -> Iterator[Workload]:
    yield _network("unet", nets.UNet, 3, _TINY if tiny else ((1, 128, 128), (1, 256, 192), (4, 96, 128)), _images(8))
    latents = ((1, 4, 5), (2, 6, 4)) if tiny else ((1, 16, 16), (1, 32, 24), (4, 12, 16))
    yield _network("vae_decoder", nets.DecoderVAE, 4, latents, _images(least=4, most=128))
    yield _network("yolo", nets.Detector, 3, _TINY if tiny else ((1, 256, 256), (1, 160, 256), (4, 128, 128)), _images(32))
    frames = ((1, 40), (2, 50)) if tiny else ((1, 3000), (1, 500), (4, 1500))
    yield _network("whisper_front", nets.whisper_front, 80, frames, ({0: _BATCH, 2: Dim("frames", min=16, max=6000)},))
    clips = ((1, 9, 32, 32), (2, 10, 48, 32)) if tiny else ((1, 16, 112, 112), (1, 12, 96, 128), (4, 10, 64, 64))
    dims = {0: _BATCH, 2: Dim("frames", min=9, max=64), 3: Dim("height", min=17, max=512), 4: Dim("width", min=17, max=512)}
    yield _network("resnet3d", nets.resnet3d, 3, clips, (dims,))
    seeds = ((1, 1, 1), (2, 2, 3)) if tiny else ((1, 4, 4), (1, 13, 9), (4, 5, 5))
    yield _network("generator", nets.generator, 100, seeds, _images(least=1, most=64))


def subject(name: str, tiny: bool) -> Subject:
    """A network as the measuring process takes it."""
    return networks(tiny)[name].subject()


def _arguments(module: str, about: str | None) -> argparse.Namespace:
    parser = measure.options(module, about, "network", 15, _PEERS, module.rpartition(".")[2])
    parser.add_argument("--network", help="names, separated by commas; by default all")
    parser.add_argument("--report-only", action="store_true", help="measure nothing, report the kept results")
    parser.add_argument(
        "--dtype", choices=convnets_narrow.FORMS, help="in that type, beside f32 and peers that have it; nothing is kept"
    )
    return parser.parse_args()


def main() -> int:
    """Exit code 2 for unknown names, 1 if a network fails on this compiler."""
    return command("benchmarks.convnets", __doc__, networks)


def command(module: str, about: str | None, networks: Callable[[bool], dict[str, Workload]]) -> int:
    """The command `python -m module` over networks, whose module has a function `subject`; exit codes as of `main`."""
    a = _arguments(module, about)
    known = networks(a.tiny)
    try:
        chosen = select(a.network, known) if a.network else list(known.values())
    except ValueError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if a.dtype:
        peers = convnets_narrow.peers_of(a.dtype, a.peer.split(","))
        told = f"{'network':16} {'/f32':>6} {'least':>5} {'/best':>6} {'least':>5} {'error':>7} {'best':>7}"
        print(f"{told}  by shape, time in f32 and the best of {', '.join(peers)}'s over ours")
        failed = False
        for w in chosen:
            try:
                figures = convnets_narrow.compare(w, a.dtype, a.threads, a.budget, peers)
                print(convnets_narrow.row(w, figures), flush=True)
            except Exception as e:  # of a peer, or of torch.export, which doesn't write all networks in all types
                print(f"{w.name:16} {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
                failed = True
        return int(failed)
    folder = a.results / "tiny" if a.tiny else a.results
    for w in [] if a.report_only else chosen:
        print(f"== {w.name}", file=sys.stderr, flush=True)
        result = measure.measure_workload(
            w,
            a.peer.split(","),
            a.threads,
            budget=a.budget,
            results=folder,
            subject=(f"{module}:subject", {"name": w.name, "tiny": a.tiny}),
            tell=lambda text: print(f"   {text}", file=sys.stderr, flush=True),
        )
        measure.save(result, folder)
        print(report.detail(result), flush=True)
    names = {w.name for w in chosen}
    results = [r for r in measure.load(a.threads, folder) if r["workload"] in names]
    print("\n".join(table(results)))
    return int(any("error" in r["peers"].get(report.OURS, {}) for r in results))


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """A line a network, of results as `measure.measure_workload` returns them: the best other peer's time over ours by shape, in
    geometric mean, the largest error, and how much of the floor of arithmetic and bytes is reached."""
    lines = [f"{'network':16} {'mean':>5} {'least':>5} {'floor':>5} {'error':>8}  by shape"]
    for r in results:
        _, best, _ = report.speedups(r, "min_ms")
        ours = r["peers"].get(report.OURS, {})
        if not best or "error" in ours:
            lines.append(f"{r['workload']:16} {ours.get('error', 'no other peer ran')}")
            continue
        share = statistics.geometric_mean([f / t for f, t in zip(r["floor_ms"], ours["min_ms"], strict=True)])
        by_shape = "  ".join(f"{label} {ratio:.2f}" for label, ratio in zip(r["labels"], best, strict=True))
        errors = ours.get("errors") or [float("nan")]
        mean = statistics.geometric_mean(best)
        lines.append(f"{r['workload']:16} {mean:5.2f} {min(best):5.2f} {share:5.0%} {max(errors):8.1e}  {by_shape}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
