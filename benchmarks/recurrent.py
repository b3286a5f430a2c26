"""Steps of decoders of about 110M parameters that keep states of fixed size, beside transformers in eager mode: a prompt of 512
tokens, and decoding of 1 and 8 sequences behind it. `python -m benchmarks.recurrent MODEL [--threads 2] [--file STEP]`; a file
that isn't there is written, to be measured later."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Mamba2Config, Qwen3NextConfig

import dhlo
from dhlo.integrations.caches import cache_name
from dhlo.integrations.decoder import step_pages, step_program

__all__: list[str] = []

PAGE, PROMPT, SECONDS = 16, 512, 6.0
CONFIGS: dict[str, Callable[[], Any]] = {
    "mamba2": lambda: Mamba2Config(
        vocab_size=32000,
        hidden_size=768,
        num_hidden_layers=24,
        num_heads=24,
        head_dim=64,
        state_size=128,
        n_groups=1,
        chunk_size=64,
    ),
    "qwen3_next": lambda: Qwen3NextConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
    ),
}


def packed(compiled: Any, sequences: int, tokens: int, past: int) -> Callable[[], Any]:
    """A step of so many tokens of each sequence behind so many, the last of which have logits."""
    columns = (past + tokens + PAGE - 1) // PAGE
    at = torch.arange(past, past + tokens).repeat(sequences)
    slots = at + torch.arange(sequences).repeat_interleave(tokens) * columns * PAGE
    i32: Any = {"dtype": torch.int32}
    given = {
        "input_ids": torch.ones(1, sequences * tokens, dtype=torch.int64),
        "position_ids": at[None],
        "kept": torch.arange(1, sequences + 1) * tokens - 1,
        "positions": at,
        "slots": slots,
        "tables": torch.arange(sequences * columns, **i32).reshape(sequences, columns),
        "cells": torch.arange(sequences, **i32),
        "starts": torch.arange(sequences + 1, **i32) * tokens,
        "lengths": torch.full((sequences,), past + tokens, **i32),
    }
    sizes = {"cells": sequences, "slots": sequences * columns * PAGE}
    args = list[torch.Tensor]()
    for value in compiled.native.inputs:
        dims = [sizes.get(str(d), d) for d in value["dims"]]
        args.append(given[value["name"]] if value["name"] in given else torch.zeros([int(d) for d in dims]))
    return lambda: compiled(*args)


def eager(model: Any, sequences: int, tokens: int, past: int) -> Callable[[], Any]:
    """The same by transformers. Where keys are kept, steps of decoding find one more each time, a few of hundreds."""
    name, ids = cache_name(model), torch.ones(sequences, tokens).long()
    cache: Any = DynamicCache(config=model.config)

    def run(given: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(input_ids=x, use_cache=True, logits_to_keep=1, **{name: given})

    if not past:
        return lambda: run(DynamicCache(config=model.config), ids)
    run(cache, torch.ones(sequences, past).long())
    return lambda: run(cache, ids)


def median_ms(f: Callable[[], Any], other: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Medians of both, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    f(), other()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for run, held in ((f, times[0]), (other, times[1])):
            begun = time.perf_counter()
            run()
            held.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(CONFIGS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(CONFIGS[args.model]()).eval()
    if args.file is None or not args.file.exists():
        compiled = dhlo.compile(step_program(model), pages=step_pages(model, PAGE))
        if args.file is not None:
            compiled.save(args.file)
            return
    else:
        compiled = dhlo.load(args.file)
    print(f"{args.model}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters, {args.threads} threads")
    for what, sizes in (("prompt of 512", (1, PROMPT, 0)), ("1 sequence", (1, 1, PROMPT)), ("8 sequences", (8, 1, PROMPT))):
        ours, theirs = median_ms(packed(compiled, *sizes), eager(model, *sizes), SECONDS)
        print(f"{what:14} {ours:9.2f} ms   eager {theirs:9.2f} ms   {ours / theirs:.2f}", flush=True)


if __name__ == "__main__":
    main()
