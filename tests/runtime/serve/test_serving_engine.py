"""The serving engine beside the model itself, run eagerly over whole sequences: whatever is batched, cut into parts, shared or
computed again, tokens and log-probabilities are those of each sequence alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import dhlo
from dhlo.commands.flags import cmake_dir, host_flags
from dhlo.errors import ContractError, DeadlineError, DhloError
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine, Request
from dhlo.serve.types import Choice, EngineOptions, FinishReason, Output, QueueFullError, SamplingParams
from tests.conftest import ROOT
from tests.evicting import evicting_greedy
from tests.sequences import PAGE
from tests.serving import held

VOCABULARY = 96
BLOCK_BYTES = 2 * 2 * 2 * 8 * 4 * PAGE  # keys and values of 2 layers, 2 heads of 8 floats
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, logprobs=3)
# Every test of requests goes on for long enough if they never end.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(scope="module")
def draft_step(model: Any) -> CompiledModel:
    """Of the model's first layer alone, which is right now and then."""
    smaller = AutoModelForCausalLM.from_config(LlamaConfig(**model.config.to_diff_dict() | {"num_hidden_layers": 1})).eval()
    smaller.load_state_dict(model.state_dict(), strict=False)
    return dhlo.compile(step_program(smaller), pages={"keys*": PAGE, "values*": PAGE})


def prompts(rng: random.Random, *lengths: int) -> list[list[int]]:
    return [[rng.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


def check_greedy(model: Any, prompt: Sequence[int], choice: Choice) -> None:
    """Each token is the most likely one behind those before it, up to rounding."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *choice.tokens]])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1)
    given = logprobs.gather(1, torch.tensor(choice.tokens)[:, None])[:, 0]
    assert (given >= logprobs.max(-1).values - 1e-4).all()
    if choice.logprobs:
        torch.testing.assert_close(torch.tensor([x.logprob for x in choice.logprobs]), given, rtol=0, atol=1e-4)
        want = logprobs.topk(len(choice.logprobs[0].top)).values
        torch.testing.assert_close(torch.tensor([[v for _, v in x.top] for x in choice.logprobs]), want, rtol=0, atol=1e-4)


def test_blocks_in_a_folder(model: Any, step: CompiledModel, tmp_path: Path) -> None:
    """What an engine kept is known to the next one on its folder; files that are damaged cost their tokens."""
    folder = tmp_path / "blocks"
    options = EngineOptions(cache_bytes=64 * BLOCK_BYTES, cache_folder=str(folder), cache_folder_bytes=1 << 24)
    [prompt] = prompts(random.Random(7), 6 * PAGE + 1)
    with Engine(step, options) as first:
        first.generate([prompt], GREEDY)
    assert first.stats().tiers["folder"]["blocks"] == 7  # with what was said
    for known in (6 * PAGE, 0):
        with Engine(step, options) as engine:
            [output] = engine.generate([prompt], GREEDY)
            assert output.cached_tokens == known
            check_greedy(model, prompt, output.choices[0])
        for path in folder.glob("*.kv"):
            path.write_bytes(path.read_bytes()[:-200] + bytes(200))
        assert list(folder.glob("*.kv"))
    with Engine(step.native, replace(options, model_digest=bytes(32))) as other:  # another model's, as it says
        assert other.generate([prompt], GREEDY)[0].cached_tokens == 0
    for wrong, message in (
        ({"cache_folder_bytes": 0}, "folder_bytes must be positive"),
        ({"cache_folder": ""}, "cache_folder is empty"),
        ({"cache_folder": "a\0b"}, "null"),
        ({"cache_folder_bytes": 2**63}, "int"),
        ({"model_digest": b"short"}, "32 bytes, got 5"),
        ({"prefix_cache": False}, "nothing without `prefix`"),
    ):
        with pytest.raises(ContractError, match=message):
            Engine(step, replace(options, **wrong))
    with pytest.raises(ContractError, match="needs model_digest"):
        Engine(step.native, options)


SERVE = """
import json, sys
from pathlib import Path
from dhlo.loading import digest_of, open_model
from dhlo.serve.engine import Engine
from dhlo.serve.types import EngineOptions, SamplingParams
path, folder, cache_bytes, prompt = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
options = EngineOptions(
    cache_bytes=cache_bytes, cache_folder=folder, cache_folder_bytes=1 << 24, model_digest=digest_of(Path(path))
)
with Engine(open_model(path), options) as engine:
    [output] = engine.generate([prompt], SamplingParams(temperature=0.0))
    stats = engine.stats()
print(json.dumps([output.choices[0].tokens, output.cached_tokens, stats.prompt_tokens, stats.tiers["folder"]["hits"]]))
"""


def test_another_process_finds_blocks(step: CompiledModel, tmp_path: Path) -> None:
    [prompt] = prompts(random.Random(8), 1000)
    step.save(tmp_path / "step.so")
    command = [sys.executable, "-c", SERVE, tmp_path / "step.so", tmp_path / "blocks", 70 * BLOCK_BYTES, json.dumps(prompt)]
    said = [json.loads(subprocess.check_output([str(c) for c in command], timeout=120)) for _ in range(2)]
    blocks = 999 // PAGE
    assert [s[1:] for s in said] == [[0, 1000, 0], [blocks * PAGE, 1000 - blocks * PAGE, blocks]]
    assert said[0][0] == said[1][0]


def damage(folder: Path) -> None:
    for path in folder.glob("*.kv"):
        path.write_bytes(bytes(path.stat().st_size))


def take_away(folder: Path) -> None:
    """Renamed before it is deleted: the engine's thread may be writing into it, and nothing new comes under the other name."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    shutil.rmtree(aside)


def replace_by_file(folder: Path) -> None:
    """The engine makes the folder again as soon as it misses it: tried until the file was first."""
    file = folder.with_name("file")
    file.write_text("")
    for _ in range(1000):
        take_away(folder)
        try:
            file.rename(folder)
        except IsADirectoryError:
            continue
        return
    raise AssertionError("the engine was always first")


def test_a_folder_that_breaks_while_in_use(model: Any, step: CompiledModel, tmp_path: Path) -> None:
    """Tokens stay right, and nothing fails."""
    folder = tmp_path / "blocks"
    options = EngineOptions(cache_bytes=10 * BLOCK_BYTES, cache_folder=str(folder), cache_folder_bytes=1 << 24)
    given = prompts(random.Random(9), *[5 * PAGE + 3] * 4)
    params = replace(GREEDY, max_tokens=4, logprobs=None)

    def all_right() -> list[int]:
        """Tokens of each that were known."""
        outputs = [engine.generate([p], params)[0] for p in given]
        for prompt, output in zip(given, outputs, strict=True):
            check_greedy(model, prompt, output.choices[0])
        return [output.cached_tokens for output in outputs]

    with Engine(step, options) as engine:
        assert all_right() == [0] * 4
        assert all_right() == [5 * PAGE] * 4
        for harm in (damage, lambda f: f.chmod(0o500), take_away, replace_by_file, lambda f: f.unlink()):
            harm(folder)
            all_right()
        assert engine.stats().tiers["folder"]["failures"] > 0
        assert all_right() == [5 * PAGE] * 4  # the folder is there again


def check_empty(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_greedy_as_transformers(model: Any, step: CompiledModel) -> None:
    given = prompts(random.Random(0), 5, 1, 30, 100, 17)
    with Engine(step, EngineOptions(cache_bytes=64 * BLOCK_BYTES)) as engine:
        for prompt, output in zip(given, engine.generate(given, GREEDY), strict=True):
            ids = torch.tensor([prompt])
            want = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=20,
                do_sample=False,
                eos_token_id=VOCABULARY,
                pad_token_id=0,
            )
            (choice,) = output.choices
            assert choice.finish is FinishReason.LENGTH and len(choice.tokens) == 20 == len(choice.logprobs)
            check_greedy(model, prompt, choice)
            assert list(choice.tokens) == want[0, len(prompt) :].tolist()
        stats = engine.stats()
        assert stats.generated_tokens == 100 and stats.prompt_tokens == 153 and stats.finished["length"] == 5
        check_empty(engine)


@pytest.mark.parametrize(
    ("seed", "blocks", "step_tokens", "lookup"), [(0, 14, 16, 0), (1, 14, 512, 3), (2, 40, 33, 5), (3, 200, 64, 0), (4, 14, 64, 0)]
)
def test_mixes(model: Any, step: CompiledModel, seed: int, blocks: int, step_tokens: int, lookup: int) -> None:
    """Requests of all lengths and priorities, some of which begin alike, through pools that are too small for all."""
    rng = random.Random(seed)
    beginnings = prompts(rng, 40, 70)
    options = EngineOptions(cache_bytes=blocks * BLOCK_BYTES, max_step_tokens=step_tokens, max_sequences=8, prompt_lookup=lookup)
    if seed == 4:
        options = replace(options, preemption="swap", swap_bytes=10 * BLOCK_BYTES)
    with Engine(step, options) as engine:
        requests = list[tuple[list[int], Request]]()
        for _ in range(40):
            (rest,) = prompts(rng, rng.choice((1, 3, 17, 60)))
            prompt = [*rng.choice([[], *beginnings]), *rest]
            params = replace(GREEDY, max_tokens=rng.choice((1, 5, 40)), priority=rng.randrange(3), n=rng.choice((1, 1, 3)))
            requests.append((prompt, engine.submit(prompt, params)))
        for prompt, request in requests:
            output = request.result(60)
            assert output.prompt_tokens == len(prompt)
            for choice in output.choices:
                assert choice.finish is FinishReason.LENGTH and len(choice.tokens) == request.params.max_tokens, choice.error
                check_greedy(model, prompt, choice)
        alike = prompts(rng, *[15] * 8)  # begun with a block each, they come to want four
        with held(engine):
            together = [engine.submit(prompt, replace(GREEDY, max_tokens=40)) for prompt in alike]
        for prompt, request in zip(alike, together, strict=True):
            check_greedy(model, prompt, request.result(60).choices[0])
        stats = engine.stats()
        assert stats.cached_tokens > 0
        assert stats.preemptions > 0 or blocks > 20
        assert (stats.swaps > 0) == (seed == 4) and stats.swapped_bytes == 0
        assert (stats.drafted_tokens > 0) == (lookup > 0) and stats.accepted_tokens <= stats.drafted_tokens
        check_empty(engine)


@pytest.mark.parametrize(
    ("by", "blocks", "step_tokens", "to", "options"),
    [
        ("recent", 12, 24, 4, {}),
        ("norms", 12, 64, 5, {"preemption": "swap", "swap_bytes": 20 * BLOCK_BYTES, "evict_sinks": 0, "evict_recent": 2}),
        ("norms", 40, 50, 16, {"prompt_lookup": 5}),
    ],
)
def test_eviction_inside_sequences(
    model: Any, step: CompiledModel, by: Any, blocks: int, step_tokens: int, to: int, options: dict[str, Any]
) -> None:
    """Requests that are longer than the pools, some of which begin alike, say what the model says with the same blocks left out,
    whatever is in a step with them, drafted, swapped out or computed again."""
    rng = random.Random(to)
    (beginning,) = prompts(rng, 100)
    made = EngineOptions(
        cache_bytes=blocks * BLOCK_BYTES, max_step_tokens=step_tokens, max_sequences=6, evict_to=to * PAGE, evict_by=by, **options
    )
    with Engine(step, made) as engine:
        with pytest.raises(ContractError, match=r"beam_width: doesn't go with .* \(evict_to\)"):
            engine.submit(beginning, SamplingParams(beam_width=2))
        engine.generate([[*beginning, 1]], replace(GREEDY, max_tokens=1))
        requests = list[tuple[list[int], Request]]()
        with held(engine):
            for length in (1, 60, 17 * PAGE, 200, 10, 3 * PAGE, 30, 90):
                prompt = [*rng.choice([[], beginning]), *prompts(rng, length)[0]]
                params = replace(GREEDY, max_tokens=60, n=rng.choice((1, 3)), logprobs=None, priority=-len(requests))
                requests.append((prompt, engine.submit(prompt, params)))
        for prompt, request in requests:
            for choice in request.result(60).choices:
                assert choice.finish is FinishReason.LENGTH, choice.error
                likely, short = evicting_greedy(model, made, prompt, choice.tokens)
                assert max(short) < 1e-3, (choice.tokens, likely)
        stats = engine.stats()
        assert stats.evicted_blocks > 5 and stats.cached_tokens > 0
        assert stats.preemptions > 0 or blocks > 20
        assert (stats.swaps > 0) == ("swap_bytes" in options) and (stats.drafted_tokens > 0) == ("prompt_lookup" in options)
        check_empty(engine)


def test_draft_model(model: Any, step: CompiledModel, draft_step: CompiledModel) -> None:
    """Tokens are those that the model would have said, greedy and sampled, in pools that are too small for all."""
    rng = random.Random(6)
    given = prompts(rng, *[rng.choice((1, 3, 17, 60)) for _ in range(20)])
    small = EngineOptions(cache_bytes=14 * BLOCK_BYTES, max_step_tokens=24, max_sequences=8, draft_model=draft_step)
    sampled = SamplingParams(max_tokens=30, temperature=0.7, top_p=0.9, seed=3, n=2, repetition_penalty=1.1)
    with Engine(step) as alone, Engine(step, small) as drafting:
        want = alone.generate(given[:5], sampled)
        params = [sampled if i < 5 else replace(GREEDY, max_tokens=40, n=rng.choice((1, 3))) for i in range(20)]
        with held(drafting):
            requests = [drafting.submit(prompt, its) for prompt, its in zip(given, params, strict=True)]
        outputs = [request.result(60) for request in requests]
        assert [[c.tokens for c in o.choices] for o in outputs[:5]] == [[c.tokens for c in o.choices] for o in want]
        for prompt, output in zip(given[5:], outputs[5:], strict=True):
            for choice in output.choices:
                assert choice.finish is FinishReason.LENGTH and len(choice.tokens) == 40
                check_greedy(model, prompt, choice)
        stats = drafting.stats()
        assert 0 < stats.accepted_tokens == sum(stats.accepted_at) < stats.drafted_tokens
        assert stats.draft_steps >= stats.drafts / 8 and stats.draft_failures == 0 and stats.preemptions > 0
        check_empty(drafting)
    with pytest.raises(ContractError, match="draft_model is a compiled model or None, got 3"):
        Engine(step, replace(small, draft_model=3))  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="encoder: the step has no cross attention"):
        Engine(step, replace(small, encoder=step))
    with pytest.raises(ContractError, match="draft_tokens"):
        Engine(step, replace(small, draft_tokens=25))
    for branches in (0, 33, -(1 << 40), 1 << 40):
        with pytest.raises(ContractError, match="draft_branches"):
            Engine(step, replace(small, draft_branches=branches))


def test_samples_are_the_same_in_any_company(step: CompiledModel) -> None:
    given = prompts(random.Random(4), 3, 20, 33)
    params = SamplingParams(
        max_tokens=30,
        temperature=0.9,
        top_p=0.95,
        top_k=40,
        seed=7,
        n=3,
        presence_penalty=0.5,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
    )
    small = EngineOptions(cache_bytes=14 * BLOCK_BYTES, max_step_tokens=8, max_sequences=8, prompt_lookup=4)
    with Engine(step) as alone, Engine(step, small) as together:
        want = [alone.generate([p], params)[0] for p in given]
        got = together.generate([*given, *given, [1, 2]], params)
        assert [[c.tokens for c in o.choices] for o in got[:6]] == 2 * [[c.tokens for c in o.choices] for o in want]
        for output in want:
            assert len({c.tokens for c in output.choices}) == 3
        others = alone.generate([given[0]], replace(params, seed=8))[0]
        assert others.choices[0].tokens != want[0].choices[0].tokens


def test_samples_follow_the_model(model: Any, step: CompiledModel) -> None:
    """First tokens of many choices, beside the probabilities that they are drawn by."""
    prompt, n, rounds = [5, 6, 7], 64, 20
    with torch.no_grad():
        want = (model(input_ids=torch.tensor([prompt])).logits[0, -1] / 1.5).softmax(-1)
    with Engine(step) as engine:
        outputs = engine.generate([prompt] * rounds, SamplingParams(max_tokens=1, temperature=1.5, n=n))
    counts = torch.zeros(VOCABULARY)
    for output in outputs:
        for choice in output.choices:
            counts[choice.tokens[0]] += 1
    assert counts.sum() == n * rounds
    assert (counts / counts.sum() - want).abs().sum() < 0.35  # some 0.2 by chance


def test_ends(step: CompiledModel) -> None:
    """Tokens and strings that end a choice; what is held back; what is given."""
    vocabulary = tuple(f"<{i}>".encode() for i in range(VOCABULARY))
    prompt = [1, 2, 3]
    with Engine(step, EngineOptions(vocabulary=vocabulary)) as engine:
        (plain,) = engine.generate([prompt], GREEDY)[0].choices
        tokens = plain.tokens
        at = next(i for i in range(2, 20) if tokens[i] not in tokens[:i])
        (choice,) = engine.generate([prompt], replace(GREEDY, stop_tokens=(tokens[at],)))[0].choices
        assert choice.finish is FinishReason.STOP and choice.stop is None and choice.tokens == tokens[: at + 1]

        stop = f"{tokens[at - 1]}><{tokens[at]}"  # begins and ends within tokens
        request = engine.submit(prompt, replace(GREEDY, stop=("never", stop)))
        events = list(request)
        (choice,) = request.result().choices
        assert choice.finish is FinishReason.STOP and choice.stop == stop and choice.tokens == tokens[: at + 1]
        assert events[-1].tokens == tokens[at - 1 : at + 1] and len(choice.logprobs) == at + 1
        assert [e.finish for e in events[:-1]] == [None] * (len(events) - 1)

        # As it was when it was asked for, in whatever it was given.
        mine = ["never", stop]
        given: list[Any] = [mine, {stop}, dict.fromkeys(mine), iter(mine), (s for s in mine)]
        requests = [engine.submit(prompt, replace(GREEDY, stop=g)) for g in given]
        mine.clear()
        assert [r.result().choices[0].stop for r in requests] == [stop] * len(requests)
        assert engine.generate([prompt], GREEDY)[0].choices[0].tokens == tokens

        (choice,) = engine.generate([prompt], replace(GREEDY, stop=("<" + str(tokens[0]) + "><100>",)))[0].choices
        assert choice.tokens == tokens and choice.finish is FinishReason.LENGTH
    with Engine(step, EngineOptions(eos_tokens=(tokens[at],))) as engine:
        ended, on = engine.generate([prompt, prompt], [GREEDY, replace(GREEDY, ignore_eos=True)])
        assert ended.choices[0].tokens == tokens[: at + 1] and on.choices[0].tokens == tokens
        with pytest.raises(ContractError, match="bytes of the vocabulary"):
            engine.submit(prompt, replace(GREEDY, stop=("a",)))


def test_bias_and_positions(step: CompiledModel) -> None:
    with Engine(step, EngineOptions(max_positions=10)) as engine:
        output = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=50, logit_bias={9: 1000.0}))[0]
        assert output.choices[0].tokens == (9,) * 7 and output.choices[0].finish is FinishReason.LENGTH
        barred = {i: float("-inf") for i in range(VOCABULARY)}
        (choice,) = engine.generate([[1, 2]], SamplingParams(logit_bias=barred))[0].choices
        assert choice.finish is FinishReason.ERROR and choice.error == "no token is allowed" and choice.tokens == ()
        assert engine.generate([[1, 2]], GREEDY)[0].choices[0].finish is FinishReason.LENGTH


def test_constraints(step: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callable says what may come next, by choice and tokens; what it raises ends the choice."""
    seen = list[tuple[int, int]]()

    def ascending(choice: int, tokens: Sequence[int], allowed: memoryview) -> None:
        seen.append((choice, len(tokens)))
        least = tokens[-1] + 1 if tokens else 10 * choice
        for word in range(len(allowed)):
            allowed[word] = 0
        for token in range(least, min(least + 3, VOCABULARY)):
            allowed[token // 32] |= 1 << token % 32

    with Engine(step, EngineOptions(prompt_lookup=4)) as engine:
        (output,) = engine.generate([[1, 2]], replace(GREEDY, n=2, temperature=2.0, max_tokens=12, constrain=ascending))
        for i, choice in enumerate(output.choices):
            all_tokens = (10 * i - 1, *choice.tokens)
            assert all(0 < b - a <= 3 for a, b in zip(all_tokens, all_tokens[1:], strict=False))
        assert sorted(seen) == [(i, k) for i in range(2) for k in range(12)]

        def fails(choice: int, tokens: Sequence[int], allowed: memoryview) -> None:
            if len(tokens) == 3:
                raise ValueError("no more")

        told = list[Any]()
        with monkeypatch.context() as m:
            m.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))
            (output,) = engine.generate([[1, 2]], replace(GREEDY, constrain=fails))
        assert told == ["no more"]
        assert output.choices[0].finish is FinishReason.ERROR and len(output.choices[0].tokens) == 3
        with pytest.raises(ContractError):
            engine.submit([], SamplingParams(constrain=ascending))
    reference = weakref.ref(ascending)
    del ascending
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "there must be a token"),
        ([96], {}, "token 96 at 0 isn't of the vocabulary of 96"),
        ([-1], {}, "token -1"),
        ([2**40], {}, "too large|int"),
        (["a"], {}, "integer"),
        (None, {}, "iterable|NoneType"),
        ([1] * 5000, {}, "leave no room for another"),
        ([1], {"max_tokens": 0}, "max_tokens is at least 1, got 0"),
        ([1], {"max_tokens": 2**70}, "int"),
        ([1], {"temperature": -0.5}, "temperature is a number of at least 0, got -0.5"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"temperature": "hot"}, "temperature is a number"),
        ([1], {"top_p": 0.0}, "top_p is above 0 and at most 1, got 0"),
        ([1], {"top_p": float("nan")}, "top_p"),
        ([1], {"top_k": -1}, "top_k"),
        ([1], {"min_p": 1.5}, "min_p is from 0 to 1, got 1.5"),
        ([1], {"presence_penalty": 3.0}, "presence_penalty is from -2 to 2, got 3"),
        ([1], {"repetition_penalty": 0.0}, "repetition_penalty"),
        ([1], {"n": 0}, "n is at least 1 and at most max_sequences, got 0"),
        ([1], {"n": 257}, "n is at least 1"),
        ([1], {"n": 2**40}, "int"),
        ([1], {"logprobs": 21}, "logprobs is from 0 to 20"),
        ([1], {"logprobs": -1}, "logprobs is at least 0"),
        ([1], {"logit_bias": {96: 1.0}}, "logit_bias: token 96"),
        ([1], {"logit_bias": {1: float("nan")}}, "logit_bias is a number"),
        ([1], {"stop_tokens": (-5,)}, "stop_tokens: token -5"),
        ([1], {"stop": ("a",)}, "need the bytes of the vocabulary"),
        ([1], {"timeout": -1.0}, "timeout is at least 0"),
        ([1], {"seed": "x"}, "int"),
    ],
)
def test_what_is_refused(step: CompiledModel, prompt: Any, params: dict[str, Any], message: str) -> None:
    with Engine(step, EngineOptions(cache_bytes=20 * BLOCK_BYTES)) as engine:
        with pytest.raises(ContractError, match=message):
            engine.submit(prompt, SamplingParams(**params))
        with pytest.raises(ContractError, match="the engine has no encoder"):
            engine.submit([1], inputs={"features": array("f", [1])})
        check_empty(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_bytes": 1}, "those of a block at least"),
        ({"cache_bytes": 0}, "cache_bytes is at least 1"),
        ({"max_step_tokens": 0}, "max_step_tokens is from 1"),
        ({"max_step_tokens": 2**62}, "max_step_tokens is from 1"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"max_sequences": 513}, "max_sequences"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"max_positions": 1}, "need 2 at least"),
        ({"eos_tokens": (96,)}, "eos_tokens: a token"),
        ({"prompt_lookup": -1}, "prompt_lookup"),
        ({"max_waiting": 2**70}, "int"),
        ({"evict_to": -16}, "evict_to is at least 1"),
        ({"evict_to": 100}, "multiple of a block's tokens, 16, got 100"),
        ({"evict_to": 32}, "there is a block that may go, got 32 tokens, which are 2 blocks"),
        ({"evict_to": 64, "evict_sinks": 2**62, "evict_recent": 2**62}, "there is a block that may go"),
        ({"evict_to": 2**62, "cache_bytes": 4 * BLOCK_BYTES}, "room for 64 tokens"),
        ({"evict_sinks": -1}, "evict_sinks is from 0"),
        ({"evict_recent": -1}, "evict_recent is from 0"),
        ({"evict_by": "age"}, "evict_by is 'recent' or 'norms', got 'age'"),
        ({"evict_to": 48, "cache_bytes": 3 * BLOCK_BYTES, "max_positions": 1}, "need 2 at least"),
    ],
)
def test_wrong_options(step: CompiledModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        Engine(step, EngineOptions(**options))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop": "ab"}, "stop: .* single string"),
        ({"stop": (1,)}, "stop: strings"),
        ({"stop": 1}, "stop: strings"),
        ({"stop": ("\ud800",)}, "stop: strings that UTF-8 has"),
        ({"cache_salt": 3}, "cache_salt: strings"),
        ({"stop_tokens": (2**40,)}, "stop_tokens: tokens are integers"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias: tokens are integers"),
        ({"logit_bias": {1: "a"}}, "logit_bias: values are numbers"),
        ({"max_tokens": 1.5}, "max_tokens is an integer, got 1.5"),
        ({"n": None}, "n is an integer"),
        ({"timeout": "1"}, "timeout is a number"),
        ({"constrain": 3}, "constrain is a function"),
    ],
)
def test_params_of_wrong_types(step: CompiledModel, params: dict[str, Any], message: str) -> None:
    with Engine(step) as engine, pytest.raises(ContractError, match=message):
        engine.submit([1], SamplingParams(**params))


def test_waits_of_any_length(step: CompiledModel) -> None:
    with Engine(step) as engine:
        for timeout in (math.inf, 2**64, None):
            assert engine.submit([1], SamplingParams(max_tokens=40)).result(timeout).choices[0].tokens
        request = engine.submit([1], SamplingParams(max_tokens=100_000))
        wrong: list[Any] = ["1", math.nan, [1]]
        for timeout in wrong:
            with pytest.raises(ContractError, match="timeout is a number of seconds"):
                request.result(timeout)
        for timeout in (0, -1.0, 1e-3):
            with pytest.raises(DeadlineError, match="hasn't ended"):
                request.result(timeout)


def test_prompts_are_integers(step: CompiledModel) -> None:
    with Engine(step) as engine:
        assert engine.submit(b"\1\0\0\0", GREEDY).prompt_tokens == 4  # numbers of 8 bits, not one of 32
        with pytest.raises(ContractError, match="prompt: tokens are integers"):
            engine.submit([2**31])
        with pytest.raises(ContractError, match="compiled model, got 3"):
            Engine(3)  # type: ignore[arg-type]


def test_grammars_that_call_back(step: CompiledModel) -> None:
    """What would wait for itself is refused; the memory that a grammar was given may be kept."""
    kept, engines = list[memoryview](), list[Engine]()

    def grammar(choice: int, tokens: Sequence[int], allowed: memoryview) -> None:
        kept.append(allowed)
        for call in (engines[0].close, engines[0].drain):
            with pytest.raises(ContractError, match="by a hook"):
                call()

    engines.append(Engine(step))
    (output,) = engines[0].generate([[1, 2]], replace(GREEDY, constrain=grammar))
    assert output.choices[0].finish is FinishReason.LENGTH
    engines.pop().close()
    gc.collect()
    for view in kept:
        view[0] = 5
        assert view[0] == 5


def test_another_model() -> None:
    compiled = dhlo.compile(torch.nn.Linear(3, 4), (torch.randn(2, 3),))
    with pytest.raises(ContractError, match="no step over pools of blocks"):
        Engine(compiled)


LONG = SamplingParams(temperature=0.0, max_tokens=100_000)


def test_cancels_and_deadlines(step: CompiledModel) -> None:
    with Engine(step, EngineOptions(max_sequences=2)) as engine:
        running = [engine.submit([3], LONG) for _ in range(2)]
        waiting = engine.submit([4], LONG)
        late = engine.submit([4], replace(LONG, timeout=0.05))
        at_once = engine.submit([4], replace(LONG, timeout=0.0))
        next(iter(running[0]))
        waiting.cancel()
        assert waiting.result(10).choices == (Choice((), FinishReason.CANCELLED),)
        assert at_once.result(10).choices[0].finish is FinishReason.DEADLINE
        assert late.result(10).choices[0].finish is FinishReason.DEADLINE
        with pytest.raises(DeadlineError):
            running[0].result(0.01)
        for request in running:
            request.cancel()
            (choice,) = request.result(10).choices
            assert choice.finish is FinishReason.CANCELLED
            request.cancel()
        assert engine.generate([[1, 2]], GREEDY)[0].choices[0].finish is FinishReason.LENGTH
        late = engine.submit([4], replace(LONG, timeout=0.05, n=2))
        assert [c.finish for c in late.result(10).choices] == [FinishReason.DEADLINE] * 2
        check_empty(engine)


def test_full_queues_and_drains(step: CompiledModel) -> None:
    with Engine(step, EngineOptions(max_sequences=1, max_waiting=2)) as engine:
        first = engine.submit([1], LONG)
        next(iter(first))
        others = [engine.submit([2], GREEDY) for _ in range(2)]
        with pytest.raises(QueueFullError, match="2 requests waiting"):
            engine.submit([3])
        assert not engine.drain(0.01)
        with pytest.raises(QueueFullError, match="takes no more"):
            engine.submit([3])
        first.cancel()
        assert engine.drain(10)
        assert [len(r.result(0).choices[0].tokens) for r in others] == [20, 20]
        check_empty(engine)


def test_closing(step: CompiledModel) -> None:
    engine = Engine(step)
    request = engine.submit([1], LONG)
    next(iter(request))
    engine.close()
    engine.close()
    assert request.result(0).choices[0].finish is FinishReason.CANCELLED
    with pytest.raises(QueueFullError):
        engine.submit([1])
    engine.stats()
    assert engine.drain()
    request.cancel()


def test_events_that_cant_be_handed_on(step: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what can't come."""

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Request, "_take", fail)
    with Engine(step, EngineOptions(cache_bytes=40 * BLOCK_BYTES)) as engine:
        for choice in engine.submit([1, 2, 3], SamplingParams(n=2)).result(60).choices:
            assert choice.finish is FinishReason.ERROR and "can't be handed on: MemoryError: no room" in choice.error
        assert "no room" in engine.stats().failure
        with pytest.raises(QueueFullError, match="takes no more"):
            engine.submit([1])


def test_an_engine_that_nobody_holds_is_closed(step: CompiledModel) -> None:
    def output() -> Output:
        return Engine(step).submit([1, 2], GREEDY).result(30)

    before = threading.active_count()
    assert output().choices[0].finish is FinishReason.LENGTH
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_event_loops(step: CompiledModel) -> None:
    async def tokens(engine: Engine, prompt: list[int]) -> list[int]:
        return [t async for event in engine.submit(prompt, GREEDY) for t in event.tokens]

    async def main(engine: Engine) -> list[list[int]]:
        return await asyncio.gather(*(tokens(engine, [i]) for i in range(1, 9)))

    with Engine(step) as engine:
        want = [list(o.choices[0].tokens) for o in engine.generate([[i] for i in range(1, 9)], GREEDY)]
        assert asyncio.run(main(engine)) == want


def test_event_loops_are_woken_once_for_all_that_a_step_brings(step: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(GREEDY, max_tokens=100)

    async def tokens(request: Request) -> int:
        return sum([len(event.tokens) async for event in request])

    async def main(engine: Engine) -> int:
        with held(engine):
            readers = [asyncio.create_task(tokens(engine.submit([i], long))) for i in range(1, 9)]
            await asyncio.sleep(0)  # all of them wait before the first token comes
        return sum(await asyncio.gather(*readers))

    loop, calls = asyncio.new_event_loop(), list[object]()
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (calls.append(args), wake(*args)))
    with contextlib.closing(loop), Engine(step) as engine:
        made = loop.run_until_complete(main(engine))
        assert 0 < len(calls) <= engine.stats().steps < made


def test_many_threads(step: CompiledModel) -> None:
    failures = list[BaseException]()

    def use(engine: Engine, seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(20):
                request = engine.submit([rng.randrange(VOCABULARY)], replace(GREEDY, max_tokens=rng.randint(1, 30)))
                if rng.random() < 0.3:
                    request.cancel()
                assert request.result(30).choices[0].finish in (FinishReason.LENGTH, FinishReason.CANCELLED)
        except BaseException as e:  # told by the main thread
            failures.append(e)

    with Engine(step, EngineOptions(max_sequences=4)) as engine:
        threads = [threading.Thread(target=use, args=(engine, i)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures
        check_empty(engine)


def test_exit_with_requests_in_work(step: CompiledModel, tmp_path: Path) -> None:
    step.save(tmp_path / "step.so")
    script = f"""
import os, sys
import dhlo
from dhlo.errors import ContractError
from dhlo.serve.engine import Engine
from dhlo.serve.types import SamplingParams
engine_model = dhlo.load({str(tmp_path / "step.so")!r})
engine = Engine(engine_model)
request = engine.submit([1], SamplingParams(max_tokens=100_000))
next(iter(request))
child = os.fork()
if child == 0:  # which has no thread of the engine's, and ends as Python does
    for use in (lambda: engine.submit([1]), request.result, request.cancel, engine.stats, engine.drain):
        try:
            use()
        except ContractError as e:
            assert "forked" in str(e)
        else:
            os._exit(3)
    with Engine(engine_model) as another:
        assert another.generate([[1, 2]])[0].choices[0].tokens
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("leaves")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "5\nleaves\n"), done.stderr
    assert "Traceback" not in done.stderr


PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(host LANGUAGES C CXX)
find_package(dhlo 0.1 REQUIRED)
add_executable(host ${SOURCE})
target_compile_features(host PRIVATE cxx_std_17)
target_link_libraries(host PRIVATE dhlo::${LIBRARY})
"""


@pytest.mark.parametrize(
    "how",
    ["flags", *(pytest.param(h, marks=pytest.mark.slow) for h in ("dhlo-serve", "dhlo-serve-static", "serve", "serve_shared"))],
)
def test_host_of_an_installation(model: Any, step: CompiledModel, tmp_path: Path, how: str) -> None:
    """Built outside of the tree, and run as a host without Python: lines of tokens, answered as they end."""
    try:
        package = cmake_dir()
    except DhloError:
        pytest.skip("needs an installed package")
    source, libraries = ROOT / "runtime/examples/serve.cpp", str(package.parents[1])

    def sh(*command: object) -> str:
        environment = os.environ | {"PKG_CONFIG_PATH": f"{libraries}/pkgconfig"}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    if how == "flags":
        sh("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", source, *host_flags(), "-o", tmp_path / "host")
    elif how.startswith("dhlo"):
        if shutil.which("pkg-config") is None:
            pytest.skip("needs pkg-config")
        flags = sh("pkg-config", "--cflags", "--libs", how).split()
        sh("c++", "-std=c++17", source, *flags, f"-Wl,-rpath,{libraries}", "-o", tmp_path / "host")
    else:
        cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if cmake is None:
            pytest.skip("needs cmake")
        (tmp_path / "CMakeLists.txt").write_text(PROJECT)
        sh(cmake, "-S", tmp_path, "-B", tmp_path, f"-Ddhlo_DIR={package}", f"-DSOURCE={source}", f"-DLIBRARY={how}")
        sh(cmake, "--build", tmp_path)
    assert ("libdhlo_serve.so.1" in sh("ldd", tmp_path / "host")) == (how in ("dhlo-serve", "serve_shared"))
    step.save(tmp_path / "step.so")
    given = prompts(random.Random(6), 4, 50, 1)
    lines = [" ".join(map(str, p)) for p in given] + ["1 x", "", "1 96"]
    done = subprocess.run(
        [tmp_path / "host", tmp_path / "step.so", "12", "1"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    for i, prompt in enumerate(given):
        check_greedy(model, prompt, Choice(tuple(map(int, answers[str(i + 1)].split())), FinishReason.LENGTH))
    assert answers["4"] == "error: a request is a line of token ids"
    assert answers["5"] == "error: prompt: there must be a token" and "isn't of the vocabulary" in answers["6"]


@pytest.mark.slow
def test_soak(step: CompiledModel) -> None:
    """Thousands of requests with cancels and deadlines through pools that are too small: nothing is left behind."""
    rng = random.Random(9)
    shared = prompts(rng, 50, 90)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with Engine(step, EngineOptions(cache_bytes=24 * BLOCK_BYTES, max_step_tokens=48, max_sequences=12, prompt_lookup=4)) as engine:
        memory = list[int]()
        for _ in range(12):
            requests = list[Request]()
            for _ in range(400):
                (rest,) = prompts(rng, rng.choice((1, 5, 40)))
                params = SamplingParams(
                    max_tokens=rng.choice((1, 8, 60)),
                    n=rng.choice((1, 1, 2)),
                    temperature=rng.choice((0.0, 1.0)),
                    timeout=rng.choice((None, None, None, 0.02, 0.3)),
                    priority=rng.randrange(3),
                    cache_salt=rng.choice(("", "a")),
                )
                requests.append(engine.submit([*rng.choice([[], *shared]), *rest], params))
                if rng.random() < 0.2:
                    rng.choice(requests).cancel()
            for request in requests:
                for choice in request.result(120).choices:
                    assert choice.finish is not FinishReason.ERROR, choice.error
            check_empty(engine)
            del requests, request
            gc.collect()
            memory.append(resident())
        stats = engine.stats()
        assert min(stats.finished["length"], stats.finished["cancelled"], stats.finished["deadline"], stats.preemptions) > 50
        assert memory[-1] - memory[2] < 8 << 20, memory
