"""transformers: `generate()` over a compiled decoder, with images where it takes some (Llama, Gemma, Qwen, Mixtral, LLaVA, ...)."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutputWithPast

from dhlo.errors import CompileError, ContractError
from dhlo.integrations.caches import (
    CACHE,
    are_windows,
    cached_layers,
    exportable_attention,
    exported_cache,
    keep_all,
    keeping,
    masked_windows,
    past_of,
    shortest_unmasked,
    taken_cache,
    with_room,
)
from dhlo.integrations.generation import evaluating, image_sizes, keep_masks, refuse_others, replace
from dhlo.integrations.recurrent import is_recurrent, recurrent_pages, recurrent_step_program
from dhlo.integrations.rotary import first_frequencies
from dhlo.model import CompiledModel

__all__ = ["attach_decoder", "decoder_programs", "is_compiled_decoder", "is_decoder", "step_pages", "step_program"]

_LOG = logging.getLogger("dhlo")

_IMAGE, _PROMPT, _DECODER = ENTRIES = ("image", "prompt", "decoder")
"""The programs of a decoder that takes images: of one image; of some tokens after what a cache holds, images among them; of tokens
alone."""

_ENCODED = "mm_encoder_outputs"
_ENCODE = "get_image_features"


class _Step(torch.nn.Module):
    """Some tokens after what a cache holds, which may be nothing: a prompt, a part of one, or a token of decoding."""

    def __init__(self, model: Any, windows: list[bool | None], longest: int | None = None) -> None:
        """`longest`: the positions that there are, if they have an end."""
        super().__init__()
        self.model = model
        self.windows = windows
        self.known = None if longest is None else torch.nn.Buffer(torch.arange(longest), persistent=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        kept: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        return self.run(input_ids, attention_mask, position_ids, kept, keys, values)

    def run(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        kept: torch.Tensor,
        keys: Any,
        values: Any,
        **more: Any,
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """The logits of the positions that are kept, and all keys and values."""
        positions = positions if self.known is None else self.known[positions]  # is checked to be one
        cache = exported_cache(ids, mask, keys, values, self.windows)
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=kept,
            **{CACHE: cache},
            **more,
        )
        layers = keeping(cache)
        return out.logits, [layer.keys for layer in layers], [layer.values for layer in layers]


class _StepWithImages(_Step):
    """The same, where `features` [positions of images, depth] take the place of the tokens that stand for images. `one`: the model
    has those of all images in one tensor, and not in a list."""

    def __init__(self, model: Any, windows: list[bool | None], one: bool) -> None:
        super().__init__(model, windows)
        self.one = one

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        kept: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        features: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        given = BaseModelOutputWithPooling(pooler_output=features[None] if self.one else [features])
        images = {_ENCODED: {"image": given}}
        return self.run(input_ids, attention_mask, position_ids, kept, keys, values, **images)


class _Image(torch.nn.Module):
    """The features [positions, depth] of an image [1, channels, height, width]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        out = getattr(self.model.base_model, _ENCODE)(pixel_values=pixel_values, return_dict=True)
        features: torch.Tensor = out.pooler_output[0]
        return features


def is_decoder(model: Any) -> bool:
    """Whether `compile_decoder` takes a model."""
    names = inspect.signature(model.forward).parameters
    joined = getattr(model.config.get_text_config(), "is_encoder_decoder", False)
    return not joined and {"input_ids", CACHE, "logits_to_keep"} <= set(names)


def decoder_programs(model: Any) -> dict[str, ExportedProgram]:
    """The programs that `compile_decoder` compiles, by entry; the only one is called "". Raises CompileError, and what torch.export
    raises."""
    _check_decoder(model)
    layers, windows, _ = _cached(model)
    step, args, dims = _step(model, layers, windows)
    programs: dict[str, tuple[Any, Any, Any]] = {"": (step, args, dims)}
    exported: dict[str, ExportedProgram] = {}
    features, one = _features(model)
    with evaluating(model), exportable_attention():
        image = None if features is None else _image_program(model)
        if image is not None:
            with_images = (_StepWithImages(model, windows, one), (*args, features), (*dims, {0: Dim.AUTO}))
            exported, programs = {_IMAGE: image}, {_PROMPT: with_images, _DECODER: programs[""]}
        for entry, (module, example, sizes) in programs.items():
            exported[entry] = torch.export.export(module, example, dynamic_shapes=sizes, strict=False)
    return exported


def _image_program(model: Any) -> ExportedProgram | None:
    """Of images of any size; None, with a warning as of `_features`, where torch.export can't write that."""
    pixels = torch.zeros(1, *image_sizes(model.config), dtype=model.dtype)
    try:
        return torch.export.export(_Image(model), (pixels,), dynamic_shapes=({2: Dim.AUTO, 3: Dim.AUTO},), strict=False)
    except Exception as e:  # whatever the model or torch.export raises
        _for_text(model, e)
        return None


def _for_text(model: Any, why: object) -> None:
    _LOG.warning("%s is compiled for text alone: %s", type(model).__name__, why)


def step_program(model: Any) -> ExportedProgram:
    """A step over text whose layers all keep all positions, those with windows too, for `Options.pages`: its caches are called
    keys[0], values[0], ... Where rotary frequencies change with a text's length, or layers forget what masks don't hide, it takes
    positions below the first such length.
    Where layers keep states of fixed size, it is a step of one token of each sequence, whose states are called states[0], ...
    Raises CompileError, and what torch.export raises."""
    if is_recurrent(model):
        return recurrent_step_program(model)
    _check_decoder(model)
    layers, windows, unmasked = _cached(model)
    with evaluating(model), exportable_attention(), first_frequencies(model) as first:
        longest = min((n for n in (first, unmasked) if n is not None), default=None)
        step, args, dims = _step(model, layers, [None if window is None else False for window in windows], longest)
        return torch.export.export(step, args, dynamic_shapes=dims, strict=False)


def step_pages(model: Any, block_slots: int) -> dict[str, int]:
    """`Options.pages` for `step_program(model)`, with so many slots in a block."""
    return recurrent_pages(model, block_slots) if is_recurrent(model) else {"keys*": block_slots, "values*": block_slots}


def _check_decoder(model: Any) -> None:
    if not is_decoder(model):
        raise CompileError(
            f"{type(model).__name__} isn't a decoder that takes input_ids, {CACHE} and logits_to_keep",
            hint="torch.compile(model.forward, backend='dhlo', dynamic=True) compiles any model's forward",
        )


def _step(
    model: Any, layers: list[tuple[torch.Tensor, torch.Tensor]], windows: list[bool | None], longest: int | None = None
) -> tuple[_Step, Any, Any]:
    """The module of a step, an example of its arguments, and which of their dims are dynamic."""
    batch, length, past = 2, 3, 5
    held = [past - 1 if window else past for window in windows if window is not None]
    keys, values = (
        [torch.zeros(batch, x.shape[1], n, x.shape[3], dtype=model.dtype) for x, n in zip(kind, held, strict=True)]
        for kind in zip(*layers, strict=True)
    )
    ids = torch.zeros(batch, length, dtype=torch.int64)
    positions = torch.arange(past, past + length).expand(batch, length).contiguous()
    args = (ids, torch.ones(batch, past + length, dtype=torch.int64), positions, torch.tensor([0, 2]), keys, values)
    two, cached = {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    return _Step(model, windows, longest), args, (two, two, two, {0: Dim.AUTO}, [cached] * len(keys), [cached] * len(values))


def _features(model: Any) -> tuple[torch.Tensor | None, bool]:
    """The features of an image, and whether the model has those of all in one tensor; None where it takes none, or where more than
    its pixels decides over them or over what follows: such a model is compiled for text, which the logger "dhlo" says (WARNING)."""
    names = set(inspect.signature(model.forward).parameters)
    if not names & {"pixel_values", _ENCODED}:
        return None, False
    why: object = "what surrounds an image depends on more than its features"
    if _ENCODED in names and not names & {"token_type_ids", "image_grid_thw"}:
        pixels = torch.zeros(1, *image_sizes(model.config), dtype=model.dtype)
        try:
            with evaluating(model):
                out = getattr(model.base_model, _ENCODE)(pixel_values=pixels, return_dict=True)
            (features,) = out.pooler_output
        except Exception as e:  # whatever the model raises
            why = e
        else:
            if features.dim() == 2 and getattr(out, "deepstack_features", None) is None:
                return torch.as_tensor(features), isinstance(out.pooler_output, torch.Tensor)
            why = "an image has features of more than one kind"
    _for_text(model, why)
    return None, False


def _cached(model: Any) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[bool | None], int | None]:
    """Keys and values of each layer that keeps such, as a run of the model leaves them, of each layer what `are_windows` says, and
    what `shortest_unmasked` does. Raises CompileError where a layer keeps something else."""
    cache = DynamicCache(config=model.config)
    are_windows(cache)
    with evaluating(model), masked_windows() as masked:
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True, **{CACHE: cache})
    for layer in keeping(cache):
        if not layer.is_initialized or layer.keys.dim() != 4:
            raise CompileError(f"{type(model).__name__} keeps more than keys and values in its cache ({type(layer).__name__})")
    return [(x.keys, x.values) for x in keeping(cache)], are_windows(cache), shortest_unmasked(cache, masked)


def is_compiled_decoder(compiled: CompiledModel) -> bool:
    """Whether `compiled` is what `compile_decoder` made."""
    step = compiled[_DECODER] if set(compiled.entries) == set(ENTRIES) else compiled
    return bool(cached_layers(step))


def attach_decoder(model: Any, compiled: CompiledModel) -> None:
    """Lets a model's forward, and what encodes its images, run what `compile_decoder` compiled of such a model."""
    run = _Forward(compiled, model.config)
    replace(model, run)
    keep_masks(model)
    if run.image is not None:
        replace(model.base_model, run.encode, _ENCODE)


class _Forward:
    """A decoder's forward in terms of the compiled entries."""

    def __init__(self, compiled: CompiledModel, config: Any) -> None:
        with_images = set(compiled.entries) == set(ENTRIES)
        self.image = compiled[_IMAGE] if with_images else None
        self._prompt = compiled[_PROMPT] if with_images else None
        self._step = compiled[_DECODER] if with_images else compiled
        self._config = config
        self._layers = cached_layers(self._step)

    def encode(self, pixel_values: torch.Tensor | None = None, **others: Any) -> BaseModelOutputWithPooling:
        """The features of images [images, channels, height, width], a list. Raises ContractError for arguments that the compiled
        encoder has no place for."""
        refuse_others(others)
        if self.image is None or not isinstance(pixel_values, torch.Tensor) or pixel_values.dim() != 4:
            raise ContractError(
                "the model is compiled for text alone"
                if self.image is None
                else "a compiled decoder takes pixel_values [images, channels, height, width]"
            )
        with torch.no_grad():
            return BaseModelOutputWithPooling(pooler_output=[self.image(x[None]) for x in pixel_values])

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        pixel_values: torch.Tensor | None = None,
        mm_encoder_outputs: dict[str, Any] | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Raises ContractError for arguments that the compiled step has no place for."""
        cache = taken_cache(others)
        refuse_others(others)
        if input_ids is None:
            raise ContractError("a compiled decoder takes input_ids, and not inputs_embeds")
        if cache is not None and not isinstance(cache, Cache):
            raise ContractError(f"{CACHE} is a Cache of transformers, got a {type(cache).__name__}")
        position_ids = _of_text(position_ids)
        for name, x in {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}.items():
            if x is not None and x.dim() != 2:
                raise ContractError(f"{name} is [batch, positions] for a compiled decoder, got {x.dim()} dims")
        images = self._images(pixel_values, mm_encoder_outputs or {})
        batch, length = input_ids.shape
        cache = DynamicCache(config=self._config) if cache is None else cache
        past = past_of(cache, len(self._layers) // 2)
        if attention_mask is None:
            attention_mask = torch.ones(batch, past + length, dtype=torch.int64)
        if position_ids is None:
            position_ids = torch.arange(past, past + length)
        kept = torch.arange(length)[-logits_to_keep:] if isinstance(logits_to_keep, int) else logits_to_keep
        with torch.no_grad():
            logits, keys, values = (self._prompt if self._prompt is not None and images else self._step)(
                input_ids,
                attention_mask.long()[:, : past + length],
                position_ids.expand(batch, length),
                kept,
                *with_room(cache, self._layers, batch, length),
                *images,
            )
            keep_all(cache, keys, values, length)
        returned = None if use_cache is False else cache  # generate() would pass it on, with all tokens
        return CausalLMOutputWithPast(logits=logits, **{CACHE: returned})

    def _images(self, pixels: torch.Tensor | None, encoded: dict[str, Any]) -> list[torch.Tensor]:
        """The features of all images, if there are any. Raises ContractError where the model takes none."""
        if pixels is not None:
            encoded = {"image": self.encode(pixels)} | encoded
        refuse_others({kind: out for kind, out in encoded.items() if kind != "image" or self.image is None})
        image = encoded.get("image")
        return [] if image is None else [torch.cat(list(image.pooler_output))]


def _of_text(positions: torch.Tensor | None) -> torch.Tensor | None:
    """Positions [batch, positions]; of those of several axes [axes, batch, positions], which are one in a text, the first. Raises
    ContractError where they differ."""
    if positions is None or positions.dim() != 3:
        return positions
    if not len(positions) or not bool((positions == positions[0]).all()):
        raise ContractError("the model is compiled for text alone, whose positions are one along all axes; position_ids differ")
    return positions[0]
