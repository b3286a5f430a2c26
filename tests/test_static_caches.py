"""Modules of transformers over a StaticCache, whose caches are buffers, as steps over pools of blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram
from transformers import AutoModelForCausalLM, Gemma2Config, GenerationConfig, LlamaConfig, Qwen3Config
from transformers.integrations.executorch import (
    TorchExportableModuleForDecoderOnlyLM,
    TorchExportableModuleWithStaticCache,
    convert_and_export_with_cache,
)

import dhlo
from dhlo.errors import CompileError
from dhlo.serve.engine import Engine
from dhlo.serve.types import EngineOptions, SamplingParams
from tests.sequences import PAGE

VOCABULARY, SLOTS = 96, 64
PAGES = {"key_cache_*": PAGE, "value_cache_*": PAGE}
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


def model_of(config: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config, **more).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4)
    sizes = {"batch_size": 1, "max_cache_len": SLOTS}
    made.generation_config = GenerationConfig(
        use_cache=True, cache_implementation="static", cache_config=sizes, max_length=SLOTS, eos_token_id=None, pad_token_id=0
    )
    return made


def exported(model: Any) -> ExportedProgram:
    """As transformers' own export of vision-language models does it."""
    tokens = Dim("tokens", max=SLOTS - 1)
    made = TorchExportableModuleForDecoderOnlyLM(model, batch_size=1, max_cache_len=SLOTS)
    shapes = {"input_ids": {1: tokens}, "cache_position": {0: tokens}}
    return made.export(torch.zeros(1, 3, dtype=torch.int64), cache_position=torch.arange(3), dynamic_shapes=shapes, strict=False)


def converted(model: Any) -> ExportedProgram:
    tokens = Dim("tokens", max=SLOTS - 1)
    shapes = {"input_ids": {1: tokens}, "cache_position": {0: tokens}}
    ids, at = torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)
    return convert_and_export_with_cache(model, ids, at, dynamic_shapes=shapes, strict=False)


def check(model: Any, program: ExportedProgram) -> None:
    """Prompts in parts, together, and longer than the cache was: greedy tokens are the model's."""
    step = dhlo.compile(program, pages=PAGES)
    assert [v["name"] for v in step.native.inputs if v["name"] in ("cache_position", "input_ids")] == ["input_ids"]
    assert not step.native.states
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(n)] for n in (SLOTS + 30, 1, 7, 33)]
    with Engine(step, EngineOptions(cache_bytes=1 << 18, max_step_tokens=80)) as engine:
        outputs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=20))
    for prompt, output in zip(prompts, outputs, strict=True):
        (choice,) = output.choices
        assert len(choice.tokens) == 20, choice
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *choice.tokens]])).logits[0, len(prompt) - 1 : -1]
        given = logits.gather(1, torch.tensor(choice.tokens)[:, None])[:, 0]
        assert (given >= logits.max(-1).values - 1e-3).all()


def test_a_decoder_over_a_static_cache() -> None:
    model = model_of(LlamaConfig(**SMALL))
    check(model, exported(model))


@pytest.mark.slow
@pytest.mark.parametrize("program", [exported, converted])
@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (LlamaConfig(**SMALL), "sdpa"),
        (LlamaConfig(**SMALL), "eager"),
        (Qwen3Config(**SMALL), "sdpa"),
        (Gemma2Config(**SMALL, sliding_window=24), "eager"),
    ],
    ids=lambda x: getattr(x, "model_type", x),
)
def test_modules_over_a_static_cache(config: Any, attention: str, program: Callable[[Any], ExportedProgram]) -> None:
    model = model_of(config, attn_implementation=attention)
    check(model, program(model))


def test_a_step_of_one_token_is_refused() -> None:
    with pytest.raises(CompileError, match="takes 1 new token at each call[\\s\\S]*export it with a dynamic number"):
        dhlo.compile(convert_and_export_with_cache(model_of(LlamaConfig(**SMALL)), strict=False), pages=PAGES)


def test_what_else_is_kept_is_named() -> None:
    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TorchExportableModuleWithStaticCache(model_of(LlamaConfig(**SMALL)))
            self.sums = torch.nn.Buffer(torch.zeros(96))

        def forward(self, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
            logits = self.inner(input_ids=input_ids, cache_position=cache_position)
            self.sums += logits.sum((0, 1))
            return logits

    tokens = Dim("tokens", max=SLOTS - 1)
    args = torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)
    program = torch.export.export(Keeps(), args, dynamic_shapes=({1: tokens}, {0: tokens}), strict=False)
    with pytest.raises(CompileError, match=r"keeps 'sums' beside its caches[\s\S]*test_static_caches.py:"):
        dhlo.compile(program, pages={"*key_cache_*": PAGE, "*value_cache_*": PAGE})


def test_counts_that_are_read_are_named() -> None:
    """What positions say isn't kept: a program that reads it would read what it was at first."""

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TorchExportableModuleWithStaticCache(model_of(LlamaConfig(**SMALL)))
            self.filled = torch.nn.Buffer(torch.zeros(1, dtype=torch.int64))

        def forward(self, input_ids: torch.Tensor, cache_position: torch.Tensor) -> torch.Tensor:
            logits = self.inner(input_ids=input_ids, cache_position=cache_position) + self.filled
            self.filled.copy_(cache_position[-1:] + 1)
            return logits

    tokens = Dim("tokens", max=SLOTS - 1)
    args = torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)
    program = torch.export.export(Counts(), args, dynamic_shapes=({1: tokens}, {0: tokens}), strict=False)
    with pytest.raises(CompileError, match=r"reads 'filled', in which it counts tokens[\s\S]*test_static_caches.py:"):
        dhlo.compile(program, pages={"*key_cache_*": PAGE, "*value_cache_*": PAGE})
