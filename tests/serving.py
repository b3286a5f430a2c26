"""What tests of serving share: a folder with a small model, and an engine that gives tokens by a rule."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dhlo.errors import ContractError, ModelFileError
from dhlo.serve.chat import ChatTemplate
from dhlo.serve.embed import Embedder
from dhlo.serve.engine import Engine
from dhlo.serve.folder import Served
from dhlo.serve.pipeline import Pipeline
from dhlo.serve.tokens import Tokenizer as Words
from dhlo.serve.types import EngineStats, Event, FinishReason, QueueFullError, SamplingParams, TokenLogprobs

__all__ = [
    "CHATML",
    "EOS",
    "WORDS",
    "RuleEngine",
    "RuleRequest",
    "byte_level",
    "held",
    "make_folder",
    "rule_embedder",
    "rule_served",
    "sentence_piece",
]

ROOT = Path(__file__).resolve().parents[1]
WORDS = 400
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EOS = 2  # <|im_end|>
_SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")


def _texts() -> Sequence[str]:
    return [p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))[:4]]


@contextlib.contextmanager
def held(engine: Engine, prompt: Sequence[int] = (1,), inputs: Mapping[str, Any] | None = None) -> Iterator[None]:
    """What is submitted inside begins together: the engine is at the first token of another request, which waits for it."""
    begun, there = threading.Event(), threading.Event()

    def wait(*_: Any) -> bool:
        begun.set()
        return there.wait(60)

    first = engine.submit(prompt, SamplingParams(temperature=0, max_tokens=1, constrain=wait), inputs)
    assert begun.wait(60)
    try:
        yield
    finally:
        there.set()
    first.result(60)


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


# ------------------------------------------------------------------ an engine by a rule
class RuleRequest:
    """Says the prompt again, from its token number `choice` on, then what ends a text."""

    def __init__(self, engine: RuleEngine, prompt: Sequence[int], params: SamplingParams) -> None:
        self.prompt, self.params, self.cached_tokens = list(prompt), params, min(len(prompt) // 2, 16)
        self.cancelled = self.ended = False
        self._engine = engine

    def cancel(self) -> None:
        self.cancelled = True
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._engine.working -= 1

    def _constrained(self, choice: int) -> list[int]:
        """The lowest tokens that may come, what ends a text among the first."""
        constrain, out = self.params.constrain, list[int]()
        assert constrain is not None
        while len(out) < self.params.max_tokens and out[-1:] != [EOS]:
            mask = array("I", [0xFFFFFFFF] * (WORDS // 32 + 1))
            constrain(choice, out, memoryview(mask))
            allowed = [t for t in range(WORDS) if mask[t // 32] >> t % 32 & 1]
            out.append(EOS if EOS in allowed else allowed[(7 * choice + len(out)) % len(allowed)])
        return out

    def _events(self, choice: int) -> list[Event]:
        vocabulary, p = self._engine.vocabulary, self.params
        tokens = (
            self._constrained(choice)
            if p.constrain
            else [*self.prompt[choice:], EOS]
            if not p.ignore_eos
            else [*self.prompt[choice:]] * 100
        )
        for k, t in enumerate(tokens):
            if t in p.stop_tokens:
                tokens = tokens[: k + 1]
                break
        finish = FinishReason.STOP if len(tokens) <= p.max_tokens else FinishReason.LENGTH
        tokens = tokens[: p.max_tokens]
        ends = [len(b"".join(vocabulary[t] for t in tokens[: k + 1])) for k in range(len(tokens))]
        text = b"".join(vocabulary[t] for t in tokens)
        found = min(((text.find(s.encode()), s) for s in p.stop if s.encode() in text), default=None)
        held = 1
        if found is not None:
            at, stop = found
            last = next(k for k, end in enumerate(ends) if end >= at + len(stop.encode()))
            tokens, finish = tokens[: last + 1], FinishReason.STOP
            held = len(tokens) - sum(end <= at for end in ends[: last + 1])
        logs = [TokenLogprobs(-0.5 * k, ((t, -0.5 * k), (3, float("-inf")))[: p.logprobs]) for k, t in enumerate(tokens)]
        logs = logs if p.logprobs is not None else []
        events = [Event(choice, (t,), tuple(logs[k : k + 1])) for k, t in enumerate(tokens[: len(tokens) - held])]
        at = len(tokens) - held
        return [*events, Event(choice, tuple(tokens[at:]), tuple(logs[at:]), finish, found and found[1])]

    async def __aiter__(self) -> AsyncIterator[Event]:
        parts = [self._events(c) for c in range(self.params.n)]
        for k in range(max(map(len, parts))):
            for events in parts:
                if k < len(events):
                    await asyncio.sleep(self._engine.delay)
                    if self.cancelled:
                        return
                    if self._engine.fails:
                        yield Event(events[k].choice, (), finish=FinishReason.ERROR, error="the rule fails")
                        self._end()
                        return
                    self._engine.generated += len(events[k].tokens)
                    yield events[k]
        self._end()


class RuleEngine:
    """Takes `most` requests at once; `delay` seconds for each token."""

    def __init__(self, vocabulary: Sequence[bytes], most: int = 1000, delay: float = 0.0) -> None:
        self.vocabulary, self.most, self.delay, self.fails = vocabulary, most, delay, False
        self.requests: list[RuleRequest] = []
        self.working = self.generated = 0
        self.drained = False
        self.failure = ""
        self.adapters: dict[str, str] = {}

    def load_adapter(self, name: str, adapter: str) -> None:
        if not adapter.startswith("/adapters"):
            raise ModelFileError(f"'{adapter}' has no adapter_config.json")
        if len(self.adapters) == 2:
            raise QueueFullError("there is room for 2 adapters")
        self.adapters[name] = adapter

    def unload_adapter(self, name: str) -> None:
        del self.adapters[name]

    def submit(self, prompt: Sequence[int], params: SamplingParams) -> RuleRequest:
        if self.drained or self.working >= self.most:
            raise QueueFullError("as many requests wait as may")
        if params.logit_bias:
            raise ContractError("the rule knows no bias")
        self.requests.append(RuleRequest(self, prompt, params))
        self.working += 1
        return self.requests[-1]

    def stats(self) -> EngineStats:
        prompts = sum(len(r.prompt) - r.cached_tokens for r in self.requests)
        cached = sum(r.cached_tokens for r in self.requests)
        done = {"stop": sum(r.ended for r in self.requests)}
        tiers = {"folder": {"bytes": 4096, "blocks": 7, "hits": 3, "failures": 0, "dropped": 0}}
        return EngineStats(
            self.working, 0, 1, prompts, cached, self.generated, 0, 100, 25, 5, 0, 0, 0, done, tiers, failure=self.failure
        )

    def drain(self, timeout: float | None = None) -> bool:
        self.drained = True
        return not self.working

    def close(self) -> None:
        for r in self.requests:
            r.cancel()


def rule_served(tokenizer: Words, template: str | None = CHATML) -> Served:
    """What a server needs beside such an engine: no step."""
    nothing: Any = None
    chat = None if template is None else ChatTemplate({"default": template})
    return Served("rule", nothing, tokenizer, chat, (EOS,), 512, {"top_k": 50})


def rule_embedder(folder: Path, **options: Any) -> Embedder:
    """Of the tokenizer in a folder: a vector is of length 1 and in the direction of (length, the sum of the tokens, 1, ..., 1), of
    eight features."""

    def run(ids: Any, lengths: Any) -> Any:
        vectors = np.ones((len(ids), 8), np.float32)
        vectors[:, 0] = lengths
        vectors[:, 1] = [row[:n].sum() for row, n in zip(ids, lengths, strict=True)]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    prompts = {"query": "w1 "}
    pipeline = Pipeline(folder, {"vocab_size": WORDS}, ("mean_tokens",), (None,), 64, prompts=prompts)
    return Embedder(run, 8, pipeline, name="rule", **options)


# ------------------------------------------------------------------ speech
SPEECH_SECONDS = 2
"""Of a piece of the model below."""
LANGUAGES = ("en", "de", "yue")


def speech_words(path: Path) -> Words:
    """Byte-level BPE with the tokens that Whisper has behind it: what begins, languages, tasks, and times of two seconds."""
    tokenizer = byte_level()
    marks = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startofprev", "nospeech", "notimestamps"]
    tokenizer.add_special_tokens([AddedToken(f"<|{m}|>", special=True) for m in marks])
    tokenizer.add_tokens([AddedToken(f"<|{k * 0.02:.2f}|>", special=False) for k in range(50 * SPEECH_SECONDS + 1)])
    tokenizer.save(str(path))
    return Words(path, tokenizer.get_vocab_size())


def make_speech_folder(folder: Path) -> Path:
    """A small Whisper of random weights, as save_pretrained writes such, with what its tokens are."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder.mkdir(exist_ok=True)
    words = speech_words(folder / "tokenizer.json")
    number = {m: words.number_of(f"<|{m}|>") for m in ("endoftext", "startoftranscript", "translate", "transcribe", "notimestamps")}
    torch.manual_seed(0)
    end = number["endoftext"]
    tokens = dict(vocab_size=len(words.vocabulary), pad_token_id=end, bos_token_id=end, eos_token_id=end)
    layers = dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes = dict(d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=50 * SPEECH_SECONDS)
    start = number["startoftranscript"]
    config = WhisperConfig(**tokens, **layers, **sizes, max_target_positions=64, decoder_start_token_id=start)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.3)
    told = model.generation_config
    told._from_model_config = False
    told.is_multilingual, told.no_timestamps_token_id, told.decoder_start_token_id = True, number["notimestamps"], start
    told.lang_to_id = {f"<|{x}|>": words.number_of(f"<|{x}|>") for x in LANGUAGES}
    told.task_to_id = {x: number[x] for x in ("translate", "transcribe")}
    told.suppress_tokens = [10, 11, 12, number["translate"], number["transcribe"], words.number_of("<|startofprev|>")]
    told.begin_suppress_tokens = [20, end]
    told.pad_token_id, told.eos_token_id, told.bos_token_id, told.max_length = end, end, end, 64
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=SPEECH_SECONDS).save_pretrained(folder)
    return folder
