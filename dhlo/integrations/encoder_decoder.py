"""transformers: `generate()` over a compiled encoder and decoder (Whisper, T5, Marian, ...)."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.integrations.caches import (
    CACHE,
    GROW,
    are_windows,
    cached_layers,
    exportable_attention,
    exported_cache,
    held,
    keep_all,
    keep_source,
    past_of,
    taken_cache,
    with_room,
)
from dhlo.integrations.generation import evaluating, keep_masks, refuse_others, replace
from dhlo.model import CompiledModel

__all__ = [
    "ENTRIES",
    "attach_encoder_decoder",
    "compile_encoder_decoder",
    "cross_step_pages",
    "cross_step_program",
    "encoder_decoder_programs",
    "is_encoder_decoder",
    "source_program",
]

ENTRIES = ("encoder", "cross", "decoder")
"""The programs: of the source; of what cross attention keeps of it; of some tokens after what a cache holds."""

_TAKES = {"decoder_input_ids", "decoder_attention_mask", "attention_mask", "encoder_outputs", CACHE}
_POSITIONS = "decoder_position_ids"

_Tensors = list[torch.Tensor]


class _Encoder(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()
        self.source = model.main_input_name

    def forward(self, source: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.encoder(**{self.source: source}, attention_mask=attention_mask)[0]
        return hidden


class _Cross(torch.nn.Module):
    """A token of decoding, of which only what the cross attention keeps is asked."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: torch.Tensor) -> tuple[_Tensors, _Tensors]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        token = torch.zeros(hidden.shape[0], 1, dtype=torch.int64)
        self.model(
            decoder_input_ids=token,
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            use_cache=True,
            **{CACHE: cache},
        )
        layers: list[Any] = cache.cross_attention_cache.layers
        return [x.keys for x in layers], [x.values for x in layers]


class _Decoder(torch.nn.Module):
    """Some tokens after what a cache holds, which may be nothing."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.positions = _POSITIONS in inspect.signature(model.forward).parameters
        self.windows = are_windows(DynamicCache(config=model.config))

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        source_mask: torch.Tensor,
        position_ids: torch.Tensor,
        keys: _Tensors,
        values: _Tensors,
        cross_keys: _Tensors,
        cross_values: _Tensors,
    ) -> tuple[torch.Tensor, _Tensors, _Tensors]:
        own = exported_cache(input_ids, attention_mask, keys, values, self.windows)
        cross = DynamicCache(list(zip(cross_keys, cross_values, strict=True)))
        batch, _, length, _ = cross_keys[0].shape
        width = self.model.get_encoder().config.hidden_size
        hidden = cross_keys[0].new_zeros(batch, length, width)  # its sizes are asked, and nothing else
        out = self.model(
            attention_mask=source_mask,
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            use_cache=True,
            **{CACHE: EncoderDecoderCache(own, cross)},
            **({_POSITIONS: position_ids} if self.positions else {}),
        )
        layers: list[Any] = own.layers
        return out.logits, [x.keys for x in layers], [x.values for x in layers]


class _Source(torch.nn.Module):
    """What the cross attention keeps of a source, whose features are f32."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder, self.cross = _Encoder(model), _Cross(model)

    def forward(self, input_features: torch.Tensor) -> tuple[_Tensors, _Tensors]:
        return self.run(input_features.to(self.cross.model.dtype))

    def run(self, source: torch.Tensor) -> tuple[_Tensors, _Tensors]:
        mask = torch.ones(source.shape[0], source.shape[-1], dtype=torch.int64)
        keys, values = self.cross(self.encoder(source, mask))
        return keys, values


class _Text(_Source):
    """The same of tokens."""

    def forward(self, input_ids: torch.Tensor) -> tuple[_Tensors, _Tensors]:
        return self.run(input_ids)


class _Step(torch.nn.Module):
    """`_Decoder`, which computes the logits of the positions that are kept, and sees all of the source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder, self.head = _Decoder(model), model.get_output_embeddings()
        self.decoder.windows = [False] * len(self.decoder.windows)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        kept: torch.Tensor,
        keys: _Tensors,
        values: _Tensors,
        cross_keys: _Tensors,
        cross_values: _Tensors,
    ) -> tuple[torch.Tensor, _Tensors, _Tensors]:
        source_mask = torch.ones(input_ids.shape[0], cross_keys[0].shape[2], dtype=torch.int64)
        hook = self.head.register_forward_pre_hook(lambda _, args: (args[0].index_select(1, kept), *args[1:]))
        try:
            out: tuple[torch.Tensor, _Tensors, _Tensors] = self.decoder(
                input_ids, attention_mask, source_mask, position_ids, keys, values, cross_keys, cross_values
            )
        finally:
            hook.remove()
        return out


def source_program(model: Any) -> ExportedProgram:
    """What an engine computes of a request's source, once (`EngineOptions.encoder`): of input_features [1, ...] in f32, or of
    input_ids [1, positions], the keys and then the values [1, heads, positions, depth] of the cross attention of all layers. Raises
    CompileError where the config doesn't say the features' sizes, and what torch.export raises."""
    _check(model)
    source = _example(model)[:1]
    tokens = model.main_input_name == "input_ids"
    module, args = (_Text(model), (source,)) if tokens else (_Source(model), (source.float(),))
    dims: Any = ({1: Dim.AUTO},) if tokens else None
    with evaluating(model), exportable_attention():
        return torch.export.export(module, args, dynamic_shapes=dims, strict=False)


def cross_step_program(model: Any) -> ExportedProgram:
    """A step of the decoder over text, for `Options.pages`: its caches are called keys[0], values[0], ..., and what is kept of the
    source cross_keys[0], cross_values[0], ... Raises CompileError, and what torch.export raises."""
    _check(model)
    batch, length, past = 2, 3, 5
    with evaluating(model):
        cross_keys, cross_values = _Source(model).run(_example(model))
    keys, values = ([x[:, :, :1].repeat(1, 1, past, 1) for x in cross] for cross in (cross_keys, cross_values))
    ids = torch.zeros(batch, length, dtype=torch.int64)
    positions = torch.arange(past, past + length).expand(batch, length).contiguous()
    ones = torch.ones(batch, past + length, dtype=torch.int64)
    two, cached = {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    args = (ids, ones, positions, torch.tensor([0, 2]), keys, values, cross_keys, cross_values)
    dims = (two, two, two, {0: Dim.AUTO}, *([cached] * len(keys) for _ in range(4)))
    with evaluating(model), exportable_attention():
        return torch.export.export(_Step(model), args, dynamic_shapes=dims, strict=False)


def cross_step_pages(block_slots: int) -> dict[str, int]:
    """`Options.pages` for `cross_step_program`, with so many slots in a block."""
    return dict.fromkeys(("keys*", "values*", "cross_keys*", "cross_values*"), block_slots)


def is_encoder_decoder(model: Any) -> bool:
    """Whether `compile_encoder_decoder` takes a model."""
    names = set(inspect.signature(model.forward).parameters)
    joined = getattr(model.config, "is_encoder_decoder", False)
    return bool(joined) and names >= {*_TAKES, model.main_input_name} and model.can_generate()


def _check(model: Any) -> None:
    if not is_encoder_decoder(model):
        kind = type(model).__name__
        takes = ", ".join(sorted(_TAKES))
        raise CompileError(f"{kind} isn't an encoder-decoder that generates and takes {takes}")


def compile_encoder_decoder(model: Any, source: torch.Tensor | None = None, **options: Any) -> CompiledModel:
    """Compiles an encoder-decoder of transformers that generates text, and lets `model.forward` and the encoder's, and so
    `model.generate()`, run it: any batch, any lengths but those that the model fixes. The decoder's own keys and values grow in
    place, those of cross attention are computed once per source.

    `source` is an example of what the encoder takes, of two samples; by default tokens, or features as the config says. `options`
    are the fields of `dhlo.Options`. The compiled model, with the entries encoder, cross and decoder, is returned: save it, and
    `attach` what `dhlo.load` makes of it.
    Raises CompileError for models that aren't of this kind, and what torch.export and `dhlo.compile` raise.
    """
    compiled = dhlo.compile(encoder_decoder_programs(model, source), **{"grow": GROW, **options})
    attach_encoder_decoder(model, compiled)
    return compiled


def encoder_decoder_programs(model: Any, source: torch.Tensor | None = None) -> dict[str, ExportedProgram]:
    """The programs that `compile_encoder_decoder` compiles, by entry. Raises CompileError, and what torch.export raises."""
    _check(model)
    tokens = model.main_input_name == "input_ids"
    if source is None:
        source = _example(model)
    batch, length, past = 2, 3, 5
    mask = torch.ones(batch, source.shape[-1], dtype=torch.int64)
    with evaluating(model):
        hidden = _Encoder(model)(source, mask)
        cross_keys, cross_values = _Cross(model)(hidden)
    keys, values = ([x[:, :, :1].repeat(1, 1, past, 1) for x in cross] for cross in (cross_keys, cross_values))
    ids = torch.zeros(batch, length, dtype=torch.int64)
    positions = torch.arange(past, past + length).expand(batch, length).contiguous()
    ones = torch.ones(batch, past + length, dtype=torch.int64)
    two, cached = {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    all_dims = dict.fromkeys(range(source.dim()), Dim.AUTO)
    calls: dict[str, tuple[Any, Any, Any]] = {
        "encoder": (_Encoder, (source, mask), (all_dims, two)),
        "cross": (_Cross, (hidden,), (two,)),
        "decoder": (
            _Decoder,
            (ids, ones, mask, positions, keys, values, cross_keys, cross_values),
            (two, two, two, two, *([cached] * len(keys) for _ in range(4))),
        ),
    }
    programs = {}
    with evaluating(model), exportable_attention():
        for entry, (kind, args, dims) in calls.items():
            programs[entry] = torch.export.export(kind(model), args, dynamic_shapes=dims, strict=False)
    if not tokens and (_reads(programs["encoder"], "attention_mask") or _reads(programs["decoder"], "source_mask")):
        raise CompileError(f"{type(model).__name__} reads a mask of its {model.main_input_name}, which compiled models can't")
    return programs


def _example(model: Any) -> torch.Tensor:
    """What the encoder takes, of two samples. Raises CompileError where the config doesn't say."""
    config = model.config
    if model.main_input_name == "input_ids":
        return torch.ones(2, 7, dtype=torch.int64)
    if model.main_input_name == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions, dtype=model.dtype)
    raise CompileError(
        f"{type(model).__name__} takes {model.main_input_name}, whose sizes its config doesn't say",
        hint="compile_encoder_decoder(model, source) takes an example",
    )


def _reads(program: ExportedProgram, name: str) -> bool:
    """Whether a program makes use of an argument."""
    return any(n.users for n in program.graph.find_nodes(op="placeholder") if n.name == name)


def attach_encoder_decoder(model: Any, compiled: CompiledModel) -> None:
    """Lets a model's forward and its encoder's run what `compile_encoder_decoder` compiled of such a model."""
    run = _Forward(compiled, model.main_input_name)
    replace(model.get_encoder(), run.encode)
    replace(model, run)
    keep_masks(model)


class _Forward:
    """The forward of an encoder-decoder in terms of the compiled entries. `source` is the name of what its encoder takes."""

    def __init__(self, compiled: CompiledModel, source: str) -> None:
        self.encoder, self.cross, self.decoder = (compiled[entry] for entry in ENTRIES)
        self._source = source
        self._layers = cached_layers(self.decoder)

    def encode(self, attention_mask: torch.Tensor | None = None, **others: Any) -> BaseModelOutput:
        """Raises ContractError for arguments that the compiled encoder has no place for."""
        source = others.pop(self._source, None)
        refuse_others(others)
        if source is None:
            raise ContractError(f"a compiled encoder takes {self._source}")
        if attention_mask is None:
            attention_mask = torch.ones(source.shape[0], source.shape[-1], dtype=torch.int64)
        with torch.no_grad():
            return BaseModelOutput(last_hidden_state=self.encoder(source, attention_mask.long()))

    def __call__(
        self,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Raises ContractError for arguments that the compiled entries have no place for."""
        source, cache = others.pop(self._source, None), taken_cache(others)
        refuse_others(others)
        if decoder_input_ids is None:
            raise ContractError("a compiled decoder takes decoder_input_ids")
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if cache is None else cache
        if not isinstance(cache, EncoderDecoderCache):
            raise ContractError(f"a compiled encoder-decoder takes an EncoderDecoderCache, not a {type(cache).__name__}")
        number = len(self._layers) // 2
        past = past_of(cache.self_attention_cache, number)
        past_of(cache.cross_attention_cache, number)
        with torch.no_grad():
            if not all(cache.is_updated.get(i, False) for i in range(number)):
                if encoder_outputs is None:
                    encoder_outputs = self.encode(attention_mask, **{self._source: source})
                keep_source(cache.cross_attention_cache, *self.cross(encoder_outputs[0]))
                cache.is_updated.update(dict.fromkeys(range(number), True))
            cross_keys, cross_values = held(cache.cross_attention_cache)
            batch, length = decoder_input_ids.shape
            source_mask = _mask(attention_mask, "attention_mask", batch, cross_keys[0].shape[2])
            mask = _mask(decoder_attention_mask, "decoder_attention_mask", batch, past + length)
            if decoder_position_ids is None:
                decoder_position_ids = torch.arange(past, past + length)
            logits, keys, values = self.decoder(
                decoder_input_ids,
                mask[:, : past + length],
                source_mask,
                decoder_position_ids.expand(batch, length),
                *with_room(cache.self_attention_cache, self._layers, batch, length),
                cross_keys,
                cross_values,
            )
            keep_all(cache.self_attention_cache, keys, values, length)
        logits = logits[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]
        hidden = None if encoder_outputs is None else encoder_outputs[0]
        returned = None if use_cache is False else cache  # generate() would pass it on, with all tokens
        return Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=hidden, **{CACHE: returned})


def _mask(mask: torch.Tensor | None, name: str, batch: int, length: int) -> torch.Tensor:
    """A mask as the compiled decoder takes it. Raises ContractError for masks of other than two dims."""
    if mask is None:
        return torch.ones(batch, length, dtype=torch.int64)
    if mask.dim() != 2:
        raise ContractError(f"{name} is [batch, positions] for compiled models, got {mask.dim()} dims")
    return mask.long()
