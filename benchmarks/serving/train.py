"""Trains a small decoder on the standard library's sources, so that it says something: random weights loop on one token, which
speculation and eviction can't be judged by. `python -m benchmarks.serving.train FOLDER [--minutes 10]`. All have the same
vocabulary, so that a small one drafts for a large one (`--hidden 512 --layers 6`).

With `--teacher LARGER` it learns what that says instead (distillation: Hinton et al. 2015), of the sources and of its own most
likely continuations of them (Kim and Rush 2016), which is what a draft model is asked for."""

from __future__ import annotations

import argparse
import random
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["HELD_OUT", "sources"]

_VOCABULARY, _LENGTH = 4096, 256
_CONTINUED, _CONTINUATION = 320, 192  # tokens of a source, and what a teacher says behind them
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


def continuations(folder: Path, prompts: list[list[int]], threads: int) -> torch.Tensor:
    """Prompts of one length with what the folder's model says behind them, the most likely tokens: [prompts, tokens]."""
    import dhlo
    from benchmarks.serving.__main__ import compiled
    from dhlo.serve.engine import Engine
    from dhlo.serve.types import EngineOptions, SamplingParams

    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "step.so"
        compiled(folder, "f32", file)
        options = EngineOptions(cache_bytes=1 << 29, max_sequences=32)
        with Engine(dhlo.load(file, num_threads=threads), options) as engine:
            outs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=_CONTINUATION, ignore_eos=True))
    return torch.tensor([[*prompt, *out.choices[0].tokens] for prompt, out in zip(prompts, outs, strict=True)])


def taught(teacher: LlamaForCausalLM, student: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """The mean over tokens of cross entropy to what the teacher says next, and to what it deems most likely."""
    with torch.no_grad():
        said = teacher(input_ids=batch).logits.float().flatten(0, 1)
    logits = student(input_ids=batch).logits.float().flatten(0, 1)
    entropy = torch.nn.functional.cross_entropy
    return 0.5 * (entropy(logits, said.softmax(1)) + entropy(logits, said.argmax(1)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.train", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="of the processor's time, over all threads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--teacher", type=Path, help="a folder that this has made")
    parser.add_argument("--continued", type=int, default=600, help="so many places the teacher goes on at")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    rng = random.Random(0)
    texts = sources()
    t = tokenizer(texts) if given.teacher is None else Tokenizer.from_file(str(given.teacher / "tokenizer.json"))
    held_out = {k for k in range(len(texts)) if k % HELD_OUT[0] == HELD_OUT[1]}
    tokens = torch.tensor([i for k, x in enumerate(texts) if k not in held_out for i in [0, *t.encode(x).ids]])

    def windows(count: int, length: int) -> torch.Tensor:
        at = [rng.randrange(len(tokens) - length - 1) for _ in range(count)]
        return torch.stack([tokens[i : i + length] for i in at])

    heads = given.hidden // 64
    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=given.hidden, intermediate_size=given.hidden * 8 // 3 // 64 * 64,
        num_hidden_layers=given.layers, num_attention_heads=heads, num_key_value_heads=max(heads // 2, 1), head_dim=64,
        max_position_embeddings=16384, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    loss_of: Callable[[], torch.Tensor]
    if given.teacher is None:
        learned = 8 * _LENGTH

        def loss_of() -> torch.Tensor:
            batch = windows(8, _LENGTH)
            return model(input_ids=batch, labels=batch).loss
    else:
        teacher = LlamaForCausalLM.from_pretrained(given.teacher).eval()
        # Directions in which the teacher's embeddings differ most are the first to be told apart.
        embeddings = teacher.get_input_embeddings().weight.detach()
        most = torch.linalg.svd(embeddings, full_matrices=False).Vh[: given.hidden]
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(embeddings @ most.T)
        began = time.time()
        said = continuations(given.teacher, windows(given.continued, _CONTINUED).tolist(), given.threads)
        print(f"{said.numel() - given.continued * _CONTINUED:,} tokens of the teacher's in {time.time() - began:.0f} s", flush=True)
        length = said.shape[1]
        learned = 4 * length

        def loss_of() -> torch.Tensor:
            own = said[[rng.randrange(len(said)) for _ in range(2)]]
            return taught(teacher, model, torch.cat([own, windows(2, length)]))

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    spent, step, average = time.process_time(), 0, 0.0
    while (share := (time.process_time() - spent) / (60 * given.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 50) * (1.02 - share)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, average = step + 1, 0.98 * average + 0.02 * float(loss.detach()) if step else float(loss.detach())
        if step % 50 == 0:
            print(f"{time.process_time() - spent:6.0f} s, {step * learned:9,} tokens, loss {average:.3f}", flush=True)
    model.save_pretrained(given.folder)
    PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>").save_pretrained(given.folder)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters in {given.folder}")


if __name__ == "__main__":
    main()
