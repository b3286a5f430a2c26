"""generate() over compiled encoder-decoders of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from transformers.cache_utils import EncoderDecoderCache, StaticCache

import dhlo
from dhlo.integrations.caches import CACHE
from dhlo.integrations.transformers import attach, compile_encoder_decoder
from tests.generating import assert_same_caches, generated, generated_with_caches

TOKENS = dict(vocab_size=99, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3)
LAYERS = dict(
    d_model=32,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
)


def model_of(name: str) -> Any:
    """Random weights of a scale with which tokens vary."""
    torch.manual_seed(0)
    model: Any
    if name == "whisper":
        config = hf.WhisperConfig(
            **TOKENS,
            **LAYERS,
            num_mel_bins=8,
            max_source_positions=20,
            max_target_positions=64,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
        model = hf.WhisperForConditionalGeneration(config)
    elif name == "t5":
        model = hf.T5ForConditionalGeneration(hf.T5Config(**TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4))
    else:
        model = hf.MarianMTModel(
            hf.MarianConfig(**TOKENS, **LAYERS, max_position_embeddings=64, forced_eos_token_id=None, tie_word_embeddings=False)
        )
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.1 if name == "marian" else 0.3)
    return model.eval()


def calls(name: str) -> list[dict[str, Any]]:
    """One source, and four: greedy, beams, sampling."""
    torch.manual_seed(1)
    if name == "whisper":
        one: dict[str, Any] = {"input_features": torch.randn(1, 8, 40)}
        four: dict[str, Any] = {"input_features": torch.randn(4, 8, 40)}
    else:
        ids = torch.randint(4, 99, (4, 9))
        mask = (torch.arange(9)[None] < 9 - 2 * torch.arange(4)[:, None]).long()
        one, four = {"input_ids": ids[:1, :5]}, {"input_ids": ids * mask, "attention_mask": mask}
    return [
        {**one, "max_new_tokens": 16, "do_sample": False},
        {**four, "max_new_tokens": 16, "do_sample": False},
        {**four, "max_new_tokens": 8, "num_beams": 3, "do_sample": False},
        {**four, "max_new_tokens": 8, "do_sample": True},
        {**four, "max_new_tokens": 8, "do_sample": False, "use_cache": False},
    ]


@pytest.mark.parametrize("name", ["whisper", *(pytest.param(n, marks=pytest.mark.slow) for n in ("t5", "marian"))])
def test_generate(name, tmp_path):
    """Token by token what eager says, from a file, too."""
    model = model_of(name)
    static = [call | {"cache_implementation": "static"} for call in calls(name)[:4]]
    want, cached = generated(model, calls(name)), generated_with_caches(model, static)
    assert len(set(want[1].flatten().tolist())) > 10
    compiled = compile_encoder_decoder(model)
    for got, tokens in zip(generated(model, calls(name)), want, strict=True):
        assert torch.equal(got, tokens)
    for (got, cache), (tokens, filled) in zip(generated_with_caches(model, static), cached, strict=True):
        assert torch.equal(got, tokens)
        assert_same_caches(cache, filled)
    compiled.save(tmp_path / "model.so")
    fresh, loaded = model_of(name), dhlo.load(tmp_path / "model.so")
    attach(fresh, loaded)
    assert torch.equal(fresh.generate(**calls(name)[1]), want[1])
    assert [loaded[e].counters["runs"] for e in ("encoder", "cross")] == [1, 1]
    assert loaded["decoder"].counters["runs"] > 10
    check_calls(fresh, name)
    with pytest.raises(dhlo.ContractError, match="isn't one of a LlamaForCausalLM"):
        attach(hf.LlamaForCausalLM(hf.LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)), loaded)
    del fresh.forward, fresh.get_encoder().forward
    assert torch.equal(fresh.generate(**calls(name)[1]), want[1])


def check_calls(model: Any, name: str) -> None:
    """Calls of forward, and those that are refused, which leave the model usable."""
    source = {k: v for k, v in calls(name)[1].items() if isinstance(v, torch.Tensor)}
    tokens = torch.randint(4, 99, (4, 6))
    with torch.no_grad():
        want = type(model).forward(model, **source, decoder_input_ids=tokens).logits
    with pytest.raises(dhlo.ContractError, match="output_attentions"):
        model(**source, decoder_input_ids=tokens, output_attentions=True)
    with pytest.raises(dhlo.ContractError, match="takes decoder_input_ids"):
        model(**source)
    with pytest.raises(dhlo.ContractError, match=f"takes {model.main_input_name}"):
        model(decoder_input_ids=tokens)
    with pytest.raises(dhlo.ContractError, match="decoder_attention_mask is"):
        model(**source, decoder_input_ids=tokens, decoder_attention_mask=torch.ones(4, 1, 6, 6))
    with pytest.raises(dhlo.ContractError, match="an EncoderDecoderCache, not a DynamicCache"):
        model(**source, decoder_input_ids=tokens, **{CACHE: hf.DynamicCache()})
    with pytest.raises(dhlo.ContractError):
        model(**source, decoder_input_ids=tokens[:3])
    with pytest.raises(dhlo.ContractError, match="static cache of 8 positions holds 8 and has no room for 1 more"):
        caches = (StaticCache(model.config.get_text_config(decoder=True), max_cache_len=n) for n in (8, 20))
        model.generate(**calls(name)[1], **{CACHE: EncoderDecoderCache(*caches)})
    torch.testing.assert_close(model(**source, decoder_input_ids=tokens).logits, want, rtol=1e-3, atol=1e-4)


def test_others_are_refused():
    model = hf.BertModel(
        hf.BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    with pytest.raises(dhlo.CompileError, match="BertModel isn't an encoder-decoder"):
        compile_encoder_decoder(model)
