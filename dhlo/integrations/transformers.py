"""transformers: an export backend named "dhlo", and `generate()` over a compiled decoder.

Importing this module registers the backend: `DhloExporter().export(model, inputs, DhloConfig())` compiles any model that
transformers exports, and `ExportedModel.from_pretrained` loads what its `save_pretrained` wrote.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.exporters import DynamoConfig, ModelRunner, register_backend
from transformers.exporters.exporter_dynamo import DynamoExporter
from transformers.exporters.metadata import ExportMetadata, load_treespec
from transformers.modeling_outputs import CausalLMOutputWithPast

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.model import CompiledModel

__all__ = [
    "GROW",
    "DhloConfig",
    "DhloExporter",
    "DhloRunner",
    "attach",
    "compile_decoder",
    "decoder_program",
    "evaluating",
    "is_decoder",
]

FORMAT = "dhlo"
GROW = {"keys*": 2, "values*": 2}
"""Which arguments of the steps have room behind what is filled, and along which dim."""

_ROOM = 64  # positions that a cache has room for beyond those that are needed, at least


# ------------------------------------------------------------------------------------------------ transformers.exporters
@dataclass
class DhloConfig(DynamoConfig):  # type: ignore[misc]
    """How to export: as transformers' DynamoConfig says, with all sizes dynamic by default; `options` are the fields of
    `dhlo.Options`."""

    export_format: str = FORMAT
    dynamic: bool = True
    options: dict[str, Any] = field(default_factory=dict)


class DhloExporter(DynamoExporter):  # type: ignore[misc]
    """Compiles what torch.export makes of a model: components are `dhlo.CompiledModel`s, their files model files."""

    export_format = FORMAT
    config_class = DhloConfig
    program_suffix = ".so"

    def export_program(self, model: Any, sample_inputs: Any, config: DhloConfig) -> tuple[CompiledModel, ExportMetadata]:
        """A graph's compiled model. Raises what torch.export and `dhlo.compile` raise."""
        program, metadata = super().export_program(model, sample_inputs, config)
        return dhlo.compile(program, **config.options), metadata

    @classmethod
    def save_program(cls, program: CompiledModel, path: str | Path) -> None:
        """Writes the model file. Raises DhloError for a model that was loaded: copy its file."""
        program.save(path)

    @classmethod
    def load_program(cls, path: str | Path) -> CompiledModel:
        """Reads a model file. Raises the errors of `dhlo.load`."""
        return dhlo.load(path)


class DhloRunner(ModelRunner):  # type: ignore[misc]
    """Calls a compiled model as the model that was exported."""

    def __init__(self, model: CompiledModel, metadata: ExportMetadata) -> None:
        super().__init__(metadata)
        self.model = model
        self._order = load_treespec(metadata.in_spec).children()[1].context

    @classmethod
    def from_program(cls, program: CompiledModel, metadata: ExportMetadata, device: Any = None) -> DhloRunner:
        """Raises CompileError for a device other than the CPU."""
        if device is not None and torch.device(device).type != "cpu":
            raise CompileError(f"compiled models run on the CPU, not on '{device}'")
        return cls(program, metadata)

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any) -> Any:
        """Runs the model. Raises ContractError for arguments that it wasn't exported for."""
        kwargs = {**self.metadata.in_constants, **kwargs}
        ordered = {name: kwargs.pop(name) for name in self._order if name in kwargs}
        return self.model(**ordered, **kwargs)


register_backend(DhloExporter, DhloRunner)


# ------------------------------------------------------------------------------------------------ generate()
class _Step(torch.nn.Module):
    """Some tokens after what a cache holds, which may be nothing: a prompt, a part of one, or a token of decoding."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        kept: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        cache = DynamicCache(list(zip(keys, values, strict=True)))
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=kept,
        )
        return out.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


def compile_decoder(model: Any, **options: Any) -> CompiledModel:
    """Compiles a decoder of transformers (a causal language model), once for prompts and for decoding, any batch, any lengths, and
    lets `model.forward`, and so `model.generate()`, run it. Keys and values grow in place.

    `options` are the fields of `dhlo.Options`. The compiled model is returned: save it, and `attach` what `dhlo.load` makes of it.
    Raises CompileError for models that aren't decoders of this kind, and what torch.export and `dhlo.compile` raise.
    """
    compiled = dhlo.compile(decoder_program(model), **{"grow": GROW, **options})
    attach(model, compiled)
    return compiled


def is_decoder(model: Any) -> bool:
    """Whether `compile_decoder` takes a model."""
    names = inspect.signature(model.forward).parameters
    joined = getattr(model.config.get_text_config(), "is_encoder_decoder", False)
    return not joined and {"input_ids", "past_key_values", "logits_to_keep"} <= set(names)


def decoder_program(model: Any) -> torch.export.ExportedProgram:
    """The program that `compile_decoder` compiles. Raises CompileError, and what torch.export raises."""
    if not is_decoder(model):
        raise CompileError(
            f"{type(model).__name__} isn't a decoder that takes input_ids, past_key_values and logits_to_keep",
            hint="torch.compile(model.forward, backend='dhlo', dynamic=True) compiles any model's forward",
        )
    batch, length, past = 2, 3, 5
    shapes = _cache_shapes(model)
    keys, values = ([torch.zeros(batch, s[0], past, s[1], dtype=model.dtype) for s in pair] for pair in zip(*shapes, strict=True))
    ids = torch.zeros(batch, length, dtype=torch.int64)
    positions = torch.arange(past, past + length).expand(batch, length).contiguous()
    args = (ids, torch.ones(batch, past + length, dtype=torch.int64), positions, torch.tensor([0, 2]), keys, values)
    two, cached = {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    dynamic = (two, two, two, {0: Dim.AUTO}, [cached] * len(keys), [cached] * len(values))
    with evaluating(model):
        return torch.export.export(_Step(model), args, dynamic_shapes=dynamic, strict=False)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, without gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def _cache_shapes(model: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(heads, depth) of each layer's keys and of its values, as a run of the model leaves them. Raises CompileError where a layer
    keeps something else."""
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or not layer.is_initialized or layer.keys.dim() != 4:
            raise CompileError(f"{type(model).__name__} keeps more than keys and values in its cache ({type(layer).__name__})")
    return [((x.keys.shape[1], x.keys.shape[3]), (x.values.shape[1], x.values.shape[3])) for x in cache.layers]


def attach(model: Any, compiled: CompiledModel) -> None:
    """Lets a model's `forward`, and so `generate()`, run what `compile_decoder` compiled of such a model. `del model.forward`
    undoes that."""
    run = _Forward(compiled)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(**dict(zip(signature.parameters, args, strict=False)), **kwargs)

    signature = inspect.signature(type(model).forward.__get__(model))
    forward.__signature__ = signature  # type: ignore[attr-defined]
    model.forward = forward


class _Forward:
    """A decoder's forward in terms of the compiled step."""

    def __init__(self, compiled: CompiledModel) -> None:
        self.compiled = compiled
        caches = [v for v in compiled.native.inputs if v["name"].startswith(("keys", "values"))]
        self._shapes = [(int(v["dims"][1]), int(v["dims"][3]), getattr(torch, v["dtype"])) for v in caches]
        """(heads, depth, dtype) of all keys, then of all values."""

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Raises ContractError for arguments that the compiled step has no place for."""
        strange = [n for n, x in others.items() if x is not None and x is not False and n not in ("cache_position", "return_dict")]
        if input_ids is None or strange:
            raise ContractError(f"a compiled decoder takes input_ids, and not {', '.join(strange) or 'inputs_embeds'}")
        batch, length = input_ids.shape
        cache = DynamicCache() if past_key_values is None else past_key_values
        past = _unbounded(cache)
        if attention_mask is None:
            attention_mask = torch.ones(batch, past + length, dtype=torch.int64)
        if attention_mask.dim() != 2:
            raise ContractError(f"attention_mask is [batch, positions] for a compiled decoder, got {attention_mask.dim()} dims")
        if position_ids is None:
            position_ids = torch.arange(past, past + length).expand(batch, length)
        return self._run(input_ids, attention_mask.long()[:, : past + length], position_ids, logits_to_keep, cache, past)

    def _run(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, keep: int | torch.Tensor, cache: Cache, past: int
    ) -> CausalLMOutputWithPast:
        batch, length = ids.shape
        kept = torch.arange(max(length - keep, 0) if keep else 0, length) if isinstance(keep, int) else keep
        shapes, number = self._shapes, len(self._shapes) // 2
        with torch.no_grad():
            held = [_filled(cache, i % number, "keys" if i < number else "values", past) for i in range(2 * number)]
            filled = [
                _with_room(torch.empty(batch, heads, 0, depth, dtype=dtype) if x is None else x, length)
                for x, (heads, depth, dtype) in zip(held, shapes, strict=True)
            ]
            logits, keys, values = self.compiled(ids, mask, positions.expand(batch, length), kept, filled[:number], filled[number:])
            for i, (k, v) in enumerate(zip(keys, values, strict=True)):
                _keep(cache, i, k, v)
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)


def _unbounded(cache: Cache) -> int:
    """The number of positions that a cache holds. Layers that would forget what lies before a window keep it from here on: the
    model's mask applies the window. Raises ContractError where that is too late, and for other kinds of caches."""
    for i, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            if not isinstance(layer, DynamicLayer) or layer.get_seq_length():
                raise ContractError(f"a compiled decoder takes dynamic caches: layer {i} is a {type(layer).__name__}")
            cache.layers[i] = DynamicLayer()
    return int(cache.get_seq_length())


def _filled(cache: Cache, i: int, name: str, past: int) -> torch.Tensor | None:
    """The filled part of a layer's keys or values, None where the layer has no memory yet."""
    layer: Any = cache.layers[i] if i < len(cache.layers) else None
    if layer is None or not layer.is_initialized:
        return None
    x: torch.Tensor = getattr(layer, name)
    return x[:, :, :past]


def _with_room(x: torch.Tensor, more: int) -> torch.Tensor:
    """`x` [batch, heads, positions, depth] as the first part of a buffer with room for more positions; a copy if it is none."""
    batch, heads, length, depth = x.shape
    room = x.stride(1) // max(depth, 1)
    last = (batch - 1) * x.stride(0) + (heads - 1) * x.stride(1) + room * depth
    if (
        x.stride()[2:] == (depth, 1)
        and x.stride(0) == heads * x.stride(1)
        and room >= length + more
        and (x.storage_offset() + last) * x.element_size() <= x.untyped_storage().nbytes()
    ):
        return x
    buffer = torch.empty(batch, heads, max(2 * length, length + more + _ROOM), depth, dtype=x.dtype)
    buffer[:, :, :length] = x
    return buffer[:, :, :length]


def _keep(cache: Cache, i: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Makes a layer hold these keys and values."""
    while len(cache.layers) <= i:
        cache.layers.append(DynamicLayer())
    layer: Any = cache.layers[i]
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
