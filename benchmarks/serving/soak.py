"""Many requests of all kinds through engines on a tiny model: `python -m benchmarks.serving.soak [--requests 20000]`.

They are cancelled, late, of several choices, priorities and tenants; pools are too small for them, and the folder and the store
behind these fail and come back. Every request ends, all blocks are free in the end, memory stays what it is, and greedy tokens are
the model's own.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import dhlo
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine, Request
from dhlo.serve.types import EngineOptions, FinishReason, QueueFullError, SamplingParams

__all__ = ["Report", "soak"]

_VOCABULARY, _PAGE = 96, 16
_BLOCK_BYTES = 2 * 2 * 8 * 4 * _PAGE  # keys and values of a layer with 2 heads of 8 floats
_IN_FLIGHT = 48
_OF_AN_ENGINE = 1000  # requests, then it is closed and another takes its folder and store


@dataclass
class Report:
    """What became of all requests."""

    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Choices by how they ended."""
    compared: int = 0
    """Choices whose tokens the model alone was asked about."""
    counts: Counter[str] = field(default_factory=Counter)
    """Sums of what engines counted."""
    resident: list[int] = field(default_factory=list)
    """Bytes of the process, at the end of each engine."""


class _Store:
    """Objects in memory, some of which get lost; now and then all calls fail, hang a little or give what isn't right."""

    def __init__(self) -> None:
        self.objects = dict[str, bytes]()
        self.mode = "right"
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        self._behave()
        with self._lock:
            if len(self.objects) > 300:
                self.objects.clear()
            self.objects[name] = data

    def get(self, name: str) -> bytes | None:
        self._behave()
        with self._lock:
            data = self.objects.get(name)
        return data if data is None or self.mode != "lies" else data[::-1]

    def remove(self, name: str) -> None:
        with self._lock:
            self.objects.pop(name, None)

    def _behave(self) -> None:
        if self.mode == "fails":
            raise OSError("the store is away")
        if self.mode == "slow":
            time.sleep(0.02)


def _model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    return model


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _check_greedy(model: Any, prompt: list[int], tokens: tuple[int, ...]) -> None:
    """Each token is the most likely one behind those before it, up to rounding."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    given = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (given >= logits.amax(-1) - 1e-2).all(), f"tokens {tokens} aren't the model's behind {prompt}"


class _Client:
    """Submits requests of all kinds and looks at what they say."""

    def __init__(self, model: Any, rng: random.Random, report: Report) -> None:
        self.model, self.rng, self.report = model, rng, report
        self.beginnings = [[rng.randrange(_VOCABULARY) for _ in range(rng.randrange(10, 150))] for _ in range(12)]
        self.waiting = deque[tuple[Request, list[int]]]()

    def submit(self, engine: Engine) -> None:
        rng = self.rng
        prompt = rng.choice(self.beginnings)[: rng.randrange(1, 150)] + [
            rng.randrange(_VOCABULARY) for _ in range(rng.randrange(1, 30))
        ]
        params = SamplingParams(
            max_tokens=rng.randrange(1, 40),
            temperature=rng.choice((0.0, 0.0, 1.0)),
            n=rng.choice((1, 1, 1, 2, 4)),
            priority=rng.choice((0, 0, 1, -1)),
            timeout=rng.choice((None, None, None, rng.random() * 0.2)),
            cache_salt=rng.choice(("", "tenant")),
            seed=rng.randrange(1 << 30),
            stop_tokens=rng.choice(((), (5,))),
            logprobs=rng.choice((None, None, 2)),
            speculate=rng.random() < 0.5,
        )
        while len(self.waiting) >= _IN_FLIGHT:
            self.take()
        try:
            request = engine.submit(prompt, params)
        except QueueFullError:
            self.report.counts["refused"] += 1
            return
        self.report.requests += 1
        self.waiting.append((request, prompt))
        if rng.random() < 0.1:
            rng.choice(self.waiting)[0].cancel()

    def take(self) -> None:
        """Waits for the oldest."""
        request, prompt = self.waiting.popleft()
        output = request.result(timeout=120)
        assert len(output.choices) == request.params.n
        for choice in output.choices:
            self.report.finished[choice.finish.value] += 1
            assert choice.finish is not FinishReason.ERROR, choice.error
            assert len(choice.tokens) <= request.params.max_tokens
            if request.params.temperature == 0 and choice.tokens and self.rng.random() < 0.1:
                _check_greedy(self.model, prompt, choice.tokens)
                self.report.compared += 1


def _harm(store: _Store, folder: Path, rng: random.Random) -> None:
    """What is behind the pools fails, or comes back."""
    store.mode = rng.choice(("right", "right", "right", "fails", "slow", "lies"))
    what = rng.randrange(8)
    if what == 0:
        shutil.rmtree(folder, ignore_errors=True)
    if what == 1:
        for path in folder.glob("*.kv"):
            with suppress(FileNotFoundError):  # the engine removes some, too
                path.write_bytes(path.read_bytes()[: rng.randrange(1, 5000)])


def soak(requests: int, seed: int = 0, told: Callable[[str], None] = lambda _: None) -> Report:
    """Raises AssertionError where something isn't as it should be."""
    model, rng, report = _model(), random.Random(seed), Report()
    step: CompiledModel = dhlo.compile(step_program(model), pages={"keys*": _PAGE, "values*": _PAGE})
    client, store = _Client(model, rng, report), _Store()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "blocks"
        while report.requests < requests:
            options = EngineOptions(
                cache_bytes=40 * _BLOCK_BYTES,
                max_step_tokens=64,
                max_sequences=16,
                max_waiting=_IN_FLIGHT,
                prompt_lookup=4,
                cache_folder=str(folder),
                cache_folder_bytes=1 << 20,
                cache_store=store,
            )
            with Engine(step, options) as engine:
                end = min(report.requests + _OF_AN_ENGINE, requests)
                while report.requests < end:
                    client.submit(engine)
                    if rng.random() < 0.01:
                        _harm(store, folder, rng)
                while client.waiting:
                    client.take()
                assert engine.drain(60)
                stats = engine.stats()
                assert (stats.running, stats.waiting, stats.blocks_used, stats.unused_slots) == (0, 0, 0, 0), stats
            for name in ("preemptions", "cached_tokens", "accepted_tokens", "steps"):
                report.counts[name] += getattr(stats, name)
            for tier, counts in stats.tiers.items():
                for name in ("hits", "failures", "dropped"):
                    report.counts[f"{tier} {name}"] += counts[name]
            report.resident.append(_resident())
            told(f"{report.requests} requests, {report.resident[-1] >> 20} MiB, {dict(report.finished)}, {dict(report.counts)}")
    assert sum(report.finished.values()) >= report.requests
    half = len(report.resident) // 2
    if half >= 2:  # what the first engine takes comes once
        first, second = max(report.resident[1:half] or report.resident[:half]), max(report.resident[half:])
        assert second < first + max(first // 20, 16 << 20), f"memory grew from {first} to {second} bytes"
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    report = soak(given.requests, given.seed, lambda text: print(text, flush=True))
    print(f"{report.compared} choices compared with the model")


if __name__ == "__main__":
    main()
