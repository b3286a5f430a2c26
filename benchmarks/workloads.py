"""What is measured: modules, their inputs as functions of sizes, and the shapes that callers cycle through.

`registry()` has every workload by name; `registry(tiny=True)` the same programs in sizes for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn, randn
from torch.export import Dim

from benchmarks import models
from dhlo.bench.subject import Subject

__all__ = ["Shape", "Workload", "registry", "select", "subject"]

Shape = tuple[int, ...]

_BATCH, _SEQ, _ROWS, _COLUMNS, _PAST, _HEADS = (
    Dim(name, min=1, max=most)
    for name, most in (("batch", 64), ("seq", 512), ("rows", 8192), ("columns", 16384), ("past", 4096), ("heads", 1024))
)


@dataclass(frozen=True)
class Workload:
    """A seeded module, inputs(*shape), the dynamic dims for torch.export, and the shapes that are called in turn.

    group         heading under which it is summed up
    export_shape  the example for export and for compilers that need one; no size of 0 or 1
    grow          arguments that are caches, and the dim along which they grow (`dhlo.Options`)
    tied_head     the embedding table is also read as a whole, by the output layer
    """

    name: str
    group: str
    make: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Any, ...]]
    dynamic_shapes: Any
    shapes: Sequence[Shape]
    export_shape: Shape
    dtype: torch.dtype = torch.float32
    export_options: dict[str, Any] = field(default_factory=dict)
    grow: dict[str, int] = field(default_factory=dict)
    tied_head: bool = False

    @property
    def labels(self) -> list[str]:
        return ["x".join(map(str, s)) for s in self.shapes]

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().eval().requires_grad_(False)

    def arguments(self, shape: Shape) -> tuple[Any, ...]:
        """The same for the same shape."""
        torch.manual_seed(1 + sum((i + 1) * s for i, s in enumerate(shape)))
        return self.inputs(*shape)

    def export(self) -> torch.export.ExportedProgram:
        with torch.no_grad():
            return torch.export.export(
                self.module(),
                self.arguments(self.export_shape),
                dynamic_shapes=self.dynamic_shapes,
                **self.export_options,
            )

    def subject(self) -> Subject:
        shapes = [*self.shapes, self.export_shape]
        return Subject(
            self.labels,
            lambda i: (self.arguments(shapes[i]), {}),
            self.module,
            self.export,
            grow=self.grow,
            example=len(self.shapes),
        )


def registry(tiny: bool = False) -> dict[str, Workload]:
    """Every workload by name. Building them is cheap: modules are made when asked for."""
    families = (_overhead, _encoders, _decoders, _experts, _memory_bound, _linear, _convolution, _vision)
    return {w.name: w for family in families for w in family(tiny)}


def select(names: str, known: dict[str, Workload]) -> list[Workload]:
    """Workloads by comma-separated names or first parts of names (w4: all w4_*). Raises ValueError for unknown ones."""
    out: dict[str, Workload] = {}
    for wanted in names.split(","):
        found = {n: w for n, w in known.items() if n == wanted or n.startswith(wanted + "_")}
        if not found:
            raise ValueError(f"no workload '{wanted}'; workloads: {', '.join(known)}")
        out |= found
    return list(out.values())


def subject(name: str, tiny: bool) -> Subject:
    """A workload as the measuring process takes it."""
    return registry(tiny)[name].subject()


# ---------------------------------------------------------------------- families
def _overhead(tiny: bool) -> Iterator[Workload]:
    yield Workload(
        "w0_add1",
        "W0 x + 1, 8 elements",
        lambda: models.function(lambda x: x + 1),
        lambda n: (randn(n),),
        ({0: _COLUMNS},),
        [(8,), (9,), (10,)],
        (8,),
    )


def _ids_and_mask(vocabulary: int) -> Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]:
    def inputs(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.ones(batch, seq, dtype=torch.int64)
        for i in range(1, batch):  # later sequences are padded
            mask[i, seq - min(seq - 1, 3 * i) :] = 0
        return torch.randint(0, vocabulary, (batch, seq)), mask

    return inputs


def _encoders(tiny: bool) -> Iterator[Workload]:
    def bert() -> nn.Module:
        from transformers import BertConfig, BertModel

        small: dict[str, Any] = {
            "vocab_size": 97,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 48,
        }
        return models.Ids(BertModel(BertConfig(**(small if tiny else {})), add_pooling_layer=False))

    def t5() -> nn.Module:
        from transformers import T5Config, T5EncoderModel

        full: dict[str, Any] = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
        small: dict[str, Any] = {
            "vocab_size": 97,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 48,
            "num_layers": 1,
            "num_heads": 2,
        }
        return models.Ids(T5EncoderModel(T5Config(**(small if tiny else full))))

    shapes = [(1, 7), (1, 23), (1, 64), (1, 128), (1, 200), (1, 384), (2, 100), (4, 64), (8, 37), (3, 300)]
    dims = {0: _BATCH, 1: _SEQ}
    for name, group, make, vocabulary in (
        ("w1_bert", "W1 BERT-base", bert, 30000),
        ("w7_t5", "W7 T5-small encoder", t5, 32000),
    ):
        yield Workload(
            name,
            group,
            make,
            _ids_and_mask(90 if tiny else vocabulary),
            (dims, dims),
            [(1, 3), (2, 5)] if tiny else shapes,
            (2, 6) if tiny else (2, 100),
        )


def _decoders(tiny: bool) -> Iterator[Workload]:
    small: dict[str, Any] = {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "kv_heads": 2,
        "depth": 8,
        "hidden": 48,
        "vocabulary": 97,
    }
    config = small if tiny else {"layers": 12, "kv_heads": 4, "depth": 64, "vocabulary": 32000}

    def decode_inputs(past: int) -> tuple[Any, ...]:
        def cache() -> list[torch.Tensor]:
            return [randn(1, config["kv_heads"], past, config["depth"]) for _ in range(config["layers"])]

        return torch.randint(0, config["vocabulary"], (1, 1)), torch.tensor([[past]]), cache(), cache()

    dims = [{2: _PAST}] * config["layers"]
    pasts = (1, 17, 64, 99, 128, 200, 257, 333, 450, 512, 700, 901, 1024)
    yield Workload(
        "w2_decode",
        "W2 decoding step, growing cache",
        lambda: models.Decoder(**config),
        decode_inputs,
        ({}, {}, dims, dims),
        [(p,) for p in ((1, 5) if tiny else pasts)],
        (6,) if tiny else (64,),
        grow={"keys*": 2, "values*": 2},
        tied_head=True,
        export_options={"prefer_deferred_runtime_asserts_over_guards": True},
    )
    yield Workload(
        "w2_prefill",
        "W2 prefill",
        lambda: models.Prefill(**config),
        lambda tokens: (torch.randint(0, config["vocabulary"], (1, tokens)), torch.arange(tokens)[None]),
        ({1: _SEQ}, {1: _SEQ}),
        [(s,) for s in ((3, 5) if tiny else (5, 17, 64, 129, 250, 512))],
        (6,) if tiny else (64,),
        tied_head=True,
    )


def _experts(tiny: bool) -> Iterator[Workload]:
    tokens = [(t,) for t in ((1, 5) if tiny else (1, 3, 8, 33, 128, 500))]
    width = 16 if tiny else 512
    for loop in (True, False):
        for name, size in (("mixtral", (8, 2, 1792)), ("deepseek", (64, 8, 256))):
            experts, topk, hidden = (4, 2, 24) if tiny else size
            form = "loop" if loop else "dense"
            yield Workload(
                f"w3_{name}_{form}",
                f"W3 mixture of experts, {form}",
                partial(models.MixtureOfExperts, experts, topk, hidden, loop, width),
                lambda t: (randn(t, width),),
                ({0: _ROWS},),
                tokens,
                (7,) if tiny else (33,),
            )


def _memory_bound(tiny: bool) -> Iterator[Workload]:
    matrix, row, column = {0: _ROWS, 1: _COLUMNS}, {0: _COLUMNS}, {0: _ROWS}
    shapes = [(1, 24), (7, 33)] if tiny else [(1, 768), (7, 768), (129, 1000), (511, 4097), (2048, 777)]
    rope_shapes = [(1, 2), (7, 3)] if tiny else [(1, 12), (7, 12), (129, 16), (511, 32), (2048, 12)]
    cases: list[tuple[str, Callable[..., Any], Callable[..., tuple[Any, ...]], Any]] = [
        (
            "layernorm",
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            lambda m, n: (randn(m, n), randn(n), randn(n)),
            (matrix, row, row),
        ),
        (
            "rmsnorm_res",
            models.rmsnorm_residual,
            lambda m, n: (randn(m, n), randn(m, n), randn(n)),
            (matrix, matrix, row),
        ),
        (
            "softmax_mask",
            lambda x, k: x.masked_fill(~k, float("-inf")).softmax(-1),
            lambda m, n: (randn(m, n), torch.rand(m, n) > 0.3),
            (matrix, matrix),
        ),
        ("gelu_bias", lambda x, b: F.gelu(x + b), lambda m, n: (randn(m, n), randn(n)), (matrix, row)),
        (
            "rope",
            models.rope,
            lambda m, h: (randn(m, h, 64), randn(m, 64), randn(m, 64)),
            ({0: _ROWS, 1: _HEADS}, column, column),
        ),
        (
            "logsoftmax_gather",
            lambda x, t: x.log_softmax(-1).gather(1, t[:, None]).squeeze(1),
            lambda m, n: (randn(m, n), torch.randint(0, n, (m,))),
            (matrix, column),
        ),
        ("chain10", models.chain, lambda m, n: (randn(m, n), randn(m, n)), (matrix, matrix)),
        ("reduce_rows", lambda x: (x.sum(1), x.amax(1)), lambda m, n: (randn(m, n),), (matrix,)),
        ("reduce_cols", lambda x: (x.mean(0), x.amax(0)), lambda m, n: (randn(m, n),), (matrix,)),
    ]
    for name, fn, inputs, dims in cases:
        is_rope = name == "rope"
        yield Workload(
            "w4_" + name,
            "W4 memory-bound kernels",
            partial(models.function, fn),
            inputs,
            dims,
            rope_shapes if is_rope else shapes,
            (9, 4) if tiny else (129, 16) if is_rope else (129, 1000),
        )


def _matrix(columns: int, dtype: torch.dtype, rows: int) -> tuple[torch.Tensor]:
    return (randn(rows, columns).to(dtype),)


def _linear(tiny: bool) -> Iterator[Workload]:
    rows = [(m,) for m in ((1, 5) if tiny else (1, 2, 3, 5, 8, 16, 31, 64, 100, 257, 512))]
    for k, n in ((24, 40),) if tiny else ((768, 768), (768, 3072), (3072, 768), (768, 32000)):
        for dtype, tag in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            yield Workload(
                f"w5_{tag}_{k}x{n}",
                f"W5 linear, {tag}",
                partial(nn.Linear, k, n, bias=False, dtype=dtype),
                partial(_matrix, k, dtype),
                ({0: _ROWS},),
                rows,
                (7,) if tiny else (31,),
                dtype,
            )
    yield Workload(
        "w5_f32_decoder",
        "W5 products of a decoder, f32",
        lambda: models.Products(*((16, 8, 24, 2, 40) if tiny else (768, 192, 2048, 12, 32000))),
        partial(_matrix, 16 if tiny else 768, torch.float32),
        ({0: _ROWS},),
        [(m,) for m in ((1, 5) if tiny else (1, 2, 4, 6, 8, 12, 14, 16, 24, 33, 36, 48, 52, 64, 100))],
        (7,) if tiny else (31,),
    )


def _convolution(tiny: bool) -> Iterator[Workload]:
    shapes = [(1, 64, 64), (2, 70, 67)] if tiny else [(1, 224, 224), (1, 160, 320), (2, 200, 200), (4, 96, 128)]
    dims = {0: _BATCH, 2: Dim("height", min=64, max=1024), 3: Dim("width", min=64, max=1024)}
    yield Workload(
        "w6_resnet18",
        "W6 ResNet-18",
        lambda: models.resnet18(*((4, 10) if tiny else (64, 1000))),
        lambda b, h, w: (randn(b, 3, h, w),),
        (dims,),
        shapes,
        (2, 96, 80) if tiny else (2, 160, 320),
    )

    def mobilenet() -> nn.Module:
        from transformers import MobileNetV2Config, MobileNetV2Model

        return models.Maps(MobileNetV2Model(MobileNetV2Config(**({"depth_multiplier": 0.25} if tiny else {}))))

    side = 64 if tiny else 224  # torch.export makes image sizes constants: its padding looks at them
    yield Workload(
        "w6_mobilenet",
        "W6 MobileNetV2",
        mobilenet,
        lambda b: (randn(b, 3, side, side),),
        ({0: _BATCH},),
        [(1,), (2,)] if tiny else [(1,), (2,), (4,)],
        (2,),
    )


def _vision(tiny: bool) -> Iterator[Workload]:
    side = 32 if tiny else 224

    def vit() -> nn.Module:
        from transformers import ViTConfig, ViTModel

        small: dict[str, Any] = {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": side,
        }
        return models.Pixels(ViTModel(ViTConfig(**(small if tiny else {})), add_pooling_layer=False))

    yield Workload(
        "w8_vit",
        "W8 ViT-B/16",
        vit,
        lambda b: (randn(b, 3, side, side),),
        ({0: _BATCH},),
        [(b,) for b in ((1, 3) if tiny else (1, 2, 3, 4, 6, 8))],
        (2,),
    )
