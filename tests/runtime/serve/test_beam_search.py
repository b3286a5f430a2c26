"""Beam search in the serving engine beside transformers' `generate(num_beams=...)`: texts, their order and scores."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from dhlo.errors import ContractError
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine, Request
from dhlo.serve.types import EngineOptions, FinishReason, Output, SamplingParams
from tests.sequences import PAGE
from tests.serving import held

VOCABULARY, EOS = 96, tuple(range(8))
BLOCK_BYTES = 2 * 2 * 2 * 8 * 4 * PAGE  # keys and values of 2 layers, 2 heads of 8 floats
BEAMS = SamplingParams(beam_width=4, n=4, max_tokens=14)
Stopping = bool | Literal["never"]


def prompts(rng: random.Random, *lengths: int) -> list[list[int]]:
    return [[rng.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


def searched(model: Any, prompt: Sequence[int], params: SamplingParams) -> tuple[list[list[int]], list[float]]:
    """What transformers finds, and its scores."""
    bias = {"sequence_bias": {(t,): b for t, b in params.logit_bias.items()}} if params.logit_bias else {}
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=params.max_tokens,
        do_sample=False,
        num_beams=params.beam_width,
        num_return_sequences=params.n,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        repetition_penalty=params.repetition_penalty,
        eos_token_id=None if params.ignore_eos else [*EOS],
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **bias,
    )
    texts = [t[len(prompt) :].tolist() for t in found.sequences]
    ends = [next((i + 1 for i, t in enumerate(text) if t in EOS and not params.ignore_eos), len(text)) for text in texts]
    return [text[:end] for text, end in zip(texts, ends, strict=True)], found.sequences_scores.tolist()


def check(model: Any, prompt: Sequence[int], params: SamplingParams, output: Output) -> None:
    texts, scores = searched(model, prompt, params)
    assert [list(c.tokens) for c in output.choices] == texts
    assert [c.score for c in output.choices] == pytest.approx(scores, abs=1e-4, rel=1e-6)
    for choice in output.choices:
        stops = choice.tokens[-1] in EOS and not params.ignore_eos
        assert choice.finish is (FinishReason.STOP if stops else FinishReason.LENGTH)


def options(blocks: int = 200, step_tokens: int = 64, **others: Any) -> EngineOptions:
    return EngineOptions(cache_bytes=blocks * BLOCK_BYTES, max_step_tokens=step_tokens, max_sequences=16, eos_tokens=EOS, **others)


def test_as_transformers(model: Any, step: CompiledModel) -> None:
    """Widths, penalties and rules of stopping, all in one batch."""
    given, params = prompts(random.Random(0), 1, 5, 20, 16, 33), list[SamplingParams]()
    stoppings: tuple[Stopping, ...] = (False, True, "never")
    for width, n in ((2, 1), (4, 4), (7, 3)):
        for penalty in (-1.0, 0.0, 1.0, 2.0):
            params += [replace(BEAMS, beam_width=width, n=n, length_penalty=penalty, early_stopping=s) for s in stoppings]
    asked = [(given[i % len(given)], p) for i, p in enumerate(params)]
    with Engine(step, options()) as engine:
        outputs = engine.generate([p for p, _ in asked], [p for _, p in asked])
        for (prompt, each), output in zip(asked, outputs, strict=True):
            check(model, prompt, each, output)
        lengths = {len(c.tokens) for o in outputs for c in o.choices}
        assert min(lengths) < 4 and max(lengths) == 14
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


@pytest.mark.parametrize(("blocks", "step_tokens", "prefix", "lookup"), [(24, 16, True, 3), (24, 64, False, 0), (200, 33, True, 4)])
def test_mixes(model: Any, step: CompiledModel, blocks: int, step_tokens: int, prefix: bool, lookup: int) -> None:
    """Among greedy and sampled requests, with prompts in parts, beginnings that are known, and too few blocks for all."""
    rng = random.Random(blocks + step_tokens)
    (beginning,) = prompts(rng, 40)
    asked = list[tuple[list[int], SamplingParams]]()
    for k in range(18):
        prompt = [*(beginning if k % 2 else ()), *prompts(rng, rng.choice((1, 9, 30)))[0]]
        asked += [
            (prompt, replace(BEAMS, beam_width=rng.choice((2, 5)), n=2, max_tokens=40, ignore_eos=k % 4 < 2, priority=k % 2)),
            (prompt, SamplingParams(temperature=rng.choice((0.0, 0.8)), max_tokens=20, ignore_eos=True, seed=k, priority=k % 2)),
        ][: 1 + k % 3]
    with Engine(step, options()) as alone:
        want = alone.generate([p for p, _ in asked], [replace(p, priority=0) for _, p in asked])
    with Engine(step, options(blocks, step_tokens, prefix_cache=prefix, prompt_lookup=lookup)) as engine:
        requests = list[Request]()
        for first in (1, 0):  # the later ones go first
            requests += [engine.submit(p, its) for p, its in asked if its.priority == first]
            while engine.stats().steps < 3:
                time.sleep(0.001)
        order = [k for first in (1, 0) for k, (_, its) in enumerate(asked) if its.priority == first]
        for k, request in zip(order, requests, strict=True):
            (prompt, params), output, other = asked[k], request.result(60), want[k]
            if params.beam_width:
                check(model, prompt, params, output)
            else:
                assert output.choices[0].tokens == other.choices[0].tokens
        # Begun with a block each, they come to want seven.
        with held(engine):
            together = [
                engine.submit(prompt, SamplingParams(temperature=0, max_tokens=90, ignore_eos=True))
                for prompt in prompts(rng, *[15] * 8)
            ]
        for request in together:
            assert len(request.result(60).choices[0].tokens) == 90
        stats = engine.stats()
        assert stats.preemptions > 0 or blocks == 200
        assert (stats.cached_tokens > 0) == prefix
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_penalties_and_logprobs(model: Any, step: CompiledModel) -> None:
    """Penalties and bias change log-probabilities as transformers' processors do; scores are sums of what is told."""
    (prompt,) = prompts(random.Random(3), 24)
    bias = {20: 3.0, 21: 3.0, 30: -2.0, 40: -float("inf")}
    penalised = replace(BEAMS, repetition_penalty=1.3, ignore_eos=True, logprobs=2)
    with Engine(step, options()) as engine:
        for params in (penalised, replace(penalised, repetition_penalty=1.0, logit_bias=bias), replace(BEAMS, logprobs=2)):
            (output,) = engine.generate([prompt], params)
            check(model, prompt, params, output)
            for choice in output.choices:
                assert len(choice.logprobs) == len(choice.tokens)
                total = sum(x.logprob for x in choice.logprobs)
                assert choice.score == pytest.approx(total / len(choice.tokens), abs=1e-4)
                assert all(len(x.top) == 2 and x.top[0][1] >= max(x.top[1][1], x.logprob) for x in choice.logprobs)
        assert any(c.tokens != output.choices[0].tokens for c in output.choices)
        events = list(engine.submit(prompt, replace(BEAMS, n=2)))
        assert [(e.choice, e.finish is not None, bool(e.tokens)) for e in events] == [(0, True, True), (1, True, True)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam_width": 17}, "beam_width is at most max_sequences, got 17"),
        ({"beam_width": -1}, "beam_width is at least 0"),
        ({"beam_width": 2.5}, "beam_width is an integer"),
        ({"n": 5}, "n is at most beam_width, got 5"),
        ({"temperature": 0.7}, "temperature: doesn't go with beam search"),
        ({"top_p": 0.7}, "top_p: doesn't go with beam search"),
        ({"stop": ("x",)}, "stop: doesn't go with beam search"),
        ({"constrain": lambda *_: None}, "constrained: doesn't go with beam search"),
        ({"early_stopping": "always"}, "early_stopping is True, False or 'never', got 'always'"),
        ({"length_penalty": float("nan")}, "length_penalty is from -10 to 10"),
        ({"beam_width": 0, "n": 1, "length_penalty": 2.0}, "length_penalty: goes with beam_width"),
        ({"max_tokens": 10_000}, "4 beams of up to .* tokens need .* blocks, and the pools have 20"),
    ],
)
def test_what_is_refused(step: CompiledModel, wrong: dict[str, Any], message: str) -> None:
    vocabulary = tuple(b"x" for _ in range(VOCABULARY))
    with Engine(step, options(20, vocabulary=vocabulary)) as engine:
        with pytest.raises(ContractError, match=message):
            engine.submit([1, 2, 3], replace(BEAMS, **wrong))
        assert len(engine.generate([[1, 2, 3]], BEAMS)[0].choices) == 4
