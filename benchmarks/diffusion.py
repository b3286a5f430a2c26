"""python -m benchmarks.diffusion: models that diffusion pipelines call again and again, sizes changing at every call, beside peers.

Of diffusers (`pip install diffusers`), with random weights, smaller than those that are published but of the same structure.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, full, nn, randint, randn, zeros
from torch.export import Dim

from benchmarks import convnets
from benchmarks.workloads import Shape, Workload
from dhlo.bench.subject import Subject

__all__ = ["main", "networks", "subject"]

_LATENTS = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
_TOKENS = {0: Dim.AUTO, 1: Dim.AUTO}
_BATCH = {0: Dim.AUTO}
_STEP = 500  # of the thousand from noise to an image


class _Called(nn.Module):
    """A model whose result is a tensor instead of an object that holds it."""

    def __init__(self, model: nn.Module, method: str = "forward") -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, *args: Tensor) -> Tensor:
        result: Tensor = getattr(self.model, self.method)(*args, return_dict=False)[0]
        return result


def networks(tiny: bool = False) -> dict[str, Workload]:
    """The models by name; `tiny` runs smaller ones on small inputs."""
    return {w.name: w for w in _models(tiny)}


def _models(tiny: bool) -> Iterator[Workload]:
    yield _unet(tiny)
    yield _autoencoder(tiny)
    yield _sd3(tiny)
    yield _flux(tiny)


def _model(
    name: str, kind: str, sizes: dict[str, Any], inputs: Callable[..., tuple[Tensor, ...]], dims: Any, shapes: Sequence[Shape]
) -> Workload:
    """Of diffusers' class `kind`, whose forward, or method after a dot, is called."""

    def make() -> nn.Module:
        diffusers: Any = importlib.import_module("diffusers")
        of, _, method = kind.partition(".")
        return _Called(getattr(diffusers, of)(**sizes), method or "forward")

    return Workload(name, "diffusion models", make, inputs, (dims,), shapes, shapes[0], export_options={"strict": False})


def _unet(tiny: bool) -> Workload:
    """Of Stable Diffusion's form, with half of the channels (220M parameters): convolutions, group norms,
    attention to a text."""
    width, text = (16, 24) if tiny else (160, 768)
    sizes = dict(
        block_out_channels=(width, 2 * width, 4 * width, 4 * width),
        cross_attention_dim=text,
        attention_head_dim=8,
        norm_num_groups=8 if tiny else 32,
    )

    def inputs(b: int, h: int, w: int) -> tuple[Tensor, ...]:
        return randn(b, 4, h, w), full((b,), _STEP), randn(b, 77, text)

    shapes = ((2, 16, 24), (1, 24, 16)) if tiny else ((2, 32, 32), (1, 48, 32), (2, 24, 40))
    return _model("sd_unet", "UNet2DConditionModel", sizes, inputs, (_LATENTS, _BATCH, _BATCH), shapes)


def _autoencoder(tiny: bool) -> Workload:
    """The decoder of its autoencoder, with half of the channels: images of eight times the size."""
    width = 8 if tiny else 64
    sizes = dict(
        block_out_channels=(width, 2 * width, 4 * width, 4 * width),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        norm_num_groups=8 if tiny else 32,
    )
    shapes = ((2, 4, 5), (1, 6, 4)) if tiny else ((2, 16, 24), (1, 32, 32), (1, 24, 40))
    return _model("sd_decoder", "AutoencoderKL.decode", sizes, lambda b, h, w: (randn(b, 4, h, w),), (_LATENTS,), shapes)


def _sd3(tiny: bool) -> Workload:
    """Of Stable Diffusion 3's form, six layers of width 768: patches of an image and a text in one attention."""
    heads, text = (2, 24) if tiny else (12, 1024)
    sizes = dict(
        num_layers=2 if tiny else 6,
        num_attention_heads=heads,
        attention_head_dim=64,
        caption_projection_dim=64 * heads,
        joint_attention_dim=text,
        pooled_projection_dim=512,
        sample_size=64,
    )

    def inputs(b: int, h: int, w: int) -> tuple[Tensor, ...]:
        return randn(b, 16, h, w), randn(b, 77, text), randn(b, 512), full((b,), float(_STEP))

    shapes = ((2, 8, 12), (1, 10, 6)) if tiny else ((2, 48, 48), (1, 64, 64), (2, 32, 40))
    return _model("sd3", "SD3Transformer2DModel", sizes, inputs, (_LATENTS, _TOKENS, _BATCH, _BATCH), shapes)


def _flux(tiny: bool) -> Workload:
    """Of Flux' form, two layers with streams of their own and four with one, width 768: positions of several axes."""
    sizes = dict(
        num_layers=1 if tiny else 2,
        num_single_layers=1 if tiny else 4,
        num_attention_heads=2 if tiny else 6,
        attention_head_dim=128,
        joint_attention_dim=512,
        pooled_projection_dim=256,
        axes_dims_rope=(16, 56, 56),
    )

    def inputs(b: int, image: int, text: int) -> tuple[Tensor, ...]:
        tokens = randn(b, image, 64), randn(b, text, 512), randn(b, 256)
        return *tokens, full((b,), _STEP / 1000), randint(0, 40, (image, 3)).float(), zeros(text, 3)

    shapes = ((2, 24, 5), (1, 30, 7)) if tiny else ((2, 576, 128), (1, 1024, 77), (1, 640, 256))
    return _model("flux", "FluxTransformer2DModel", sizes, inputs, (_TOKENS, _TOKENS, _BATCH, _BATCH, _BATCH, _BATCH), shapes)


def subject(name: str, tiny: bool) -> Subject:
    """A model as the measuring process takes it."""
    return networks(tiny)[name].subject()


def main() -> int:
    """Exit code 2 for unknown names, 1 if a model fails on this compiler."""
    return convnets.command("benchmarks.diffusion", __doc__, networks)


if __name__ == "__main__":
    sys.exit(main())
