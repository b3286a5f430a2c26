"""Trains a small decoder on the standard library's sources, so that it says something: random weights loop on one token, which
speculation and eviction can't be judged by. `python -m benchmarks.serving.train FOLDER [--minutes 10]`. All have the same
vocabulary, so that a small one drafts for a large one (`--hidden 512 --layers 6`)."""

from __future__ import annotations

import argparse
import random
import sysconfig
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["HELD_OUT", "sources"]

_VOCABULARY, _LENGTH = 4096, 256
HELD_OUT = (20, 7)  # of so many sources that one isn't trained on


def sources() -> list[str]:
    """Texts of the standard library, in a fixed order."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")) + sorted(
        Path(sysconfig.get_paths()["stdlib"]).glob("*/*.py")
    )
    kept = [f for f in files if "site-packages" not in f.parts and "test" not in f.parts]
    return [f.read_text(encoding="utf-8", errors="ignore") for f in kept]


def tokenizer(texts: list[str]) -> Tokenizer:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    special = {"special_tokens": ["<s>", "</s>"], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=_VOCABULARY, show_progress=False, **special))
    return t


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.train", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="of the processor's time, over all threads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    rng = random.Random(0)
    texts = sources()
    t = tokenizer(texts)
    held_out = {k for k in range(len(texts)) if k % HELD_OUT[0] == HELD_OUT[1]}
    tokens = torch.tensor([i for k, x in enumerate(texts) if k not in held_out for i in [0, *t.encode(x).ids]])
    heads = given.hidden // 64
    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=given.hidden, intermediate_size=given.hidden * 8 // 3 // 64 * 64,
        num_hidden_layers=given.layers, num_attention_heads=heads, num_key_value_heads=max(heads // 2, 1), head_dim=64,
        max_position_embeddings=16384, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    began, step, average = time.process_time(), 0, 0.0
    while (share := (time.process_time() - began) / (60 * given.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 50) * (1.02 - share)
        at = [rng.randrange(len(tokens) - _LENGTH - 1) for _ in range(8)]
        batch = torch.stack([tokens[i : i + _LENGTH] for i in at])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, average = step + 1, 0.98 * average + 0.02 * float(loss) if step else float(loss)
        if step % 50 == 0:
            print(f"{time.process_time() - began:6.0f} s, {step * batch.numel():9,} tokens, loss {average:.3f}", flush=True)
    model.save_pretrained(given.folder)
    PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>").save_pretrained(given.folder)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters in {given.folder}")


if __name__ == "__main__":
    main()
