"""Vectors of ragged texts by a BERT-base of random weights: here, and by PyTorch as sentence-transformers batches them.

`python -m benchmarks.serving.embeddings [--cache FOLDER] [--threads 2]`: seconds of each round, which take turns, and tokens a
second of the medians.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models

from dhlo.serve.embed import open_embedder

VOCABULARY = 30_522
BATCH = 32  # of sentence-transformers' encode()


def ragged(count: int, shortest: int, longest: int) -> list[list[int]]:
    """Texts whose lengths' logarithms are uniform."""
    r = random.Random(0)
    lengths = [round(math.exp(r.uniform(math.log(shortest), math.log(longest)))) for _ in range(count)]
    return [[r.randrange(1000, VOCABULARY) for _ in range(n)] for n in lengths]


@torch.inference_mode()
def by_pytorch(model: torch.nn.Module, texts: list[list[int]]) -> np.ndarray:
    """As SentenceTransformer.encode: the longest first, batches of 32 padded to their longest, the mean, of length 1."""
    order = sorted(range(len(texts)), key=lambda k: -len(texts[k]))
    out = np.empty((len(texts), 768), np.float32)
    for at in range(0, len(order), BATCH):
        batch = [texts[k] for k in order[at : at + BATCH]]
        ids = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, kept, text in zip(ids, mask, batch, strict=True):
            row[: len(text)], kept[: len(text)] = torch.tensor(text), 1
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        out[order[at : at + BATCH]] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
    return out


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prepare", action="store_true", help="compile into the cache, and end")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.cache or temporary) / "bert-base"
        if not (folder / "tokenizer.json").exists():
            model = transformers.BertModel(transformers.BertConfig()).eval()
            model.save_pretrained(folder)
            Tokenizer(models.WordLevel({"x": 0}, unk_token="x")).save(str(folder / "tokenizer.json"))
        with open_embedder(folder, cache=args.cache, threads=args.threads) as embedder:
            if args.prepare:
                return
            model = transformers.BertModel.from_pretrained(folder).eval()
            for what, texts in {
                "64 texts of 8 to 512 tokens": ragged(64, 8, 512),
                "128 texts of 8 to 64 tokens": ragged(128, 8, 64),
                "1 text of 24 tokens": ragged(1, 24, 24),
            }.items():
                seconds: dict[str, list[float]] = {"here": [], "PyTorch": []}
                for _ in range(args.rounds + 1):
                    for name, run in (("here", embedder.embed), ("PyTorch", lambda texts: by_pytorch(model, texts))):
                        start = time.perf_counter()
                        vectors = run(texts)
                        seconds[name].append(time.perf_counter() - start)
                        if name == "here":
                            got = vectors
                        else:
                            differs = float(np.abs(got - vectors).max())
                tokens = sum(map(len, texts))
                rates = {name: tokens / statistics.median(s[1:]) for name, s in seconds.items()}
                said = ", ".join(f"{name} {rate:.0f} tokens a second" for name, rate in rates.items())
                print(f"{what}: {said}; {rates['here'] / rates['PyTorch']:.2f} times; vectors differ by {differs:.1e}", flush=True)


if __name__ == "__main__":
    main()
