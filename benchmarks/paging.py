"""What pools of blocks cost beside caches in one piece, or pools of fewer bits beside those of f32: steps of a decoder of 110M
parameters, in turns. `python -m benchmarks.paging [--threads 2] [--forms] [--tiny]`."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dhlo
from dhlo.integrations.decoder import step_program
from dhlo.passes.quantise_caches import quantise_rows

__all__: list[str] = []

PAGE, DEPTH, KV_HEADS, LAYERS = 16, 64, 4, 12


def config(tiny: bool) -> LlamaConfig:
    """As the decoder of W2 is."""
    small: dict[str, Any] = {"vocab_size": 97, "hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes = {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": LAYERS}
    return LlamaConfig(**(small if tiny else sizes), num_attention_heads=12, num_key_value_heads=KV_HEADS, head_dim=DEPTH)


def contiguous(model: Any, layers: int, batch: int, tokens: int, past: int) -> Callable[[], Any]:
    """A step of `tokens` each of `batch` sequences of equal length, whose caches have room behind them."""
    room = torch.randn(2, layers, batch, KV_HEADS, past + tokens, DEPTH)
    keys, values = ([layer[:, :, :past] for layer in side] for side in room)
    ids, positions = torch.ones(batch, tokens, dtype=torch.int64), torch.arange(past, past + tokens).expand(batch, tokens)
    mask, kept = torch.ones(batch, past + tokens, dtype=torch.int64), torch.tensor([tokens - 1])
    return lambda: model(ids, mask, positions, kept, keys, values)


def paged(model: Any, layers: int, sequences: Sequence[tuple[int, int]], shuffled: bool, form: str = "") -> Callable[[], Any]:
    """A step of sequences, each (tokens, past); blocks of a sequence follow one another, or are `shuffled`."""
    need = [-(-(n + past) // PAGE) for n, past in sequences]
    blocks = list(range(sum(need)))
    if shuffled:
        random.Random(0).shuffle(blocks)
    tables = torch.zeros(len(need), max(need), dtype=torch.int32)
    for row, n in zip(tables, need, strict=True):
        row[:n] = torch.tensor(blocks[:n], dtype=torch.int32)
        del blocks[:n]
    where = [(b, i) for b, (n, past) in enumerate(sequences) for i in range(past, past + n)]
    slots = torch.tensor([int(tables[b, i // PAGE]) * PAGE + i % PAGE for b, i in where])
    positions = torch.tensor([i for _, i in where])
    starts = torch.tensor([0, *(n for n, _ in sequences)]).cumsum(0)
    lengths = torch.tensor([n + past for n, past in sequences], dtype=torch.int32)
    stored = [_stored(torch.randn(KV_HEADS, sum(need) * PAGE, DEPTH), form) for _ in range(2 * layers)]
    pools, scales = [x[0] for x in stored], [y for x in stored for y in x[1:]]
    ids = torch.ones(1, len(where), dtype=torch.int64)
    args = [ids, positions[None], starts[1:] - 1, *pools, positions, slots, tables, starts.int(), lengths, *scales]
    return lambda: model(*args)


def _stored(rows: torch.Tensor, form: str) -> list[torch.Tensor]:
    """Rows in a format, and their scales if it has such."""
    if form == "int8":
        codes, scales = quantise_rows(rows, DEPTH)
        return [codes, scales]
    return [rows.to({"bf16": torch.bfloat16, "f16": torch.float16}.get(form, torch.float32))]


def in_turns(runs: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Median seconds of a call of each."""
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for run, taken in zip(runs, times, strict=True):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    return [statistics.median(t) for t in times]


def main() -> None:
    """Prints a table of milliseconds, and their ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paging", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=4, help="seconds of timing for each row")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the machinery")
    parser.add_argument("--forms", action="store_true", help="pools of fewer bits beside f32")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    given = parser.parse_args()
    os.environ["DHLO_NUM_THREADS"] = str(given.threads)
    torch.manual_seed(0)
    c = config(given.tiny)
    program, layers = step_program(LlamaForCausalLM(c).eval()), c.num_hidden_layers
    if given.forms:
        _compare_forms(program, layers, given)
        return
    dense = dhlo.compile(program, grow={"keys*": 2, "values*": 2})
    step = dhlo.compile(program, pages={"keys*": PAGE, "values*": PAGE})
    pasts = (5, 40) if given.tiny else (128, 1024, 4096)
    long = 20 if given.tiny else 512
    rows: list[tuple[str, Callable[[], Any], list[Callable[[], Any]]]] = []
    for past in pasts:
        for batch in (1, 8):
            each = [paged(step, layers, [(1, past)] * batch, shuffled) for shuffled in (False, True)]
            rows.append((f"decoding, {batch} behind {past}", contiguous(dense, layers, batch, 1, past), each))
    each = [paged(step, layers, [(long, 0)], shuffled) for shuffled in (False, True)]
    rows.append((f"prompt of {long}", contiguous(dense, layers, 1, long, 0), each))
    each = [paged(step, layers, [(long, 2 * long)], shuffled) for shuffled in (False, True)]
    rows.append((f"part of {long} behind {2 * long}", contiguous(dense, layers, 1, long, 2 * long), each))
    mixed = [(long // 4, 0), *((1, pasts[1]) for _ in range(7))]
    each = [paged(step, layers, mixed, shuffled) for shuffled in (False, True)]
    rows.append(
        (
            f"prompt of {long // 4} and 7 behind {pasts[1]}, beside a batch",
            contiguous(dense, layers, 1, long // 4 + 7, pasts[1]),
            each,
        )
    )
    uneven = [(1, pasts[-1] * 2), *((1, pasts[0] // 2) for _ in range(7))]
    each = [paged(step, layers, uneven, shuffled) for shuffled in (False, True)]
    name = f"1 behind {pasts[-1] * 2} and 7 behind {pasts[0] // 2}, beside the 1 alone"
    rows.append((name, contiguous(dense, layers, 1, 1, pasts[-1] * 2), each))
    print(
        "| step | in one piece, ms | in blocks, ms | ratio | in blocks in no order, ms | ratio |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for name, base, others in rows:
        if given.only in name:
            t, *rest = in_turns([base, *others], given.budget)
            print(f"| {name} | {1e3 * t:.2f} |" + "".join(f" {1e3 * x:.2f} | {x / t:.3f} |" for x in rest), flush=True)


def _compare_forms(program: Any, layers: int, given: argparse.Namespace) -> None:
    """Prints a table of milliseconds, and their ratios to those of f32."""
    forms = ("", "bf16", "f16", "int8")
    steps = {form: dhlo.compile(program, pages={"keys*": PAGE, "values*": PAGE}, kv_cache=form) for form in forms}
    print("| step | pools of f32, ms |" + "".join(f" {form}, ms | ratio |" for form in forms[1:]))
    print("| --- |" + " --- |" * (2 * len(forms) - 1))
    for past in (5, 40) if given.tiny else (1024, 4096):
        for batch in (1, 8):
            name = f"decoding, {batch} behind {past}"
            if given.only in name:
                t, *rest = in_turns([paged(steps[x], layers, [(1, past)] * batch, False, x) for x in forms], given.budget)
                print(f"| {name} | {1e3 * t:.2f} |" + "".join(f" {1e3 * x:.2f} | {x / t:.3f} |" for x in rest), flush=True)


if __name__ == "__main__":
    main()
