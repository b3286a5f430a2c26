"""What leaving blocks of keys and values out of sequences costs: perplexity of texts that weren't trained on, by an engine that
keeps all of them or a part (`evict_to`), and the time of a token behind many.
`python -m benchmarks.serving.eviction FOLDER`, where `benchmarks.serving.train` has written.

Tokens are prompts' next ones: each prompt is a beginning of a text, one of so many, and its blocks are left out as it is computed.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.serving.train import HELD_OUT, sources
from dhlo.serve.engine import Engine
from dhlo.serve.folder import open_folder
from dhlo.serve.types import EngineOptions, SamplingParams

# Added to the logit of the token that is to come, so that it is among those whose probabilities are told, and taken away again.
_BIAS = 8.0


def _texts(encode: Any, count: int, length: int) -> list[list[int]]:
    """Beginnings of sources that weren't trained on."""
    held_out = [x for k, x in enumerate(sources()) if k % HELD_OUT[0] == HELD_OUT[1]]
    made = ([0, *encode(x[: 20 * length])] for x in held_out)
    return [x[:length] for x in made if len(x) >= length][:count]


def _loss(engine: Engine, text: list[int], ends: range) -> list[float]:
    """Of the tokens at these places."""
    most_likely = SamplingParams(max_tokens=1, temperature=0.0, logprobs=20)
    requests = [engine.submit(text[:k], replace(most_likely, logit_bias={text[k]: _BIAS})) for k in ends]
    losses = []
    for k, request in zip(ends, requests, strict=True):
        (told,) = request.result().choices[0].logprobs
        # One that is so unlikely that 20 others are before it has no more than what the last of them has.
        biased = dict(told.top).get(text[k], min(x for _, x in told.top))
        odds = math.expm1(-biased) * math.exp(_BIAS)  # (1 - p) / p without the bias
        losses.append(math.log1p(odds))
    return losses


def _seconds(step: Any, options: EngineOptions, behind: int, tokens: int) -> float:
    """Of a token behind so many, one sequence alone."""
    with Engine(step, options) as engine:
        prompt = [1 + 7 * k % 4000 for k in range(behind)]
        engine.generate([prompt], SamplingParams(max_tokens=1, temperature=0.0))
        request = engine.submit(prompt, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
        next(iter(request))
        begin = time.perf_counter()
        request.result()
        return (time.perf_counter() - begin) / (tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.eviction", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--every", type=int, default=4, help="tokens of a text that are looked at")
    parser.add_argument("--kv-cache", default="")
    parser.add_argument("--cache", default=None, help="folder for the compiled model")
    parser.add_argument("--speed", action="store_true", help="the time of a token behind 4,096 instead")
    given = parser.parse_args()
    served = open_folder(given.folder, cache=given.cache, kv_cache=given.kv_cache)
    if given.speed:
        for repeat in range(3):
            for to, by in ((None, "recent"), (1024, "recent"), (1024, "norms")):
                how: Literal["recent", "norms"] = "norms" if by == "norms" else "recent"
                options = EngineOptions(cache_bytes=1 << 30, evict_to=to, evict_by=how)
                print(
                    f"{repeat}: {to or 'all'}, {by}: {1000 * _seconds(served.step, options, 4096, 100):.3f} ms a token", flush=True
                )
        return
    chosen = _texts(served.tokenizer.encode, given.texts, given.length)
    ends = range(given.every, given.length, given.every)
    print(
        f"{len(chosen)} texts of {given.length} tokens\n| kept | by | sinks, recent | perplexity | behind those kept |", flush=True
    )
    print("| --- | --- | --- | --- | --- |")
    quarter, half = given.length // 4, given.length // 2
    for to, by, sinks, recent in (
        (None, "recent", 1, 1),
        (half, "recent", 1, 1),
        (half, "norms", 1, 1),
        (quarter, "recent", 1, 1),
        (quarter, "recent", 0, 1),
        (quarter, "norms", 1, 1),
        (quarter, "norms", 1, 2),
        (quarter, "norms", 0, 1),
    ):
        how = "norms" if by == "norms" else "recent"
        options = EngineOptions(cache_bytes=1 << 26, evict_to=to, evict_by=how, evict_sinks=sinks, evict_recent=recent)
        with Engine(served.step, options) as engine:
            losses = [list(zip(ends, _loss(engine, text, ends), strict=True)) for text in chosen]
        every = [x for each in losses for _, x in each]
        behind = [x for each in losses for k, x in each if k > quarter]
        shown = [math.exp(sum(x) / len(x)) for x in (every, behind)]
        print(f"| {to or given.length} | {by} | {sinks}, {recent} | {shown[0]:.3f} | {shown[1]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
