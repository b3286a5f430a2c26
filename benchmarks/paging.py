"""Steps over pools of blocks, of a decoder of 110M parameters, in turns: beside caches in one piece (`blocks`), with pools of fewer
bits (`forms`), of sequences of all lengths (`ragged`), of parts of a prompt (`chunks`), behind keys in common (`shared`).
`python -m benchmarks.paging [TABLE] [--threads 2] [--tiny]`."""

from __future__ import annotations

import argparse
import mmap
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
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


def contiguous(model: Any, layers: int, batch: int, tokens: int, past: int, logits: int = 1) -> Callable[[], Any]:
    """A step of `tokens` each of `batch` sequences of equal length, whose caches have room behind them; the last `logits` tokens of
    each have such."""
    room = _in_large_pages(torch.randn(2, layers, batch, KV_HEADS, past + tokens, DEPTH))
    keys, values = ([layer[:, :, :past] for layer in side] for side in room)
    ids, positions = torch.ones(batch, tokens, dtype=torch.int64), torch.arange(past, past + tokens).expand(batch, tokens)
    mask, kept = torch.ones(batch, past + tokens, dtype=torch.int64), torch.arange(tokens - logits, tokens)
    return lambda: model(ids, mask, positions, kept, keys, values)


def paged(
    model: Any, layers: int, sequences: Sequence[tuple[int, int]], order: str = "in order", form: str = "", shared: int = 0
) -> Callable[[], Any]:
    """A step of sequences, each (tokens, past), the first `shared` keys of which are those of the first sequence. Blocks of a
    sequence follow one another, or are "shuffled", or, where sequences share keys in truth, are each one's own: "copied"."""
    return _steps(model, layers, sequences, [sequences], order, form, shared)


def chunks(model: Any, layers: int, tokens: int, size: int) -> Callable[[], Any]:
    """A prompt of so many tokens in steps of `size`; its last token alone has logits."""
    parts = [[(min(size, tokens - at), at)] for at in range(0, tokens, size)]
    return _steps(model, layers, parts[-1], parts, "in order", "", 0)


def _steps(
    model: Any,
    layers: int,
    longest: Sequence[tuple[int, int]],
    steps: Sequence[Sequence[tuple[int, int]]],
    order: str,
    form: str,
    shared: int,
) -> Callable[[], Any]:
    """Steps of the same sequences, of which `longest` has the most keys."""
    need = [-(-(n + past) // PAGE) for n, past in longest]
    same = 0 if order == "copied" else shared // PAGE  # blocks that all have
    count = sum(need) - same * (len(need) - 1)
    blocks = list(range(same, count))
    if order == "shuffled":
        random.Random(0).shuffle(blocks)
    tables = torch.zeros(len(need), max(need), dtype=torch.int32)
    for row, n in zip(tables, need, strict=True):
        row[:n] = torch.tensor([*range(same), *blocks[: n - same]], dtype=torch.int32)
        del blocks[: n - same]
    stored = [_stored(torch.randn(KV_HEADS, count * PAGE, DEPTH), form) for _ in range(2 * layers)]
    pools, scales = [_in_large_pages(x[0]) for x in stored], [y for x in stored for y in x[1:]]
    calls = []
    for sequences in steps:
        where = [(b, i) for b, (n, past) in enumerate(sequences) for i in range(past, past + n)]
        slots = torch.tensor([int(tables[b, i // PAGE]) * PAGE + i % PAGE for b, i in where])
        positions = torch.tensor([i for _, i in where])
        starts = torch.tensor([0, *(n for n, _ in sequences)]).cumsum(0)
        lengths = torch.tensor([n + past for n, past in sequences], dtype=torch.int32)
        ids, kept = torch.ones(1, len(where), dtype=torch.int64), starts[1:] - 1 if sequences is steps[-1] else starts[:0]
        columns = tables[:, : -(-int(lengths.max()) // PAGE)].contiguous()
        hidden = torch.zeros(len(where), dtype=torch.int32)  # no token is of a tree
        calls.append([ids, positions[None], kept, *pools, positions, slots, columns, starts.int(), lengths, *scales, hidden])
    return lambda: [model(*args) for args in calls]


def _in_large_pages(x: torch.Tensor) -> torch.Tensor:
    """The same where the system gives large pages to who asks for them, as the engine does for its pools."""
    memory = mmap.mmap(-1, max(x.nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has no large pages
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel()).reshape(x.shape).copy_(x)


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


class _Tables:
    """What there is to print, by name."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, c = given, config(given.tiny)
        self.program, self.layers = step_program(LlamaForCausalLM(c).eval()), c.num_hidden_layers
        self.pasts = (5, 40) if given.tiny else (128, 1024, 4096)
        self.long = 32 if given.tiny else 512

    def step(self, form: str = "") -> Any:
        return dhlo.compile(self.program, pages={"keys*": PAGE, "values*": PAGE}, kv_cache=form)

    def in_blocks(self) -> Any:
        """A step over blocks: that of the first file that was given, if there is one."""
        return dhlo.load(self.given.steps[0]) if self.given.steps else self.step()

    def in_one_piece(self) -> Any:
        return dhlo.compile(self.program, grow={"keys*": 2, "values*": 2})

    def show(self, titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Callable[[], Callable[[], Any]]]]]) -> None:
        """Milliseconds of runs of each row, and their ratios to the first's; what runs need is made when its row is shown."""
        print(f"| step | {titles[0]}, ms |" + "".join(f" {t}, ms | ratio |" for t in titles[1:]))
        print("| --- |" + " --- |" * (2 * len(titles) - 1))
        for name, makers in rows:
            if self.given.only in name:
                t, *rest = in_turns([make() for make in makers], self.given.budget)
                print(f"| {name} | {1e3 * t:.2f} |" + "".join(f" {1e3 * x:.2f} | {x / t:.3f} |" for x in rest), flush=True)

    def blocks(self) -> None:
        """Pools beside caches in one piece."""
        dense, step, layers, pasts, long = self.in_one_piece(), self.in_blocks(), self.layers, self.pasts, self.long
        cases: list[tuple[str, tuple[int, int, int], list[tuple[int, int]]]] = [
            (f"decoding, {batch} behind {past}", (batch, 1, past), [(1, past)] * batch) for past in pasts for batch in (1, 8)
        ]
        cases.append((f"prompt of {long}", (1, long, 0), [(long, 0)]))
        cases.append((f"part of {long} behind {2 * long}", (1, long, 2 * long), [(long, 2 * long)]))
        uneven = [(1, pasts[-1] * 2), *((1, pasts[0] // 2) for _ in range(7))]
        name = f"1 behind {pasts[-1] * 2} and 7 behind {pasts[0] // 2}, beside the 1 alone"
        cases.append((name, (1, 1, pasts[-1] * 2), uneven))

        def run(one: tuple[int, int, int], sequences: list[tuple[int, int]]) -> list[Callable[[], Callable[[], Any]]]:
            each = [partial(paged, step, layers, sequences, order) for order in ("in order", "shuffled")]
            return [partial(contiguous, dense, layers, *one), *each]

        self.show(("in one piece", "in blocks", "in blocks in no order"), [(name, run(one, many)) for name, one, many in cases])

    def forms(self) -> None:
        """Pools of fewer bits beside those of f32."""
        forms = ("", "bf16", "f16", "int8")
        steps = {form: self.step(form) for form in forms}
        rows = [
            (
                f"decoding, {batch} behind {past}",
                [partial(paged, steps[x], self.layers, [(1, past)] * batch, form=x) for x in forms],
            )
            for past in self.pasts[-2:]
            for batch in (1, 8)
        ]
        self.show(("pools of f32", *forms[1:]), rows)

    def ragged(self) -> None:
        """Steps of sequences of all lengths beside a batch of equal ones in one piece, of as many tokens, rows of logits and,
        to one in a hundred, keys that tokens see."""
        dense, step, draw = self.in_one_piece(), self.in_blocks(), random.Random(0)
        past, short = self.pasts[-2], self.long // 16
        behind = [draw.randrange(past) for _ in range(31)]
        one_prompt = [(self.long // 2 + 1, 0), *((1, p) for p in behind)]  # 288 tokens
        parts = [*((2 * short, p) for p in behind[:4]), *((1, p) for p in behind[3:])]
        rows = []
        for name, sequences, batch in (
            (f"prompt of {self.long // 2 + 1} and 31 of 1 behind up to {past}", one_prompt, 8),
            (f"4 of {2 * short} and 28 of 1 behind up to {past}", parts, 4),
            (f"32 of 1 behind up to {past}", [(1, p) for p in (0, *behind)], 32),
        ):
            tokens = sum(n for n, _ in sequences)
            keys = sum(n * p + n * (n + 1) // 2 for n, p in sequences)
            each = tokens // batch
            alike = partial(contiguous, dense, self.layers, batch, each, max(keys // tokens - each // 2, 0), 32 // batch)
            rows.append((f"{name}, beside {batch} of {each}", [alike, partial(paged, step, self.layers, sequences, "shuffled")]))
        self.show(("equal sequences", "ragged"), rows)

    def chunks(self) -> None:
        """A prompt in one step, and in several."""
        step, total = self.in_blocks(), 2 * self.long
        sizes = (total, total // 2, total // 4, total // 8)
        makers = [partial(chunks, step, self.layers, total, size) for size in sizes]
        self.show(("in one step", *(f"in steps of {size}" for size in sizes[1:])), [(f"prompt of {total}", makers)])

    def shared(self) -> None:
        """Sequences that begin with the same blocks, beside such that have the same keys in blocks of their own."""
        steps = [dhlo.load(file) for file in self.given.steps] or [self.step()]
        titles = ["copied"] + ["shared" if len(steps) == 1 else f"shared, {file}" for file in self.given.steps or [""]]
        rows = []
        for many in (1, 8, 32):
            for past in self.pasts[-2:]:
                sequences = [(1, past + 64)] * many
                of = [partial(paged, s, self.layers, sequences, "in order", shared=past) for s in steps]
                name = f"{many} behind {past} shared and 64 own"
                rows.append((name, [partial(paged, steps[0], self.layers, sequences, "copied", shared=past), *of]))
        self.show(titles, rows)


def main() -> None:
    """Prints a table of milliseconds, and their ratios."""
    tables = ("blocks", "forms", "ragged", "chunks", "shared")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paging", description=__doc__)
    parser.add_argument("table", nargs="?", choices=tables, default="blocks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=4, help="seconds of timing for each row")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the machinery")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--steps", nargs="*", default=[], help="files of compiled steps, to be measured in place of one made here")
    parser.add_argument("--save", default="", help="saves a compiled step to this file, and ends")
    given = parser.parse_args()
    os.environ["DHLO_NUM_THREADS"] = str(given.threads)
    torch.manual_seed(0)
    made = _Tables(given)
    if given.save:
        made.step().save(given.save)
    else:
        getattr(made, given.table)()


if __name__ == "__main__":
    main()
