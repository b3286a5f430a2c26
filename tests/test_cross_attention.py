"""Encoder-decoders in the engine: tokens beside transformers' `generate()`, whatever is batched, preempted, shared or drafted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationMixin, WhisperConfig, WhisperForConditionalGeneration

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.integrations.encoder_decoder import cross_step_pages, cross_step_program, source_program
from dhlo.model import CompiledModel
from dhlo.options import LoraOptions
from dhlo.serve.engine import Engine, _digest
from dhlo.serve.folder import need_decoder, open_folder
from dhlo.serve.types import EngineOptions, FinishReason, SamplingParams
from tests.serving import WORDS, held, make_folder
from tests.test_encoder_decoder import model_of

POSITIONS, VOCABULARY = 20, WORDS  # of a source: no whole number of blocks, and fewer than a prompt may have tokens
LENGTHS = (20, 15, 37, 4, 1)
START = 3
GREEDY = SamplingParams(temperature=0, max_tokens=16)
Inputs = dict[str, Any]


def whisper() -> Any:
    """Random weights of a scale with which tokens vary."""
    torch.manual_seed(0)
    tokens = dict(vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=None, decoder_start_token_id=START)
    layers = dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes = dict(d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=POSITIONS)
    none = dict(suppress_tokens=None, begin_suppress_tokens=None)
    model = WhisperForConditionalGeneration(WhisperConfig(**tokens, **layers, **sizes, **none, max_target_positions=96))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.3)
    return model.eval()


def generated(model: Any, prompt: list[int], features: np.ndarray, max_tokens: int = 16, **how: Any) -> list[list[int]]:
    """What transformers goes on with: Whisper's own `generate` adds tokens to a prompt."""
    given = {"input_features": torch.tensor(features), "decoder_input_ids": torch.tensor([prompt])}
    out = GenerationMixin.generate(model, **given, max_new_tokens=max_tokens, do_sample=False, **how)
    return [row[len(prompt) :] for row in out.tolist()]


class Case:
    """A compiled Whisper, and what it says of prompts and features."""

    def __init__(self) -> None:
        self.model = whisper()
        programs = {"decoder": cross_step_program(self.model), "encoder": source_program(self.model)}
        self.compiled: CompiledModel = dhlo.compile(programs, pages=cross_step_pages(16))
        r = np.random.default_rng(0)
        self.prompts: list[list[int]] = [[START, *r.integers(4, VOCABULARY, n - 1).tolist()] for n in LENGTHS]
        self.inputs: list[Inputs] = [
            {"input_features": r.standard_normal((1, 8, 2 * POSITIONS), dtype=np.float32)} for _ in LENGTHS
        ]
        self.wanted = [generated(self.model, p, x["input_features"])[0] for p, x in zip(self.prompts, self.inputs, strict=True)]

    def engine(self, **options: Any) -> Engine:
        return Engine(
            self.compiled["decoder"], EngineOptions(**{"encoder": self.compiled["encoder"], "cache_bytes": 1 << 20} | options)
        )


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 9, "max_sequences": 3},
        {"max_step_tokens": 1, "max_sequences": 1},
        {"prefix_cache": False, "prompt_lookup": 4},
    ],
    ids=["at once", "in parts", "one by one", "drafts"],
)
def test_tokens_are_those_of_generate(case: Case, options: dict[str, Any]) -> None:
    assert len({t for tokens in case.wanted for t in tokens}) > 10
    with case.engine(**options) as engine:
        for _ in range(2):
            outputs = engine.generate(case.prompts, GREEDY, case.inputs)
            assert [list(x.choices[0].tokens) for x in outputs] == case.wanted
        stats = engine.stats()
        assert (stats.preemptions, stats.encoded) == (0, 2 * len(LENGTHS))


@pytest.mark.parametrize("options", [{}, {"preemption": "swap", "max_step_tokens": 20}], ids=["preempted", "swapped"])
def test_tokens_after_preemption(case: Case, options: dict[str, Any]) -> None:
    """Prompts of a length, each of which comes to want all of the blocks: whatever comes first, some are preempted."""
    prompts = [[START, *range(4 + i, 18 + i)] for i in range(4)]
    wanted = [generated(case.model, p, x["input_features"], 40)[0] for p, x in zip(prompts, case.inputs, strict=False)]
    with case.engine(cache_bytes=4 * 16 * 512, **options) as engine:
        for _ in range(2):
            with held(engine, [START], case.inputs[0]):
                params = SamplingParams(temperature=0, max_tokens=40)
                together = [engine.submit(p, params, x) for p, x in zip(prompts, case.inputs, strict=False)]
            assert [list(request.result(60).choices[0].tokens) for request in together] == wanted
        stats = engine.stats()
        assert stats.preemptions > 0
        assert (stats.swaps > 0) == ("preemption" in options)
        assert 10 <= stats.encoded <= 10 + stats.preemptions


def test_what_is_about_another_source_is_not_shared(case: Case) -> None:
    """Nor is that under another salt; what is about the same one is."""
    prompt, (one, other) = case.prompts[2], case.inputs[:2]
    wanted = [generated(case.model, prompt, x["input_features"])[0] for x in (one, other)]
    assert wanted[0] != wanted[1]
    with case.engine() as engine:
        for inputs, want, cached in ((one, 0, 0), (other, 1, 0), (one, 0, 32), (other, 1, 32)):
            (output,) = engine.generate([prompt], GREEDY, [inputs])
            assert list(output.choices[0].tokens) == wanted[want]
            assert output.cached_tokens == cached


def test_choices_and_beams_attend_to_one_source(case: Case) -> None:
    with case.engine() as engine:
        choices = engine.generate(case.prompts[:2], SamplingParams(temperature=0, max_tokens=16, n=3), case.inputs[:2])
        assert [list(c.tokens) for x in choices for c in x.choices] == [case.wanted[0]] * 3 + [case.wanted[1]] * 3
        assert engine.stats().encoded == 2
        (beams,) = engine.generate(case.prompts[:1], SamplingParams(beam_width=3, n=2, max_tokens=16), case.inputs[:1])
    want = generated(case.model, case.prompts[0], case.inputs[0]["input_features"], num_beams=3, num_return_sequences=2)
    assert [list(c.tokens) for c in beams.choices] == want


def test_inputs_that_the_encoder_doesnt_take_are_refused(case: Case) -> None:
    right = case.inputs[0]["input_features"]
    refused: list[tuple[Any, str]] = [
        (None, "needs 'input_features'"),
        ({}, "needs 'input_features'"),
        ({"features": right}, "takes no 'features'"),
        ({"input_features": right, "more": right}, "takes 1, got 2"),
        ({"input_features": right.astype(np.float64)}, "is of float32, got float64"),
        ({"input_features": right[0]}, r"is \[1, 8, 40\], got \[8, 40\]"),
        ({"input_features": right[:, :, :39].copy()}, r"is \[1, 8, 40\], got \[1, 8, 39\]"),
        ({"input_features": right[:0]}, r"got \[0, 8, 40\]"),
        ({"input_features": right.transpose(0, 2, 1)}, "lie in a row"),
        ({"input_features": right.astype(np.complex64)}, "format"),
        ({"input_features": [1.0]}, "got a list"),
    ]
    with case.engine() as engine:
        for inputs, text in refused:
            with pytest.raises(ContractError, match=text):
                engine.submit(case.prompts[0], GREEDY, inputs)
        with pytest.raises(ContractError, match="inputs: those of each of 2 prompts"):
            engine.generate(case.prompts[:2], GREEDY, case.inputs[:1])
        (output,) = engine.generate(case.prompts[:1], GREEDY, case.inputs[:1])
        assert list(output.choices[0].tokens) == case.wanted[0]


def test_models_that_dont_go_together_are_refused(case: Case) -> None:
    decoder, encoder = case.compiled["decoder"], case.compiled["encoder"]
    for options, text in (
        ({"encoder": None}, "it needs an encoder"),
        ({"encoder": decoder}, "no encoder"),
        ({"draft_model": decoder}, "draft_model: it has cross attention"),
    ):
        with pytest.raises(ContractError, match=text):
            case.engine(**options)
    with pytest.raises(ContractError, match="no step"):
        Engine(encoder, EngineOptions())
    room = LoraOptions(max_rank=2, max_adapters=1)
    adapted = dhlo.compile(cross_step_program(case.model), pages=cross_step_pages(16), lora=room)
    with pytest.raises(ContractError, match="cross attention and room for adapters"):
        Engine(adapted, EngineOptions(encoder=encoder))


class Table(torch.nn.Module):
    """An encoder of one's own: rows of a table, for two layers of 4 heads of 8 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(50, 4, 4, 8))

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return list(self.rows[ids].permute(1, 2, 0, 3)[:, None].unbind(0))


def test_a_source_that_cant_be_computed_ends_its_request_alone(case: Case) -> None:
    table = dhlo.compile(torch.export.export(Table(), (torch.arange(7),)))
    with case.engine(encoder=table, max_step_tokens=16) as engine:
        ids = [np.arange(7), np.array([1, 2, 3, 4, 5, 6, 50]), np.arange(7, 14)]
        outputs = engine.generate([[5, 6, 7]] * 3, GREEDY, [{"ids": x} for x in ids])
        assert [x.choices[0].finish for x in outputs] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
        assert outputs[1].choices[0].error.startswith("the encoder failed: ")
        assert outputs[0].choices[0].tokens != outputs[2].choices[0].tokens
        again = engine.generate([[5, 6, 7]], GREEDY, [{"ids": ids[2]}])
        assert again[0].choices == outputs[2].choices


class Picked(Table):
    """Gives as many positions as there are ids that aren't 0: data tells it."""

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return super().forward(ids[ids.nonzero()[:, 0]])


class Mixed(Table):
    """Of two layers, one has always as many positions."""

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return [*super().forward(torch.arange(7) + 0 * ids[0])[:2], *super().forward(ids)[2:]]


class Slow(Table):
    """Takes seconds for thousands of ids."""

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        square = ids[:, None].float() + ids
        for _ in range(30):
            square = torch.tanh(square @ square)
        return [x + square[:, :1] for x in super().forward(ids)]


@pytest.fixture(scope="module")
def tables() -> CompiledModel:
    """Encoders of any number of positions."""
    args, dims = (torch.arange(6),), ({0: torch.export.Dim("n", min=1, max=1 << 40)},)
    kinds = {"table": Table, "picked": Picked, "mixed": Mixed, "slow": Slow}
    return dhlo.compile({k: torch.export.export(kind(), args, dynamic_shapes=dims) for k, kind in kinds.items()})


def test_sources_that_have_no_room_are_refused(case: Case, tables: CompiledModel) -> None:
    """Before the encoder runs, where sizes alone tell."""
    for name, room, early in (("table", 8, True), ("picked", 8, False), ("mixed", None, True)):
        with case.engine(encoder=tables[name], max_source_positions=room) as engine:
            fits = room or 7
            (output,) = engine.generate([[5, 6, 7]], GREEDY, [{"ids": np.arange(1, 1 + fits)}])
            assert output.choices[0].finish == FinishReason.LENGTH
            more, text = {"ids": np.arange(1, 2 + fits)}, f"the source has {fits + 1} positions, and there is room for {fits}"
            if early:
                with pytest.raises(ContractError, match=text):
                    engine.submit([5, 6, 7], GREEDY, more)
            else:
                (output,) = engine.generate([[5, 6, 7]], GREEDY, [more])
                assert text in output.choices[0].error
            assert engine.stats().encoded == 1 + (not early)
    with case.engine(encoder=tables["mixed"]) as engine:
        (output,) = engine.generate([[5, 6, 7]], GREEDY, [{"ids": np.arange(5)}])
        assert "its first output has 7 positions, and output 2 has 5" in output.choices[0].error
    for room, text in ((8, "the encoder gives 7 of them, always"), (1 << 30, "is from 0 to 1073741823")):
        with pytest.raises(ContractError, match=text):
            case.engine(encoder=tables["mixed"], max_source_positions=room)


def test_closing_stops_what_is_encoded(case: Case, tables: CompiledModel) -> None:
    """And what would come behind it: other sources, and the step."""
    with case.engine(encoder=tables["slow"], max_source_positions=2048) as engine:
        requests = [engine.submit([5, 6, 7], GREEDY, {"ids": np.full(2048, i)}) for i in range(3)]
        time.sleep(0.2)  # most likely the first is on its way
        engine.close()
        assert [r.result().choices[0].finish for r in requests] == [FinishReason.CANCELLED] * 3
        assert engine.stats().steps == 0
        assert engine.stats().encoded <= 1


def test_memory_of_sources_is_bounded(case: Case, tables: CompiledModel) -> None:
    """A source of 10,000,000 positions takes 5 GB."""
    options = {"encoder": tables["table"], "max_source_positions": 10_000_000}
    with pytest.raises(ContractError, match="max_sequences: the sources of 256 take 5120000000 bytes each"):
        case.engine(max_sequences=256, **options)
    with case.engine(**options) as engine:
        with pytest.raises(ContractError, match="^n "):
            engine.submit([5, 6, 7], SamplingParams(n=256), {"ids": np.arange(7)})
        (output,) = engine.generate([[5, 6, 7]], GREEDY, [{"ids": np.arange(7)}])
        assert output.choices[0].finish == FinishReason.LENGTH


def test_kept_blocks_are_of_an_encoder_too(case: Case, tables: CompiledModel) -> None:
    step = case.compiled["decoder"]
    same, other = (
        _digest(step, EngineOptions(cache_folder="kept", encoder=x)) for x in (case.compiled["encoder"], tables["table"])
    )
    assert same == step.digest()
    assert len(other) == 32
    assert other not in (same, tables.digest())
    with pytest.raises(ContractError, match="needs model_digest"):
        _digest(step, EngineOptions(cache_folder="kept", encoder=tables["table"].native))


class Masked(torch.nn.Module):
    """A step that doesn't see all of a source."""

    def forward(self, input_ids: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cross: torch.Tensor) -> Any:
        x = torch.nn.functional.one_hot(input_ids, 8).float()[:, None]
        own = torch.arange(x.shape[2])[:, None] + keys.shape[2]
        keys, values = torch.cat([keys, x], 2), torch.cat([values, x], 2)
        y = torch.nn.functional.scaled_dot_product_attention(x, keys, values, torch.arange(keys.shape[2])[None] <= own)
        seen = torch.arange(cross.shape[2]) > 2
        return torch.nn.functional.scaled_dot_product_attention(y, cross, cross, attn_mask=seen[None]), keys, values


def test_a_source_that_isnt_seen_whole_is_refused() -> None:
    two, grows = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
    args = (torch.zeros(2, 3, dtype=torch.int64), *(torch.rand(2, 1, 5, 8) for _ in range(2)), torch.rand(2, 1, 6, 8))
    program = torch.export.export(Masked(), args, dynamic_shapes=(two, grows, grows, grows))
    with pytest.raises(CompileError, match="over a source hides some of its keys"):
        dhlo.compile(program, pages={"keys": 16, "values": 16, "cross": 16})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "marian"])
def test_texts_of_any_length(name: str) -> None:
    model = model_of(name)
    programs = {"decoder": cross_step_program(model), "encoder": source_program(model)}
    compiled = dhlo.compile(programs, pages=cross_step_pages(16))
    r = np.random.default_rng(1)
    inputs = [{"input_ids": r.integers(4, 99, (1, n))} for n in (5, 1, 33, 16, 40)]
    prompts = [[START, *r.integers(4, 99, n - 1).tolist()] for n in LENGTHS]
    wanted = list[list[int]]()
    for prompt, x in zip(prompts, inputs, strict=True):
        given = {"input_ids": torch.tensor(x["input_ids"]), "decoder_input_ids": torch.tensor([prompt])}
        with torch.no_grad():
            out = model.generate(**given, max_new_tokens=16, do_sample=False, eos_token_id=None)
        wanted.append(out[0].tolist()[-16:])
    for options in ({}, {"max_step_tokens": 9}, {"cache_bytes": 4 * 16 * 512}):
        how = {"cache_bytes": 1 << 20, "encoder": compiled["encoder"], "max_source_positions": 40} | options
        with Engine(compiled["decoder"], EngineOptions(**how)) as engine:
            outputs = engine.generate(prompts, GREEDY, inputs)
            assert [list(x.choices[0].tokens) for x in outputs] == wanted
            with pytest.raises(ContractError, match="41 positions, and there is room for 40"):
                engine.submit(prompts[0], GREEDY, {"input_ids": r.integers(4, 99, (1, 41))})
    with pytest.raises(ContractError, match="max_source_positions: the encoder gives any number"):
        Engine(compiled["decoder"], EngineOptions(encoder=compiled["encoder"]))


def test_a_folder_of_an_encoder_decoder_is_no_decoder(tmp_path: Path, case: Case) -> None:
    make_folder(tmp_path)
    need_decoder(tmp_path)
    case.model.config.save_pretrained(tmp_path)
    with pytest.raises(ContractError, match="holds an encoder-decoder, where a decoder is needed"):
        need_decoder(tmp_path)


@pytest.mark.slow
def test_a_folder(tmp_path: Path, case: Case) -> None:
    make_folder(tmp_path)  # a tokenizer, and a model whose place this one takes
    case.model.save_pretrained(tmp_path)
    for kv_cache in ("", "bf16"):
        served = open_folder(tmp_path, kv_cache=kv_cache, cache=str(tmp_path / "steps"))
        assert served.max_positions == 96
        with Engine(served.step, EngineOptions(encoder=served.encoder, cache_bytes=1 << 20)) as engine:
            outputs = engine.generate(case.prompts, GREEDY, case.inputs)
        if not kv_cache:
            assert [list(x.choices[0].tokens) for x in outputs] == case.wanted
    with pytest.raises(CompileError, match="encoder-decoder, which has no room for adapters"):
        open_folder(tmp_path, lora=LoraOptions(max_rank=4, max_adapters=2))
    with pytest.raises(CompileError, match="no plan how several processes share"):
        open_folder(tmp_path, shard=(0, 2))
