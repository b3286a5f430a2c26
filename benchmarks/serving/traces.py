"""What is asked of an engine: requests with arrival times, and what an engine has made of them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["Answer", "Asked", "Trace", "figures", "poisson", "several", "shared_beginning", "single"]


@dataclass(frozen=True)
class Asked:
    """A request: seconds from the trace's begin, token ids, and how many tokens are wanted."""

    at: float
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their times, of which no more than `at_once` are in work."""

    requests: list[Asked]
    at_once: int = 1 << 20

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Answer:
    """Seconds from the trace's begin at which it was asked and each token came, and the tokens."""

    asked: float
    times: list[float]
    tokens: list[int]

    @staticmethod
    def of(value: dict[str, Any]) -> Answer:
        return Answer(value["asked"], value["times"], value["tokens"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _ids(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    return [rng.randrange(10, vocabulary) for _ in range(count)]


def poisson(
    rate: float,
    seconds: float,
    vocabulary: int,
    prompts: tuple[int, int] = (8, 1024),
    outputs: tuple[int, int] = (8, 256),
    seed: int = 0,
) -> Trace:
    """Requests that arrive independently of each other, `rate` a second; lengths are log-uniform."""
    rng, at, out = random.Random(seed), 0.0, list[Asked]()
    while (at := at + rng.expovariate(rate)) < seconds:
        out.append(Asked(at, _ids(rng, _log_uniform(rng, *prompts), vocabulary), _log_uniform(rng, *outputs)))
    return Trace(out)


def several(at_once: int, count: int, vocabulary: int, seed: int = 0) -> Trace:
    """So many requests in all, each of which begins as one of those in work ends."""
    return Trace([replace(q, at=0.0) for q in poisson(1.0, 4.0 * count, vocabulary, seed=seed).requests[:count]], at_once)


def shared_beginning(count: int, gap: float, beginning: int, own: int, tokens: int, vocabulary: int, seed: int = 0) -> Trace:
    """Requests one after the other whose prompts begin alike."""
    rng = random.Random(seed)
    first = _ids(rng, beginning, vocabulary)
    return Trace([Asked(gap * i, first + _ids(rng, own, vocabulary), tokens) for i in range(count)])


def single(past: int, tokens: int, vocabulary: int, seed: int = 0) -> Trace:
    """One request alone."""
    return Trace([Asked(0.0, _ids(random.Random(seed), past, vocabulary), tokens)])


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else math.nan


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens a second over the whole trace; time to the first token and per token after it, in ms, at two percentiles."""
    ends = [a.times[-1] for a in answers if a.times]
    first = [1e3 * (a.times[0] - a.asked) for a in answers if a.times]
    each = [1e3 * (a.times[-1] - a.times[0]) / (len(a.times) - 1) for a in answers if len(a.times) > 1]
    steps = [1e3 * (b - a) for x in answers for a, b in zip(x.times, x.times[1:], strict=False)]
    return {
        "tokens_per_second": sum(len(a.times) for a in answers) / max(ends, default=math.nan),
        "ttft_p50": _percentile(first, 50),
        "ttft_p95": _percentile(first, 95),
        "tpot_p50": _percentile(each, 50),
        "tpot_p95": _percentile(each, 95),
        "step_median": statistics.median(steps) if steps else math.nan,
    }
