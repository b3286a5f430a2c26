"""Runs a trace through dhlo's engine: `python -m benchmarks.serving.worker_dhlo < trace.json`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from dhlo.loading import open_model
from dhlo.serve.engine import Engine
from dhlo.serve.types import EngineOptions, SamplingParams

__all__: list[str] = []

_BLOCK = 16  # slots


def main() -> None:
    given = json.load(sys.stdin)
    began = time.perf_counter()
    model = open_model(Path(given["dhlo_file"]), given["threads"])  # without PyTorch, as `dhlo serve` does
    options = EngineOptions(
        cache_bytes=int(given["cache_gigabytes"] * 1e9),
        max_step_tokens=given["max_step_tokens"],
        prefix_cache=given["prefix_cache"],
        prompt_lookup=given.get("prompt_lookup", 0),
    )
    with Engine(model, options) as engine:
        start_up = time.perf_counter() - began
        results = [asyncio.run(_run(engine, trace)) for trace in given["traces"]]
        answers, unused = [r[0] for r in results], results[-1][1]
        json.dump({"start_up": start_up, "answers": answers, "unused": unused, "stats": repr(engine.stats())}, sys.stdout)


async def _unused(engine: Engine, found: list[float]) -> None:
    """Of steps that it sees: slots that sequences have reserved and not written, over those that they have reserved."""
    step = -1
    while True:
        stats = engine.stats()
        reserved = stats.blocks_used * _BLOCK
        if reserved and stats.steps != step:
            found.append(stats.unused_slots / reserved)
        step = stats.steps
        await asyncio.sleep(0.05)  # seldom: the machine is all the engine's


async def _run(engine: Engine, trace: dict[str, Any]) -> tuple[list[dict[str, Any]], float]:
    """What each request got, and the mean share of reserved slots that have no token."""
    unused = list[float]()
    watching = asyncio.create_task(_unused(engine, unused))
    try:
        return await _answers(engine, trace), sum(unused) / max(len(unused), 1)
    finally:
        watching.cancel()


async def _answers(engine: Engine, trace: dict[str, Any]) -> list[dict[str, Any]]:
    began, room = time.perf_counter(), asyncio.Semaphore(trace["at_once"])

    async def one(asked: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(max(0.0, asked["at"] - (time.perf_counter() - began)))
        params = SamplingParams(max_tokens=asked["max_tokens"], temperature=0.0, ignore_eos=True)
        times, tokens = list[float](), list[int]()
        async with room:
            begun = asked["at"] or time.perf_counter() - began
            async for event in engine.submit(asked["prompt"], params):
                tokens += event.tokens
                times += [time.perf_counter() - began] * len(event.tokens)
        return {"asked": begun, "times": times, "tokens": tokens}

    return list(await asyncio.gather(*(one(asked) for asked in trace["requests"])))


if __name__ == "__main__":
    main()
