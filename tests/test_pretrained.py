"""`dhlo compile hf:FOLDER`: models of transformers from folders."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from typer.testing import CliRunner

import dhlo
from dhlo.cli import app
from dhlo.integrations.coded_weights import FORMATS
from dhlo.integrations.pretrained import load_base, load_folder, model_programs
from dhlo.integrations.transformers import attach
from tests.checkpoints import change_weights, decoded_by_transformers, to_fp8, to_mxfp4
from tests.test_encoder_decoder import calls as source_calls
from tests.test_encoder_decoder import model_of
from tests.test_transformers import calls, decoder


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def connect(*args: Any) -> None:
        raise AssertionError(f"a connection to {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", connect)


def tiny_vit() -> Any:
    torch.manual_seed(0)
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4, num_labels=3
    )
    return hf.ViTForImageClassification(config).eval()


@pytest.fixture
def vit(tmp_path) -> Path:
    tiny_vit().save_pretrained(tmp_path / "vit-1.5")
    return tmp_path / "vit-1.5"


def compile_cli(*args: Any) -> str:
    """What the command printed; raises where it failed."""
    result = CliRunner().invoke(app, ["compile", *map(str, args)])
    if result.exit_code:
        raise dhlo.CompileError(result.output)
    return result.output


@pytest.mark.slow
def test_decoder(tmp_path):
    """From the folder to tokens like eager's."""
    model = decoder("llama")
    model.save_pretrained(tmp_path / "llama", max_shard_size="20KB")
    assert len(list((tmp_path / "llama").glob("model-*.safetensors"))) > 1
    want = model.generate(**calls()[1])
    compile_cli(f"hf:{tmp_path / 'llama'}", "-o", tmp_path / "model.so")
    attach(model, dhlo.load(tmp_path / "model.so"))
    assert torch.equal(model.generate(**calls()[1]), want)


def test_vision(vit, monkeypatch):
    monkeypatch.chdir(vit.parent)
    compile_cli(f"hf:{vit.name}")
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        want = tiny_vit()(x).logits
    torch.testing.assert_close(dhlo.load("vit-1.5.so")(pixel_values=x).logits, want, rtol=1e-3, atol=1e-4)
    with pytest.raises(dhlo.CompileError, match="is there already"):
        compile_cli(f"hf:{vit.name}")


@pytest.mark.slow
def test_encoder_decoder(tmp_path):
    model = model_of("t5")
    model.save_pretrained(tmp_path / "t5")
    want = model.generate(**source_calls("t5")[1])
    compile_cli(f"hf:{tmp_path / 't5'}", "-o", tmp_path / "model.so")
    attach(model, dhlo.load(tmp_path / "model.so"))
    assert torch.equal(model.generate(**source_calls("t5")[1]), want)


def change(folder: Path, **values: Any) -> None:
    """The config with some values changed."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def without_a_weight(folder: Path) -> None:
    model = tiny_vit()
    state = model.state_dict()
    del state["classifier.weight"]
    model.save_pretrained(folder, state_dict=state)


def index(folder: Path, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "can't be read as a config"),
        (lambda f: (f / "config.json").write_text("[]"), "can't be read as a config"),
        (lambda f: change(f, model_type="nonsense"), "can't be read as a config"),
        (lambda f: change(f, architectures=["Nonsense"]), "holds a 'Nonsense', which transformers"),
        (lambda f: change(f, architectures=["pipeline"]), "holds a 'pipeline', which transformers"),
        (lambda f: change(f, hidden_size=32), "can't be loaded as ViTForImageClassification"),
        (lambda f: change(f, quantization_config={"quant_method": "gptq", "bits": 4}), "holds quantised weights"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "holds an adapter"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 40), "can't be loaded"),
        (lambda f: index(f, "[]"), "is not an index of weights"),
        (lambda f: index(f, '{"weight_map": {"a": "model-1.safetensors"}}'), "lacks files of weights: model-1.safetensors"),
        (without_a_weight, "lacks weights of ViTForImageClassification: classifier.weight"),
    ],
)
def test_damaged_folders_are_refused(vit, damage, message):
    damage(vit)
    with pytest.raises(dhlo.CompileError) as e:
        compile_cli(f"hf:{vit}", "-o", vit / "model.so")
    assert message in " ".join(str(e.value).split())
    assert not (vit / "model.so").exists()


def small_gpt_oss(folder: Path) -> int:
    """One with experts of MXFP4; how many numbers they are."""
    torch.manual_seed(0)
    config = hf.GptOssConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        pad_token_id=None,
    )
    hf.GptOssForCausalLM(config).save_pretrained(folder)
    return to_mxfp4(folder)


def test_codes_of_a_checkpoint(tmp_path: Path) -> None:
    """Are the model's, which computes what they stand for."""
    numbers = small_gpt_oss(tmp_path)
    model, want = load_folder(tmp_path), decoded_by_transformers(tmp_path)
    codes = [p for name, p in model.named_parameters() if p.dtype == torch.uint8]
    assert sum(p.numel() for p in codes) == numbers // 2 + numbers // 32
    experts = model.model.layers[0].mlp.experts
    assert torch.equal(experts.down_proj, want.model.layers[0].mlp.experts.down_proj)
    ids = torch.randint(50, (2, 7))
    with torch.no_grad():
        assert torch.equal(model(ids).logits, want(ids).logits)


BLOCKS, SCALES = (f"model.layers.0.mlp.experts.down_proj_{kind}" for kind in ("blocks", "scales"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.pop(SCALES), "lacks the tensor 'model.layers.0.mlp.experts.down_proj_scales'"),
        (lambda t: t.pop(BLOCKS), "down_proj_blocks"),
        (lambda t: t.update({BLOCKS: t[BLOCKS].short()}), "torch.int16"),
        (lambda t: t.update({SCALES: t[SCALES][:1]}), "can't be"),
        (lambda t: t.update({n: t[n][:, :8].contiguous() for n in (BLOCKS, SCALES)}), "can't be loaded"),
        (lambda t: t[SCALES].fill_(255), "something else"),
        (lambda t: t.update({"x.y_blocks": t[BLOCKS].clone(), "x.y_scales": t[SCALES].clone()}), "'x.y' can't be decoded"),
        (lambda t: [t.pop(n) for n in [*t] if n.endswith(("_blocks", "_scales"))], "has no tensors *_blocks and *_scales"),
    ],
)
def test_damaged_codes_are_refused(tmp_path: Path, damage: Any, message: str) -> None:
    small_gpt_oss(tmp_path)
    change_weights(tmp_path, damage)
    with pytest.raises(dhlo.CompileError) as e:
        load_folder(tmp_path)
    assert message in str(e.value), e.value


def small_float8(folder: Path, *, experts: bool) -> tuple[int, dict[str, torch.Tensor]]:
    """A model of float8 in blocks of 32; how many numbers are coded, and what they stand for. Heads' keys end within a block."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 24}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "pad_token_id": None, "dtype": "bfloat16"}
    config = hf.Qwen3Config(**sizes, **heads)
    if experts:
        config = hf.Qwen3MoeConfig(**sizes, **heads, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=32)
    model = getattr(hf, f"{type(config).__name__.removesuffix('Config')}ForCausalLM")(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return to_fp8(folder, 32)


@pytest.mark.parametrize("experts", [pytest.param(False, marks=pytest.mark.slow), True])
def test_float8_of_a_checkpoint(tmp_path: Path, experts: bool) -> None:
    """Is the model's and the compiled program's, of experts that transformers keeps together, too."""
    folder = tmp_path
    numbers, decoded = small_float8(folder, experts=experts)
    model = load_folder(folder)
    assert sum(p.numel() for p in model.parameters() if p.dtype == torch.float8_e4m3fn) == numbers
    ids = torch.randint(50, (2, 7))
    want = as_decoded(folder, decoded)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, want(ids).logits)
    (program,) = model_programs(model)[0].values()
    other = sum(p.nbytes for p in want.parameters()) - 2 * numbers
    # A scale of f32 for each 32 numbers; columns that fill a panel.
    assert numbers < dhlo.compile(program, cache="").native.constants_bytes < 1.4 * numbers + 1.2 * other


def test_scales_of_float8() -> None:
    """As powers of two, in either type that holds these, and one for a whole matrix."""
    given = FORMATS["fp8"]
    codes = torch.randn(5, 6).to(torch.float8_e4m3fn)
    exponents = torch.tensor([[120, 127], [130, 126], [127, 1]], dtype=torch.uint8)
    factors = torch.exp2(exponents.float() - 127)
    want = codes.float() * factors.repeat_interleave(2, 0)[:5].repeat_interleave(3, 1)
    for scales in (factors, exponents, exponents.view(torch.float8_e8m0fnu)):
        assert torch.equal(given.decode(torch.float32, *given.prepare(codes, scales, [2, 3])), want)
    for blocks in ([2, 3], None):
        found = given.decode(torch.bfloat16, *given.prepare(codes, torch.tensor(0.5), blocks))
        assert torch.equal(found, (codes.float() / 2).bfloat16())


HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}


def as_decoded(folder: Path, decoded: dict[str, torch.Tensor]) -> Any:
    """The model of a folder of float8, loaded from what the codes stand for."""
    change_weights(folder, lambda t: [t.pop(n) for n in [*t] if n.endswith("_scale_inv")] and t.update(decoded))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return load_folder(folder)


def test_odd_folders_of_float8(tmp_path: Path) -> None:
    """Layers that end within a block and are kept below each other, a single expert, codes that are no numbers, and tensors that
    the model doesn't have."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    config = hf.Qwen3MoeConfig(**sizes, **HEADS, num_experts=1, num_experts_per_tok=1, moe_intermediate_size=24)
    hf.Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    _, decoded = to_fp8(tmp_path, 32)
    name = "model.layers.0.self_attn.q_proj.weight"

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(torch.uint8)[3, 5] = 0x7F
        decoded[name][3, 5] = torch.nan
        tensors["x.y"], tensors["x.y_scale_inv"] = tensors[name].clone(), tensors[f"{name}_scale_inv"].clone()

    change_weights(tmp_path, change)
    models = load_folder(tmp_path), load_base(tmp_path)
    want = as_decoded(tmp_path, decoded)
    for model, other in zip(models, (want, want.model), strict=True):
        found = {n: p for n, p in model.named_parameters() if p.dtype == torch.float8_e4m3fn}
        assert len(found) == 6
        for path, parameter in other.named_parameters():
            ours = getattr(model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])
            torch.testing.assert_close(ours, parameter, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("coded", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tied_weights_of_float8(tmp_path: Path, coded: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes, **HEADS, tie_word_embeddings=True)).save_pretrained(tmp_path)
    _, decoded = to_fp8(tmp_path, 32)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        codes = (100 * tensors.pop("model.embed_tokens.weight")).to(torch.float8_e4m3fn)
        tensors[coded], tensors[f"{coded}_scale_inv"] = codes, torch.full((2, 2), 0.01)
        decoded[coded] = codes.float() * 0.01

    change_weights(tmp_path, change)
    model, ids = load_folder(tmp_path), torch.randint(64, (2, 7))
    want = as_decoded(tmp_path, decoded)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, want(ids).logits)


@pytest.mark.parametrize(
    "blocks", [[0, 32], [32], "128", "32", [32, -1], [1 << 70, 64], {}, 7, [32.0, 32], [math.inf, 32], [True, 32], [[32], 32]]
)
def test_odd_blocks_of_float8_are_refused(tmp_path: Path, blocks: Any) -> None:
    small_float8(tmp_path, experts=False)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = blocks
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(dhlo.CompileError, match="can't be decoded as fp8"):
        load_folder(tmp_path)


NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.pop(NAME), f"lacks the tensor '{NAME}'"),
        (lambda t: t.update({f"{NAME}_scale_inv": torch.ones(2, 2)}), "in blocks of 32 x 32"),
        (lambda t: t.update({NAME: t[NAME].float()}), "torch.float32"),
        (lambda t: t.update({NAME: t[NAME].view(torch.uint8)}), "can't be"),
        (lambda t: t.pop(f"{NAME}_scale_inv"), f"lacks the tensor '{NAME}_scale_inv'"),
        (lambda t: t.update({f"{NAME}_scale_inv": t[f"{NAME}_scale_inv"].t().contiguous()}), "in blocks of 32 x 32"),
        (lambda t: t.update({f"{NAME}_scale_inv": t[f"{NAME}_scale_inv"].to(torch.int8)}), "scales of torch.int8"),
        (lambda t: t.update({NAME: t[NAME][:9].contiguous()}), "MISMATCH"),
        (lambda t: [t.pop(n) for n in [*t] if n.endswith("_scale_inv")], "has no tensors * and *_scale_inv"),
    ],
)
def test_damaged_float8_is_refused(tmp_path: Path, damage: Any, message: str) -> None:
    small_float8(tmp_path, experts=False)
    change_weights(tmp_path, damage)
    with pytest.raises(dhlo.CompileError) as e:
        load_folder(tmp_path)
    assert message in str(e.value), e.value


def test_what_is_no_folder_is_refused(vit):
    for name in ("nobody/nothing", vit / "config.json"):
        with pytest.raises(dhlo.CompileError, match="is not a folder"):
            compile_cli(f"hf:{name}", "-o", vit / "model.so")
    with pytest.raises(dhlo.CompileError, match="goes alone"):
        compile_cli(f"a=hf:{vit}", "-o", vit / "model.so")


def test_kinds_that_are_not_supported_are_refused(tmp_path):
    config = hf.TimeSeriesTransformerConfig(prediction_length=2, d_model=8, encoder_layers=1, decoder_layers=1)
    hf.TimeSeriesTransformerForPrediction(config).save_pretrained(tmp_path)
    with pytest.raises(dhlo.CompileError, match="TimeSeriesTransformerForPrediction takes none of input_ids"):
        compile_cli(f"hf:{tmp_path}", "-o", tmp_path / "model.so")
