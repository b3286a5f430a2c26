"""Decoders of transformers from their folders to tokens: whatever the engine batches, cuts into parts, shares, computes again,
brings from files or drafts, tokens are those of `generate()`."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    DiffLlamaConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GptOssConfig,
    GraniteSWAConfig,
    JetMoeConfig,
    Llama4TextConfig,
    LlamaConfig,
    MixtralConfig,
    MoshiConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    XGLMConfig,
)

from dhlo.errors import ContractError
from dhlo.serve.engine import Engine
from dhlo.serve.folder import BLOCK_SLOTS, Served, open_folder
from dhlo.serve.types import EngineOptions, EngineStats, FinishReason, Output, SamplingParams
from tests.checkpoints import change_weights, decoded_by_transformers, to_fp8, to_mxfp4
from tests.evicting import evicting_greedy
from tests.serving import byte_level

WORDS = 272
TOKENS = 24  # of each answer
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
LENGTHS = (70, 3, 41, 1, 57)  # of prompts; windows are shorter
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # so that they say more than one token over and over
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOWS = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
LATENTS = {"q_lora_rank": 12, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}


def experts(routed: int, groups: int) -> dict[str, Any]:
    each = {"moe_intermediate_size": 16, "n_routed_experts": routed, "num_experts_per_tok": 4, "n_shared_experts": 1}
    return each | {"n_group": groups, "topk_group": groups // 2, "first_k_dense_replace": 1}


CONFIGS: dict[str, Callable[[], Any]] = {
    # Rotary frequencies as Llama 3 has them, embeddings that are the head's weights, biases.
    "llama": lambda: LlamaConfig(
        **SMALL,
        rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, **LLAMA3},
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
    ),
    "qwen2": lambda: Qwen2Config(**SMALL),  # biases of queries, keys and values
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=16, rope_parameters=YARN),  # norms of queries and keys
    "qwen3_moe": lambda: Qwen3MoeConfig(**SMALL, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16),
    "gemma2": lambda: Gemma2Config(
        **SMALL, head_dim=16, **WINDOWS, attn_logit_softcapping=5.0, final_logit_softcapping=4.0, query_pre_attn_scalar=4
    ),
    "gemma3": lambda: Gemma3TextConfig(**SMALL, head_dim=16, **WINDOWS),
    # The last layers read keys and values of those before; several streams, embeddings of each layer.
    "gemma3n": lambda: Gemma3nTextConfig(
        **{**SMALL, "num_hidden_layers": 6, "intermediate_size": [48] * 6, "pad_token_id": 0},
        head_dim=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_kv_shared_layers=2,
        activation_sparsity_pattern=[0.95, 0.0] * 3,
        vocab_size_per_layer_input=WORDS,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=3,
    ),
    # The same sharing; and layers of wider heads whose values are their keys, beside experts.
    "gemma4": lambda: Gemma4TextConfig(
        **{**SMALL, "num_hidden_layers": 6, "pad_token_id": 0},
        head_dim=16,
        global_head_dim=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=WORDS,
        hidden_size_per_layer_input=8,
    ),
    "gemma4_experts": lambda: Gemma4TextConfig(
        **{**SMALL, "num_hidden_layers": 4, "pad_token_id": 0},
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=WORDS,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=16,
    ),
    # Layers whose tokens see their part of the text, and one without positions that scales its queries by them.
    "llama4": lambda: Llama4TextConfig(
        **{**SMALL, "num_hidden_layers": 4},
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=4,
        interleave_moe_layer_step=2,
        attention_chunk_size=24,
        layer_types=["chunked_attention", "full_attention", "chunked_attention", "chunked_attention"],
        no_rope_layers=[1, 0, 1, 1],
        floor_scale=16,
        attn_scale=0.5,
    ),
    "mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=4),
    # A sink for each head; experts of MXFP4.
    "gpt_oss": lambda: GptOssConfig(
        **{**SMALL, "hidden_size": 64, "intermediate_size": 96, "rope_parameters": YARN},
        **WINDOWS,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "phi": lambda: PhiConfig(**{**SMALL, "hidden_size": 64}, rope_parameters=PARTIAL),  # biases, norms with means
    "phi3": lambda: Phi3Config(**{**SMALL, "hidden_size": 64}, rope_parameters=PARTIAL, sliding_window=48),
    # Frequencies that change behind 200 positions, which is where the step ends.
    "phi3_long": lambda: Phi3Config(
        **SMALL,
        original_max_position_embeddings=200,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **FACTORS},
    ),
    "deepseek_v3": lambda: DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        **LATENTS,
        **experts(8, 4),
    ),
    # As many experts as the published model has, in as many groups, and one that all tokens share.
    "deepseek_v3_256": lambda: DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4, "num_hidden_layers": 3}, **LATENTS, **experts(256, 8)
    ),
    # Float8 in blocks of 32: linear layers, and experts each by itself, which transformers keeps together.
    "qwen3_float8": lambda: Qwen3Config(**{**SMALL, "hidden_size": 64, "intermediate_size": 96}, head_dim=16),
    "deepseek_v3_float8": lambda: DeepseekV3Config(
        **{**SMALL, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 4},
        **LATENTS,
        **experts(8, 4) | {"moe_intermediate_size": 32},
    ),
    # Differences of attention over all keys, with values of half of the heads each.
    "diffllama": lambda: DiffLlamaConfig(**{**SMALL, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "granite_swa": lambda: GraniteSWAConfig(**SMALL, **WINDOWS),  # what keys say is multiplied by their share beside a sink
    # Experts of attention as well, for whose queries all keys are repeated in turn.
    "jetmoe": lambda: JetMoeConfig(**SMALL, kv_channels=8, num_local_experts=4, num_experts_per_tok=2),
    # Masks are parts of constant matrices, one of them a band.
    "gpt_neo": lambda: GPTNeoConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=24,
        max_position_embeddings=512,
        initializer_range=0.15,
        **ENDS,
    ),
    # Layers forget what no mask hides: the step ends where tokens that come alone would see less.
    "moshi": lambda: MoshiConfig(**SMALL, head_dim=16, sliding_window=200),
    # Scores have batch and heads in one dim, and are no less than what hides keys.
    "xglm": lambda: XGLMConfig(
        vocab_size=WORDS,
        d_model=32,
        num_layers=2,
        attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=256,
        init_std=0.15,
        **ENDS,
    ),
    "gpt2": lambda: GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=200, **ENDS),
    "bloom": lambda: BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.15, **ENDS),
    "falcon": lambda: FalconConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        new_decoder_architecture=True,
        num_kv_heads=2,
        initializer_range=0.15,
        **ENDS,
    ),
}
FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [8.0, 8.0, 8.0, 8.0]}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
ENDS = {name: SMALL[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
DEFAULT = "gpt_oss"
# Why blocks can't be left out of sequences: windows and ALiBi; keys and values that are one.
POSITIONAL = (
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_experts",
    "gpt_neo",
    "granite_swa",
    "llama4",
    "gpt_oss",
    "phi3",
    "bloom",
)
WITHOUT_EVICTION = dict.fromkeys(POSITIONAL, "evict_to: what tokens of this model see")
WITHOUT_NORMS = dict.fromkeys(
    ("deepseek_v3", "deepseek_v3_256", "deepseek_v3_float8"), "evict_by: the model keeps keys and values in one"
)


@dataclass
class Folder:
    """A model's folder opened, and what the model itself says behind prompts."""

    name: str
    served: Served
    model: Any
    coded: int
    """Numbers of the model whose checkpoint holds codes of 4 bits, with a scale of 8 bits for 32 of them."""
    said: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def wanted(self, prompt: Sequence[int], tokens: int = TOKENS) -> list[int]:
        if tuple(prompt) not in self.said:
            ids = torch.tensor([prompt])
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
            self.said[tuple(prompt)] = out[0, len(prompt) :].tolist()
        return self.said[tuple(prompt)]

    def check(self, prompt: Sequence[int], output: Output) -> None:
        """Tokens are the model's own up to where two are as likely, and the most likely ones behind that."""
        (choice,) = output.choices
        assert choice.finish is FinishReason.LENGTH and len(choice.tokens) == TOKENS, choice
        if list(choice.tokens) == self.wanted(prompt):
            return
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([[*prompt, *choice.tokens]])).logits[0, len(prompt) - 1 : -1]
        short = logits.amax(-1) - logits.gather(1, torch.tensor(choice.tokens)[:, None])[:, 0]
        assert (short < 1e-4).all(), (choice.tokens, self.wanted(prompt), short)

    def block_bytes(self) -> int:
        sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
        pools = [x for x in self.served.step.inputs if x["name"].startswith(("keys", "values"))]
        return BLOCK_SLOTS * sum(x["sizes"][0] * x["sizes"][2] * sizes[x["dtype"]] for x in pools)

    def run(self, prompts: Sequence[Sequence[int]], blocks: int = 64, **options: Any) -> tuple[list[Output], EngineStats]:
        """What an engine with so many blocks of its own gives for prompts that come at once, which is checked; what it did."""
        made = EngineOptions(cache_bytes=blocks * self.block_bytes(), model_digest=self.served.digest, **options)
        with Engine(self.served.step, made) as engine:
            # The first token of the first waits until all are there.
            there = threading.Event()
            first = engine.submit(prompts[0], replace(GREEDY, constrain=lambda *_: there.wait(60)))
            others = [engine.submit(prompt, GREEDY) for prompt in prompts[1:]]
            there.set()
            outputs = [request.result() for request in (first, *others)]
        for prompt, output in zip(prompts, outputs, strict=True):
            self.check(prompt, output)
        return outputs, engine.stats()


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases, norms and sinks say something, too
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(
    scope="module", params=[name if name == DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in sorted(CONFIGS)]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("models") / request.param
    model = model_of(request.param)
    model.save_pretrained(path)
    byte_level(WORDS).save(str(path / "tokenizer.json"))
    coded = 0
    if request.param == "gpt_oss":
        coded, model = to_mxfp4(path), decoded_by_transformers(path)
    elif request.param.endswith("_float8"):
        decoded = shutil.copytree(path, path.with_name("decoded"))
        coded, numbers = to_fp8(path, 32)
        change_weights(decoded, lambda tensors: tensors.update(numbers))
        model = AutoModelForCausalLM.from_pretrained(decoded).eval()
    yield Folder(request.param, open_folder(path, cache=""), model, coded)


def prompts(*lengths: int, begin: Sequence[int] = ()) -> list[list[int]]:
    rng = random.Random(len(begin))
    return [[*begin, *(rng.randrange(WORDS) for _ in range(n))] for n in lengths]


def test_alone_and_together(folder: Folder) -> None:
    """Prompts that go in parts, beside others that decode."""
    given = prompts(*LENGTHS)
    folder.run(given[:1])
    _, stats = folder.run(given, max_step_tokens=32)
    assert stats.prompt_tokens == sum(LENGTHS) and stats.steps > sum(LENGTHS) // 32


@pytest.mark.parametrize("folder", ["gpt_oss"], indirect=True)
def test_codes_of_a_checkpoint_stay_codes(folder: Folder) -> None:
    other = sum(p.nbytes for p in folder.model.parameters()) - 4 * folder.coded
    coded = folder.coded // 2 + folder.coded // 32
    assert coded < folder.served.step.constants_bytes < coded + 1.1 * other


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["gpt2", "phi3_long", "moshi"], indirect=True)
def test_positions_that_end(folder: Folder) -> None:
    """In a table, where frequencies change or where layers forget, which no config need say to the engine."""
    served = folder.served
    assert served.max_positions == 200
    with Engine(served.step, EngineOptions(cache_bytes=64 * folder.block_bytes())) as engine:
        with pytest.raises(ContractError, match="200 positions"):
            engine.submit([1] * 200)
        (prompt,) = prompts(190)
        (choice,) = engine.generate([prompt], GREEDY)[0].choices
    assert choice.finish is FinishReason.LENGTH and list(choice.tokens) == folder.wanted(prompt, 10)


def test_beginnings_that_are_known(folder: Folder) -> None:
    (begin,) = prompts(50)
    options = EngineOptions(cache_bytes=64 * folder.block_bytes())
    with Engine(folder.served.step, options) as engine:
        for given in ([begin], prompts(20, 5, 1, begin=begin)):
            outputs = engine.generate(given, GREEDY)
            for prompt, output in zip(given, outputs, strict=True):
                folder.check(prompt, output)
    assert [output.cached_tokens for output in outputs] == [48, 48, 48]


def test_too_few_blocks(folder: Folder) -> None:
    """Choices give up their blocks and are computed again."""
    _, stats = folder.run(prompts(30, 31, 17), blocks=10, prefix_cache=False)
    assert stats.preemptions > 0


def test_blocks_from_files(folder: Folder, tmp_path: Path) -> None:
    given = prompts(*LENGTHS)
    options = {"cache_folder": str(tmp_path), "cache_folder_bytes": 1 << 24}
    folder.run(given, blocks=8, **options)
    outputs, stats = folder.run(given, **options)
    assert stats.tiers["folder"]["hits"] > 0 and sum(output.cached_tokens for output in outputs) > 0


def test_drafts_by_prompt_lookup(folder: Folder) -> None:
    """Of prompts that repeat themselves, and of what is said behind them. Whether a draft pays is measured: of a busy machine's
    steps it may not seem to."""
    given = [5 * p for p in prompts(13, 7)]
    given += [p + folder.wanted(p) + p for p in given]
    assert any(folder.run(given, prompt_lookup=5)[1].drafted_tokens > 0 for _ in range(5))


@pytest.mark.parametrize("by", ["recent", "norms"])
def test_eviction_inside_a_sequence(folder: Folder, by: Literal["recent", "norms"]) -> None:
    """Tokens are those of the model with the same blocks left out of its cache, where that can be."""
    options = EngineOptions(
        cache_bytes=64 * folder.block_bytes(),
        max_step_tokens=40,
        evict_to=5 * BLOCK_SLOTS,
        evict_sinks=1,
        evict_recent=1,
        evict_by=by,
    )
    why = WITHOUT_EVICTION.get(folder.name) or (by == "norms" and WITHOUT_NORMS.get(folder.name))
    if why:
        with pytest.raises(ContractError, match=why):
            Engine(folder.served.step, options)
        return
    given = prompts(150, 70, 3, 121)
    with Engine(folder.served.step, options) as engine:
        outputs = engine.generate(given, replace(GREEDY, max_tokens=40))
        stats = engine.stats()
    # Of the first 5 blocks go behind 80, 96, ... tokens, as far as there is one to come.
    assert stats.evicted_blocks == sum((n + 39 - 1) // BLOCK_SLOTS - 4 for n in (150, 70, 121))
    for prompt, output in zip(given, outputs, strict=True):
        said = output.choices[0].tokens
        likely, short = evicting_greedy(folder.model, options, prompt, said)
        assert len(said) == 40 and max(short) < 1e-4, (said, likely)
