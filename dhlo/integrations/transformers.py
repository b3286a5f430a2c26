"""transformers: an export backend named "dhlo", and `generate()` over a compiled decoder.

Importing this module registers the backend: `DhloExporter().export(model, inputs, DhloConfig())` compiles any model that
transformers exports, and `ExportedModel.from_pretrained` loads what its `save_pretrained` wrote.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers.cache_utils import Cache, DynamicCache
from transformers.exporters import DynamoConfig, ModelRunner, register_backend
from transformers.exporters.exporter_dynamo import DynamoExporter
from transformers.exporters.metadata import ExportMetadata, load_treespec
from transformers.modeling_outputs import CausalLMOutputWithPast

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.integrations.caches import (
    GROW,
    are_windows,
    cached_layers,
    exported_cache,
    keep_all,
    masks_of_any_sizes,
    positions,
    with_room,
)
from dhlo.integrations.encoder_decoder import ENTRIES, attach_encoder_decoder, compile_encoder_decoder, is_encoder_decoder
from dhlo.integrations.generation import evaluating, keep_masks, refuse_others, replace_forward
from dhlo.model import CompiledModel

__all__ = [
    "DhloConfig",
    "DhloExporter",
    "DhloRunner",
    "attach",
    "compile_decoder",
    "compile_encoder_decoder",
    "decoder_program",
    "is_decoder",
]

FORMAT = "dhlo"


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

    def __init__(self, model: Any, windows: list[bool]) -> None:
        super().__init__()
        self.model = model
        self.windows = windows

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        kept: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        cache = exported_cache(input_ids, attention_mask, keys, values, self.windows)
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
    layers, windows = _cached(model)
    held = [past - 1 if window else past for window in windows]
    keys, values = (
        [torch.zeros(batch, x.shape[1], n, x.shape[3], dtype=model.dtype) for x, n in zip(kind, held, strict=True)]
        for kind in zip(*layers, strict=True)
    )
    ids = torch.zeros(batch, length, dtype=torch.int64)
    positions = torch.arange(past, past + length).expand(batch, length).contiguous()
    args = (ids, torch.ones(batch, past + length, dtype=torch.int64), positions, torch.tensor([0, 2]), keys, values)
    two, cached = {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    dynamic = (two, two, two, {0: Dim.AUTO}, [cached] * len(keys), [cached] * len(values))
    with evaluating(model), masks_of_any_sizes():
        return torch.export.export(_Step(model, windows), args, dynamic_shapes=dynamic, strict=False)


def _cached(model: Any) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[bool]]:
    """Keys and values of each layer, as a run of the model leaves them, and whether it keeps those of a window. Raises CompileError
    where a layer keeps something else."""
    cache = DynamicCache(config=model.config)
    windows = are_windows(cache)
    with evaluating(model):
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        if not layer.is_initialized or layer.keys.dim() != 4:
            raise CompileError(f"{type(model).__name__} keeps more than keys and values in its cache ({type(layer).__name__})")
    return [(x.keys, x.values) for x in cache.layers], windows


def attach(model: Any, compiled: CompiledModel) -> None:
    """Lets a model's `forward`, and so `generate()`, run what `compile_decoder` or `compile_encoder_decoder` compiled of such a
    model. `del model.forward` undoes that (and of the latter, `del model.get_encoder().forward`). Raises ContractError for
    models that can't have been compiled to this."""
    if is_encoder_decoder(model) and set(compiled.entries) == set(ENTRIES):
        attach_encoder_decoder(model, compiled)
    elif is_decoder(model) and cached_layers(compiled):
        replace_forward(model, _Forward(compiled, model.config))
        keep_masks(model)
    else:
        raise ContractError(f"the compiled model isn't one of a {type(model).__name__} that generates")


class _Forward:
    """A decoder's forward in terms of the compiled step."""

    def __init__(self, compiled: CompiledModel, config: Any) -> None:
        self.compiled = compiled
        self._config = config
        self._layers = cached_layers(compiled)

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
        refuse_others(others)
        if input_ids is None:
            raise ContractError("a compiled decoder takes input_ids, and not inputs_embeds")
        if input_ids.dim() != 2:
            raise ContractError(f"input_ids is [batch, positions] for a compiled decoder, got {input_ids.dim()} dims")
        if past_key_values is not None and not isinstance(past_key_values, Cache):
            raise ContractError(f"past_key_values is a Cache of transformers, got a {type(past_key_values).__name__}")
        batch, length = input_ids.shape
        cache = DynamicCache(config=self._config) if past_key_values is None else past_key_values
        past = positions(cache, len(self._layers) // 2)
        if attention_mask is None:
            attention_mask = torch.ones(batch, past + length, dtype=torch.int64)
        if attention_mask.dim() != 2:
            raise ContractError(f"attention_mask is [batch, positions] for a compiled decoder, got {attention_mask.dim()} dims")
        if position_ids is None:
            position_ids = torch.arange(past, past + length).expand(batch, length)
        out = self._run(input_ids, attention_mask.long()[:, : past + length], position_ids, logits_to_keep, cache)
        if use_cache is False:
            out.past_key_values = None  # generate() would pass it on, with all tokens
        return out

    def _run(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, keep: int | torch.Tensor, cache: Cache
    ) -> CausalLMOutputWithPast:
        batch, length = ids.shape
        kept = torch.arange(length)[-keep:] if isinstance(keep, int) else keep
        with torch.no_grad():
            logits, keys, values = self.compiled(
                ids, mask, positions.expand(batch, length), kept, *with_room(cache, self._layers, batch, length)
            )
            keep_all(cache, keys, values, length)
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)
