"""The export backend of transformers, and generate() over compiled decoders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from transformers import masking_utils
from transformers.cache_utils import Cache, DynamicCache, DynamicIndexedLayer, StaticCache
from transformers.exporters import AutoHfExporter, ExportedModel
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

import dhlo
from dhlo.integrations.caches import CACHE, exportable_attention
from dhlo.integrations.generation import evaluating
from dhlo.integrations.transformers import DhloConfig, attach, compile_decoder
from tests.generating import assert_same_caches, generated, generated_with_caches

COMMON = dict(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)

CONFIGS = {
    "llama": lambda: hf.LlamaConfig(**COMMON),
    "qwen3": lambda: hf.Qwen3Config(**COMMON, head_dim=8),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **COMMON, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    ),
    # The last layers read what two before them keep.
    "gemma3n": lambda: hf.Gemma3nTextConfig(
        **COMMON | {"num_hidden_layers": 4, "intermediate_size": [64] * 4},
        head_dim=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        activation_sparsity_pattern=[0.0] * 4,
        vocab_size_per_layer_input=COMMON["vocab_size"],
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=2,
    ),
    "mixtral": lambda: hf.MixtralConfig(**COMMON, num_local_experts=4),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **COMMON | {"num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
    ),
}


def decoder(name: str) -> Any:
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(5)  # random weights as they come say the same token again and again
    return model


def calls() -> list[dict[str, Any]]:
    """One prompt, and four that are padded on the left: greedy, beams, sampling; guesses that are taken back, prompts in parts."""
    torch.manual_seed(1)
    one, four = torch.randint(3, 99, (1, 7)), torch.randint(3, 99, (4, 9))
    mask = (torch.arange(9)[None] >= 2 * torch.arange(4)[:, None]).long()
    batch = {"input_ids": four * mask, "attention_mask": mask}
    return [
        {"input_ids": one, "max_new_tokens": 16, "do_sample": False},
        {**batch, "max_new_tokens": 16, "do_sample": False},
        {**batch, "max_new_tokens": 8, "num_beams": 3, "do_sample": False},
        {**batch, "max_new_tokens": 8, "do_sample": True},
        {**batch, "max_new_tokens": 8, "do_sample": False, "use_cache": False},
        {"input_ids": one.repeat(1, 3), "max_new_tokens": 16, "do_sample": False, "prompt_lookup_num_tokens": 3},
        {"input_ids": one.repeat(1, 3), "max_new_tokens": 8, "do_sample": False, "prefill_chunk_size": 4},
    ]


def cached_calls(model: Any) -> list[dict[str, Any]]:
    """The same with static caches, with one of the caller's, and with a dynamic one that knows of windows."""
    return [
        {**call, **cache()}
        for call in calls()[:4]
        for cache in (
            lambda: {"cache_implementation": "static"},
            lambda: {CACHE: StaticCache(model.config, max_cache_len=40)},
            lambda: {CACHE: DynamicCache(config=model.config)},
        )
    ]


def continued(model: Any, cache: Cache) -> torch.Tensor:
    """Some tokens after a prompt, another prompt behind these, and some more tokens: each goes on from the cache."""
    prompt, more = calls()[0]["input_ids"], torch.arange(20, 31)[None]
    said = model.generate(prompt, max_new_tokens=5, do_sample=False, **{CACHE: cache})
    tokens: torch.Tensor = model.generate(torch.cat([said, more], 1), max_new_tokens=5, do_sample=False, **{CACHE: cache})
    return tokens


@pytest.mark.parametrize("name", ["llama", *[pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS if n != "llama"]])
def test_generate(name, tmp_path):
    """Token by token what eager says, from a file, too."""
    model = decoder(name)
    want = generated(model, calls())
    assert len(set(want[1].flatten().tolist())) > 10
    compiled = compile_decoder(model)
    for got, tokens in zip(generated(model, calls()), want, strict=True):
        assert torch.equal(got, tokens)
    assert compiled.counters["runs"] > 30
    compiled.save(tmp_path / "model.so")
    fresh = decoder(name)
    attach(fresh, dhlo.load(tmp_path / "model.so"))
    assert torch.equal(fresh.generate(**calls()[1]), want[1])
    if name != "llama":
        return
    check_refusals(fresh)
    assert torch.equal(fresh.generate(**calls()[1]), want[1])
    del fresh.forward
    assert torch.equal(fresh.generate(**calls()[1]), want[1])
    assert torch.equal(fresh.generate(**calls()[1], cache_implementation="static"), want[1])


def check_refusals(model: Any) -> None:
    """Calls of forward, and those that are refused."""
    ids = calls()[0]["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, type(model).forward(model, ids).logits, rtol=1e-3, atol=1e-4)
        assert model(ids, logits_to_keep=2).logits.shape == (1, 2, 99)
        assert model(ids, logits_to_keep=-2).logits.shape == (1, 5, 99)
        for name in ("past_key_values", "cache"):  # before transformers 5.24, and from then on
            cache = DynamicCache(config=model.config)
            assert getattr(model(ids, **{name: cache}), CACHE) is cache and cache.get_seq_length() == ids.shape[1]
    with evaluating(model):  # to compile it once more
        assert "forward" not in vars(model)
    assert "forward" in vars(model)
    with pytest.raises(dhlo.ContractError, match="for a compiled decoder, got 1 dims"):
        model(ids[0])
    with pytest.raises(dhlo.ContractError, match="a Cache of transformers, got a list"):
        model(ids, **{CACHE: [(ids, ids)]})
    with pytest.raises(dhlo.ContractError, match="inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(dhlo.ContractError, match="attention_mask"):
        model(ids, attention_mask=torch.ones(1, 1, 7, 7, dtype=torch.bool))


@pytest.mark.parametrize("name", ["gemma3", *[pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS if n != "gemma3"]])
def test_caches(name):
    """Tokens are eager's whatever the cache, and it holds afterwards what eager's holds."""

    def some() -> list[Cache]:
        return [StaticCache(model.config, max_cache_len=40), DynamicCache(config=model.config)]

    model = decoder(name)
    want = generated_with_caches(model, cached_calls(model))
    went_on = [(continued(model, cache), cache) for cache in some()]
    compile_decoder(model)
    got = generated_with_caches(model, cached_calls(model)) + [(continued(model, cache), cache) for cache in some()]
    for (tokens, cache), (right, filled) in zip(got, want + went_on, strict=True):
        assert torch.equal(tokens, right)
        assert_same_caches(cache, filled)
    check_caches(model)


def check_caches(model: Any) -> None:
    """Caches that are refused hold what they held."""
    call = calls()[0]
    full = StaticCache(model.config, max_cache_len=10)
    with pytest.raises(dhlo.ContractError, match="static cache of 10 positions holds 10 and has no room for 1 more"):
        model.generate(**call, **{CACHE: full})
    assert int(full.get_seq_length()) == 10
    fewer = StaticCache(model.config, max_cache_len=40)
    fewer.layers.pop(0)  # the last may hold nothing
    with pytest.raises(dhlo.ContractError, match="the cache has 1 layers, the compiled model 2"):
        model.generate(**call, **{CACHE: fewer})
    offloaded = StaticCache(model.config, max_cache_len=40)
    offloaded.offloading = True  # a stream, which transformers makes for it, some builds of PyTorch have with a GPU only
    with pytest.raises(dhlo.ContractError, match="not offloaded"):
        model.generate(**call, **{CACHE: offloaded})
    with pytest.raises(dhlo.ContractError, match="dynamic and static caches: layer 0 is a DynamicIndexedLayer"):
        model.generate(**call, **{CACHE: Cache(layers=[DynamicIndexedLayer(), DynamicIndexedLayer()])})


def test_positions_of_several_axes() -> None:
    """Of a text they are one; of images the model has no place."""
    text = {**COMMON, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
    vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=4, patch_size=4, out_hidden_size=32)
    config = hf.Qwen3VLConfig(
        text_config=text,
        vision_config={**vision, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        image_token_id=98,
        video_token_id=97,
        vision_start_token_id=96,
        vision_end_token_id=95,
    )
    torch.manual_seed(0)
    model = hf.Qwen3VLForConditionalGeneration(config).eval()
    model.generation_config = hf.GenerationConfig(pad_token_id=0, bos_token_id=1)
    ids = torch.randint(3, 80, (2, 7))
    mask = (torch.arange(7) >= torch.tensor([[3], [0]])).long()
    run = lambda: model.generate(ids * mask, attention_mask=mask, max_new_tokens=6, do_sample=False)
    want = run()
    compile_decoder(model)
    assert torch.equal(run(), want)
    for positions in (torch.stack([torch.arange(7).expand(2, 7), torch.zeros(2, 7, dtype=torch.int64)]), torch.zeros(0, 2, 7)):
        with pytest.raises(dhlo.ContractError, match="compiled for text alone, whose positions are one along all axes"):
            model(ids, position_ids=positions)


def looking(size: int = 16) -> Any:
    """A decoder that takes images of some positions each; 98 stands for one of these."""
    torch.manual_seed(0)
    vision = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=size, patch_size=4)
    model = hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            text_config={**COMMON, "model_type": "llama"},
            vision_config={**vision, "model_type": "clip_vision_model"},
            image_token_index=98,
            image_seq_length=(size // 4) ** 2,
        )
    ).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(5)
    return model


def looks() -> list[dict[str, Any]]:
    """An image in each of two prompts, two in one, none; beams, a static cache, no cache."""
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 98, (2, 22)), torch.ones(2, 22, dtype=torch.int64)
    ids[:, 2:18], ids[1, 0], mask[1, 0] = 98, 0, 0
    both = torch.randint(3, 98, (1, 40))
    both[:, 2:18] = both[:, 20:36] = 98
    images = torch.randn(2, 3, 16, 16)
    batch = {"input_ids": ids, "attention_mask": mask, "pixel_values": images}
    calls = [{"input_ids": both, "pixel_values": images}, {"input_ids": both[:, 36:]}, {**batch, "num_beams": 2}]
    calls += [{**batch, "cache_implementation": "static"}, {**batch, "use_cache": False}, batch]
    return [{**call, "max_new_tokens": 8, "do_sample": False} for call in calls]


@pytest.mark.slow
def test_images(tmp_path):
    """Tokens after images and text are eager's; prompts and images that don't fit are refused."""
    model = looking()
    want = generated(model, looks())
    compile_decoder(model).save(tmp_path / "model.so")
    assert all(map(torch.equal, generated(model, looks()), want))
    fresh, loaded = looking(), dhlo.load(tmp_path / "model.so")
    attach(fresh, loaded)
    assert torch.equal(fresh.generate(**looks()[0]), want[0])
    assert [loaded[entry].counters["runs"] for entry in loaded.entries] == [2, 1, 7]
    ids, images = looks()[0]["input_ids"], looks()[0]["pixel_values"]
    with pytest.raises(dhlo.DhloError):
        fresh(ids, pixel_values=images[:1])
    with pytest.raises(dhlo.ContractError, match="pixel_values .images, channels, height, width."):
        fresh(ids, pixel_values=images[0])
    with pytest.raises(dhlo.ContractError):
        fresh(ids, pixel_values=images[:, :, :8])
    with pytest.raises(dhlo.ContractError, match="no place for video"):
        fresh(ids, mm_encoder_outputs={"video": images})
    assert torch.equal(fresh.generate(**looks()[0]), want[0])
    del fresh.forward, fresh.base_model.get_image_features
    assert torch.equal(fresh.generate(**looks()[0]), want[0])


@pytest.mark.slow
def test_images_whose_features_are_one_tensor():
    vision = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4)
    torch.manual_seed(0)
    config = hf.AyaVisionConfig(
        vision_config={**vision, "model_type": "siglip_vision_model"},
        text_config={**COMMON, "model_type": "llama"},
        image_token_index=98,
        downsample_factor=2,
        vision_feature_layer=-1,
    )
    model = hf.AyaVisionForConditionalGeneration(config).eval()
    images, said = torch.randn(1, 3, 16, 16), torch.randint(3, 98, (1, 6))
    ids = torch.cat([torch.full((1, 4), 98), said], 1)
    calls = [{"input_ids": ids, "pixel_values": images}, {"input_ids": said}]
    calls = [{**call, "max_new_tokens": 8, "do_sample": False} for call in calls]
    want = generated(model, calls)
    compile_decoder(model)
    assert all(map(torch.equal, generated(model, calls), want))


@pytest.mark.slow
def test_models_that_see_otherwise_are_compiled_for_text(caplog):
    torch.manual_seed(0)
    text = {**COMMON, "head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    vision = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4)
    config = hf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=98)
    model = hf.Gemma3ForConditionalGeneration(config).eval()
    want = model.generate(**calls()[1])
    compile_decoder(model)
    assert "Gemma3ForConditionalGeneration is compiled for text alone" in caplog.text
    assert torch.equal(model.generate(**calls()[1]), want)
    with pytest.raises(dhlo.ContractError, match="compiled for text alone"):
        model(calls()[0]["input_ids"], pixel_values=torch.zeros(1, 3, 16, 16))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_modules_for_export(name):
    """What transformers makes exportable keeps its caches as state."""
    model = decoder(name)
    ids = calls()[0]["input_ids"]
    want = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    model.generation_config.cache_implementation = "static"
    module = TorchExportableModuleForDecoderOnlyLM(model, batch_size=1, max_cache_len=24)
    length = torch.export.Dim("length", max=24)
    with torch.no_grad():
        program = module.export(
            ids,
            cache_position=torch.arange(7),
            dynamic_shapes={"input_ids": {1: length}, "cache_position": {0: length}},
            strict=False,
        )
    compiled = dhlo.compile(program)
    for _ in range(2):
        session, tokens, new = compiled.session(), ids, ids
        while tokens.shape[1] < want.shape[1]:
            positions = torch.arange(tokens.shape[1] - new.shape[1], tokens.shape[1])
            new = session(input_ids=new, cache_position=positions)[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, new], 1)
        assert torch.equal(tokens, want)


def test_what_is_no_decoder_is_refused():
    model = hf.BertModel(
        hf.BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    with pytest.raises(dhlo.CompileError, match="BertModel isn't a decoder"):
        compile_decoder(model)


def test_versions_that_make_masks_otherwise_are_refused(monkeypatch):
    monkeypatch.delattr(masking_utils, "_ignore_causal_mask_sdpa")
    message = r"from transformers \S+, which has no masking_utils._ignore_causal_mask_sdpa"
    with pytest.raises(dhlo.CompileError, match=message), exportable_attention():
        pass


def test_export_backend(tmp_path):
    """Any model by the same call; saved and loaded by transformers."""
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4, num_labels=3
    )
    model = hf.ViTForImageClassification(config).eval()
    config = DhloConfig(options={"name": "vit"})
    exported = AutoHfExporter.from_config(config).export(model, {"pixel_values": torch.randn(2, 3, 16, 16)}, config)
    exported.save_pretrained(tmp_path)
    loaded = ExportedModel.from_pretrained(tmp_path, trust_remote_code=True)
    for batch in (1, 5):
        x = torch.randn(batch, 3, 16, 16)
        with torch.no_grad():
            want = model(x).logits
        for program in (exported, loaded):
            torch.testing.assert_close(program(pixel_values=x).logits, want, rtol=1e-3, atol=1e-4)
    with pytest.raises(dhlo.CompileError, match="cuda"):
        loaded.to("cuda")
