"""What a server counts and times, under the names that vLLM gives them: dashboards for it show these, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dhlo.serve.types import EngineStats

__all__ = ["CONTENT_TYPE", "SECONDS", "Metrics", "Timing"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SECONDS: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
_BETWEEN: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_WHOLE: Final = (0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS: Final = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))

_REASONS: Final = {"stop": "stop", "length": "length", "cancelled": "abort", "deadline": "abort", "error": "error"}


class Metrics:
    """Of one server of one model. What the engine counts is read from it when somebody asks."""

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfEngine(model, stats))
        self._labels = {"model_name": model, "engine": "0"}

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Any:
            made = Histogram(f"vllm:{name}", what, tuple(self._labels), buckets=buckets, registry=self._registry)
            return made.labels(**self._labels)

        self.first = histogram("time_to_first_token_seconds", "From a request's arrival to its first token.", SECONDS)
        self.between = histogram("inter_token_latency_seconds", "Between tokens of a choice.", _BETWEEN)
        self.whole = histogram("e2e_request_latency_seconds", "From a request's arrival to its end.", _WHOLE)
        self.prompt = histogram("request_prompt_tokens", "Tokens of a request's prompt.", _TOKENS)
        self.generated = histogram("request_generation_tokens", "Tokens of a request's choices.", _TOKENS)
        self.n = histogram("request_params_n", "Choices that a request asks for.", (1, 2, 5, 10, 20))
        self.max_tokens = histogram("request_params_max_tokens", "Tokens that a request asks for at most.", _TOKENS)
        self.mean_seconds = 1.0
        """Of requests, the later ones more than the earlier ones."""

    def text(self) -> bytes:
        """In Prometheus' text format."""
        out: bytes = generate_latest(self._registry)
        return out


class Timing:
    """One request, from its arrival on."""

    def __init__(self, metrics: Metrics, prompt_tokens: int, n: int, max_tokens: int) -> None:
        self._metrics, self._start = metrics, time.monotonic()
        self._last: dict[int, float] = {}
        self._tokens = 0
        metrics.prompt.observe(prompt_tokens)
        metrics.n.observe(n)
        metrics.max_tokens.observe(max_tokens)

    def tokens(self, choice: int, count: int) -> None:
        """So many tokens of a choice have come."""
        now = time.monotonic()
        if not count:
            return
        if not self._last:
            self._metrics.first.observe(now - self._start)
        if choice in self._last:
            for _ in range(count):
                self._metrics.between.observe((now - self._last[choice]) / count)
        self._last[choice] = now
        self._tokens += count

    def end(self) -> None:
        seconds = time.monotonic() - self._start
        self._metrics.whole.observe(seconds)
        self._metrics.generated.observe(self._tokens)
        self._metrics.mean_seconds += 0.1 * (seconds - self._metrics.mean_seconds)


class _OfEngine:
    """Gauges and counters of an engine as it is when they are read."""

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._stats, self._model = stats, model

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        s, names, values = self._stats(), ("model_name", "engine"), (self._model, "0")
        used = s.blocks_used / s.blocks if s.blocks else 0.0
        for name, what, gauge in (
            ("num_requests_running", "Choices in work.", s.running),
            ("num_requests_waiting", "Choices that wait.", s.waiting),
            ("kv_cache_usage_perc", "Share of the cache's blocks that requests hold; 1 is all.", used),
            ("swapped_bytes", "Memory of what choices that wait have computed.", s.swapped_bytes),
            ("num_blocks", "Blocks of the cache.", s.blocks),
            ("engine_failed", "1 where the engine can run no requests any more, else 0.", int(bool(s.failure))),
            ("num_blocks_cached", "Blocks that no request holds, kept for others that begin alike.", s.blocks_cached),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", what, labels=names)
            family.add_metric(values, gauge)
            yield family
        for name, what, count in (
            ("num_preemptions", "Choices that gave up their blocks.", s.preemptions),
            ("num_swaps", "Of these, those that were swapped out.", s.swaps),
            ("evicted_blocks", "Blocks that requests went on without.", s.evicted_blocks),
            ("prompt_tokens", "Tokens of prompts that were computed or found in the cache.", s.prompt_tokens + s.cached_tokens),
            ("generation_tokens", "Tokens that were generated.", s.generated_tokens),
            ("prefix_cache_queries", "Tokens of prompts that the cache was asked for.", s.prompt_tokens + s.cached_tokens),
            ("prefix_cache_hits", "Tokens of prompts that the cache had.", s.cached_tokens),
            ("spec_decode_num_drafts", "Drafts that were verified.", s.drafts),
            ("spec_decode_num_draft_tokens", "Tokens that were drafted.", s.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Tokens that were drafted and accepted.", s.accepted_tokens),
            ("draft_steps", "Steps of the draft model.", s.draft_steps),
            ("draft_failures", "Steps of the draft model that failed.", s.draft_failures),
            ("draft_seconds", "Seconds in drafts of the draft model.", s.draft_seconds),
            ("engine_steps", "Steps of the model.", s.steps),
            ("engine_step_seconds", "Seconds in steps of the model.", s.step_seconds),
            ("engine_host_seconds", "Seconds between steps.", s.host_seconds),
        ):
            family = CounterMetricFamily(f"vllm:{name}", what, labels=names)
            family.add_metric(values, count)
            yield family
        accepted = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens, by place in drafts.",
            labels=(*names, "position"),
        )
        for position, count in enumerate(s.accepted_at):
            accepted.add_metric((*values, str(position)), count)
        yield accepted
        yield from self._of_tiers(s)
        ended = CounterMetricFamily("vllm:request_success", "Choices that ended, by why.", labels=(*names, "finished_reason"))
        by_reason = dict.fromkeys(_REASONS.values(), 0)
        for reason, count in s.finished.items():
            by_reason[_REASONS.get(reason, reason)] = by_reason.get(_REASONS.get(reason, reason), 0) + count
        for reason, count in by_reason.items():
            ended.add_metric((*values, reason), count)
        yield ended

    def _of_tiers(self, s: EngineStats) -> Iterator[Any]:
        labels = ("model_name", "engine", "tier")
        kinds = (
            ("bytes", GaugeMetricFamily, "Bytes there, as far as is known."),
            ("blocks", GaugeMetricFamily, "Blocks of the model there."),
            ("hits", CounterMetricFamily, "Blocks that were brought from there."),
            ("failures", CounterMetricFamily, "What couldn't be written, or was damaged."),
            ("dropped", CounterMetricFamily, "Blocks that came faster than they could be written."),
        )
        for name, kind, what in kinds if s.tiers else ():
            family = kind(f"vllm:cache_tier_{name}", f"Outside of memory: {what[0].lower()}{what[1:]}", labels=labels)
            for tier, counts in s.tiers.items():
                family.add_metric((self._model, "0", tier), counts[name])
            yield family
