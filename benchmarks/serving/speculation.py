"""What drafts give one stream of a model that says something: `python -m benchmarks.serving.speculation FOLDER [--draft-model
SMALLER]`, with folders of `benchmarks.serving.train`, over sources that they weren't trained on."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.serving.__main__ import compiled
from benchmarks.serving.train import HELD_OUT, sources

__all__: list[str] = []

_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 1},
    "at random, nothing is accepted": {"temperature": 50.0, "seed": 2},
}


def main() -> None:
    """Prints a table of tokens a second over those without drafts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.speculation", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--draft-precision", default="f32", help="as --precision of benchmarks.serving")
    parser.add_argument("--steps", type=Path, help="where compiled steps are, and are kept; by default nowhere")
    parser.add_argument("--kinds", nargs="*", default=[*_KINDS], help="those whose name begins so")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    os.environ["DHLO_NUM_THREADS"] = str(given.threads)
    import dhlo
    from dhlo.serve.engine import Engine
    from dhlo.serve.types import EngineOptions, SamplingParams

    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer.json"))
    texts = [x for k, x in enumerate(sources()) if k % HELD_OUT[0] == HELD_OUT[1] and len(x) > 6000][: given.prompts]
    prompts = [tokenizer.encode(x).ids[:600] for x in texts]
    with tempfile.TemporaryDirectory() as temporary:

        def loaded(folder: Path, precision: str) -> Any:
            file = (given.steps or Path(temporary)) / f"{folder.name}_{precision}.so"
            if not file.exists():
                compiled(folder, precision, file)
            return dhlo.load(file)

        model = loaded(given.folder, "f32")
        options = EngineOptions(cache_bytes=1 << 28, prefix_cache=False)
        kinds = {"none": options} | {f"lookup, {n}": replace(options, prompt_lookup=n) for n in (8, 16)}
        if given.draft_model:
            with_model = replace(options, draft_model=loaded(given.draft_model, given.draft_precision))
            kinds |= {"draft model, 8": replace(with_model, draft_branches=1), "as a tree": with_model}
            kinds |= {"as a tree, and lookup, 8": replace(with_model, prompt_lookup=8)}
        engines = {name: Engine(model, each) for name, each in kinds.items()}
        for engine in engines.values():  # memory is touched, nothing is learned of drafts
            engine.generate(prompts[:1], SamplingParams(max_tokens=given.tokens, ignore_eos=True, speculate=False))

        def timed(engine: Engine, prompt: list[int], tokens: int, kind: dict[str, Any]) -> tuple[float, tuple[int, ...]]:
            began = time.perf_counter()
            (out,) = engine.generate([prompt], SamplingParams(max_tokens=tokens, ignore_eos=True, **kind))
            return time.perf_counter() - began, out.choices[0].tokens

        print(f"| tokens | {' | '.join([*engines][1:])} | the same tokens |\n" + "| --- " * (len(engines) + 1) + "|")
        for name, kind in _KINDS.items():
            if not name.startswith(tuple(given.kinds)):
                continue
            taken, same = dict.fromkeys(engines, 0.0), 0
            for prompt in prompts:
                said = set[tuple[int, ...]]()
                for n, engine in engines.items():
                    first, _ = timed(engine, prompt, 1, kind)
                    whole, tokens = timed(engine, prompt, given.tokens, kind)
                    taken[n] += whole - first
                    said.add(tokens)
                same += len(said) == 1
            ratios = " | ".join(f"{taken['none'] / taken[n]:.2f}" for n in [*engines][1:])
            print(f"| {name} | {ratios} | {same} of {len(prompts)} |", flush=True)
        for n, engine in engines.items():
            stats = engine.stats()
            shares = [f"{s / stats.drafts:.2f}" for s in stats.accepted_at if s] if stats.drafts else []
            step, draft = stats.step_seconds / stats.steps, stats.draft_seconds / max(stats.draft_steps, 1)
            print(f"<!-- {n}: {1e3 * step:.2f} ms a step, {1e3 * draft:.2f} a draft's token; accepted by place {shares} -->")
            engine.close()


if __name__ == "__main__":
    main()
