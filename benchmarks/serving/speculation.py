"""What drafts by prompt lookup give one stream of a model that says something: `python -m benchmarks.serving.speculation FOLDER`,
with a FOLDER of `benchmarks.serving.train`, over sources that it wasn't trained on."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.serving.__main__ import compiled
from benchmarks.serving.train import HELD_OUT, sources

__all__: list[str] = []

_DRAFTS = (0, 4, 8)
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 1},
    "at random, nothing is accepted": {"temperature": 50.0, "seed": 2},
}


def main() -> None:
    """Prints a table of tokens a second over those without drafts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.speculation", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    os.environ["DHLO_NUM_THREADS"] = str(given.threads)
    import dhlo
    from dhlo.serve.engine import Engine
    from dhlo.serve.types import EngineOptions, SamplingParams

    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer.json"))
    texts = [x for k, x in enumerate(sources()) if k % HELD_OUT[0] == HELD_OUT[1] and len(x) > 6000][:12]
    prompts = [tokenizer.encode(x).ids[:600] for x in texts]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "step.so"
        compiled(given.folder, "f32", file)
        model = dhlo.load(file)
        engines = {n: Engine(model, EngineOptions(cache_bytes=1 << 28, prompt_lookup=n, prefix_cache=False)) for n in _DRAFTS}

        def timed(engine: Engine, prompt: list[int], tokens: int, kind: dict[str, Any]) -> tuple[float, tuple[int, ...]]:
            began = time.perf_counter()
            (out,) = engine.generate([prompt], SamplingParams(max_tokens=tokens, ignore_eos=True, **kind))
            return time.perf_counter() - began, out.choices[0].tokens

        print("| tokens | " + " | ".join(f"drafts of {n}" for n in _DRAFTS[1:]) + " | the same tokens |\n| --- | --- | --- | --- |")
        for name, kind in _KINDS.items():
            taken, same = dict.fromkeys(_DRAFTS, 0.0), 0
            for prompt in prompts:
                said = set[tuple[int, ...]]()
                for n, engine in engines.items():
                    first, _ = timed(engine, prompt, 1, kind)
                    whole, tokens = timed(engine, prompt, given.tokens, kind)
                    taken[n] += whole - first
                    said.add(tokens)
                same += len(said) == 1
            ratios = " | ".join(f"{taken[0] / taken[n]:.2f}" for n in _DRAFTS[1:])
            print(f"| {name} | {ratios} | {same} of {len(prompts)} |", flush=True)
        for engine in engines.values():
            engine.close()


if __name__ == "__main__":
    main()
