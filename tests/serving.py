"""What tests of serving share: a folder with a small model, and an engine that gives tokens by a rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

__all__ = ["CHATML", "WORDS", "byte_level", "make_folder", "sentence_piece"]

ROOT = Path(__file__).resolve().parents[1]
WORDS = 400
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")


def _texts() -> Sequence[str]:
    return [p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))[:4]]


def byte_level(size: int = WORDS) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen, ... have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True) for t in _SPECIAL]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def sentence_piece(size: int = WORDS) -> Tokenizer:
    """BPE with byte fallback, as Llama 2, Gemma, ... have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")]
    octets = [AddedToken(f"<0x{b:02X}>", special=False, normalized=False) for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*special, *octets], show_progress=False)
    tokenizer.train_from_iterator([" ".join(_texts()[0].split()[:400])], trainer)
    # Bytes are words of the vocabulary, not added tokens, which would be found in text.
    told = json.loads(tokenizer.to_str())
    told["added_tokens"] = [t for t in told["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(told))


def make_folder(folder: Path, *, template: str | None = CHATML, tokenizer: Tokenizer | None = None) -> Path:
    """A small Llama of random weights with a tokenizer, as save_pretrained writes such."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=2,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "bos_token": None} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder
