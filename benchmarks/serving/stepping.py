"""The loop of workers whose engine steps when it is told to: a trace on standard input, what became of it on standard output.

Workers run with interpreters of their own, so that nothing but the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

__all__ = ["Stepped", "answers", "serve"]


class Stepped(Protocol):
    """An engine: requests have keys of the caller's."""

    def begin(self, at_once: int, longest: int) -> None:
        """Makes room for so many requests at once, of so many tokens, prompt and answer together. Nothing is in work."""

    def submit(self, key: int, prompt: list[int], tokens: int) -> None:
        """Asks for so many tokens, the most likely ones, whatever they mean."""

    def step(self) -> Iterable[tuple[int, Sequence[int], bool]]:
        """Of requests that got tokens: key, these tokens, and whether it was the last of them."""


def serve(opened: Callable[[dict[str, Any]], Stepped]) -> None:
    """Reads what is given, opens an engine for it, and writes its answers to each trace. What it prints goes to standard error."""
    given = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    engine = opened(given)
    start_up = time.perf_counter() - began
    results = [answers(engine, trace) for trace in given["traces"]]
    with out:
        json.dump({"start_up": start_up, "answers": results}, out)


def answers(engine: Stepped, trace: dict[str, Any]) -> list[dict[str, Any]]:
    """What each request of a trace got, and when."""
    requests: list[dict[str, Any]] = trace["requests"]
    at_once = min(trace["at_once"], len(requests))
    engine.begin(at_once, max((len(r["prompt"]) + r["max_tokens"] for r in requests), default=1))
    found: list[dict[str, Any]] = [{"asked": 0.0, "times": [], "tokens": []} for _ in requests]
    waiting, running = 0, 0
    began = time.perf_counter()
    while waiting < len(requests) or running:
        now = time.perf_counter() - began
        while waiting < len(requests) and requests[waiting]["at"] <= now and running < at_once:
            asked = requests[waiting]
            found[waiting]["asked"] = asked["at"] or now
            engine.submit(waiting, asked["prompt"], asked["max_tokens"])
            waiting, running = waiting + 1, running + 1
        if not running:
            time.sleep(max(0.0, requests[waiting]["at"] - now))
            continue
        made = engine.step()
        now = time.perf_counter() - began
        for key, tokens, over in made:
            found[key]["tokens"] += list(tokens)
            found[key]["times"] += [now] * len(tokens)
            running -= over
    return found
