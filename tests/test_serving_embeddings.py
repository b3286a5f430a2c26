"""Vectors of texts: folders of sentence-transformers and transformers, batches, and /v1/embeddings."""

from __future__ import annotations

import base64
import json
import math
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

from dhlo.cli import app
from dhlo.errors import CompileError, ContractError, DhloError, ModelFileError
from dhlo.serve import compiling
from dhlo.serve.embed import Embedder, batches_of, open_embedder
from dhlo.serve.embedding_server import make_embedding_app
from dhlo.serve.pipeline import is_embedder, read_pipeline
from dhlo.serve.server import ServerOptions
from dhlo.serve.types import QueueFullError
from tests.serving import make_folder, rule_embedder

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{k}" for k in range(96))]
URL = "/v1/embeddings"

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=64)),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**SIZES, max_position_embeddings=66, pad_token_id=1)),
    "mpnet": lambda: transformers.MPNetModel(transformers.MPNetConfig(**SIZES, max_position_embeddings=66)),
    "modernbert": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=64, local_attention=16, global_attn_every_n_layers=2,
            pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
        )
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16, max_position_embeddings=64)
    ),
}  # fmt: skip


def word_level() -> Tokenizer:
    """Words that are tokens each, between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordLevel({w: k for k, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def save(folder: Path, kind: str, pooling: str | None = "mean_tokens", *, dense: bool = False, normalize: bool = True) -> Path:
    """A model of random weights, as sentence-transformers saves it; without `pooling` as transformers does."""
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    model.save_pretrained(folder)
    word_level().save(str(folder / "tokenizer.json"))
    if pooling is None:
        return folder
    stages = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True})
    if dense:
        stages.append(("2_Dense", "Dense"))
        said = {"in_features": 32, "out_features": 24, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
        write(folder / "2_Dense" / "config.json", said)
        save_file({"linear.weight": torch.randn(24, 32), "linear.bias": torch.randn(24)}, folder / "2_Dense" / "model.safetensors")
    stages += [("3_Normalize", "Normalize")] if normalize else []
    write(
        folder / "modules.json",
        [{"idx": k, "name": str(k), "path": p, "type": f"sentence_transformers.models.{t}"} for k, (p, t) in enumerate(stages)],
    )
    write(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": True})
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "w1 w2 ", "document": ""}})
    return folder


def expected(folder: Path, kind: str, texts: list[list[int]], pooling: str, *, dense: bool = False, normalize: bool = True) -> Any:
    """By transformers and sentence-transformers' rules: each text alone, without padding."""
    model = transformers.AutoModel.from_pretrained(folder, dtype="float32").eval()
    out = []
    with torch.no_grad():
        for text in texts:
            x = model(input_ids=torch.tensor([text]), attention_mask=torch.ones(1, len(text), dtype=torch.long)).last_hidden_state[
                0
            ]
            weights = torch.arange(1.0, len(text) + 1)[:, None]
            pooled = {
                "mean_tokens": x.mean(0), "cls_token": x[0], "lasttoken": x[-1], "max_tokens": x.amax(0),
                "mean_sqrt_len_tokens": x.sum(0) / math.sqrt(len(text)),
                "weightedmean_tokens": (x * weights).sum(0) / weights.sum(),
            }[pooling]  # fmt: skip
            if dense:
                tensors = load_file(folder / "2_Dense" / "model.safetensors")
                pooled = torch.tanh(tensors["linear.weight"] @ pooled + tensors["linear.bias"])
            out.append(torch.nn.functional.normalize(pooled, dim=0) if normalize else pooled)
    return torch.stack(out).numpy()


def ragged(count: int, longest: int = 48, seed: int = 0) -> list[list[int]]:
    r = random.Random(seed)
    return [[r.randrange(4, 100) for _ in range(r.randint(1, longest))] for _ in range(count)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Embedder]]:
    root = tmp_path_factory.mktemp("embedder")
    folder = save(root / "bert", "bert", dense=True)
    with open_embedder(folder, cache=str(root / "cache"), batch_tokens=200) as embedder:
        yield folder, root / "cache", embedder


def test_vectors_are_those_of_transformers(bert: tuple[Path, Path, Embedder]) -> None:
    folder, _, embedder = bert
    texts = ragged(40)
    got = embedder.embed(texts)
    np.testing.assert_allclose(got, expected(folder, "bert", texts, "mean_tokens", dense=True), atol=1e-5)
    assert got.dtype == np.float32 and got.shape == (40, embedder.dimensions) == (40, 24)
    stats = embedder.stats
    assert stats.batches < 30 and stats.tokens == sum(map(len, texts)) and stats.waiting == 0
    assert embedder.embed([]).shape == (0, 24)


def test_texts_have_the_tokenizers_special_tokens(bert: tuple[Path, Path, Embedder]) -> None:
    _, _, embedder = bert
    assert embedder.encode(" W5 w6\n") == [2, 9, 10, 3]  # in lower case, as the folder says
    assert embedder.encode("w5", "query") == [2, 5, 6, 9, 3]
    one = embedder.embed("w5 w6")
    np.testing.assert_allclose(one, embedder.embed([[2, 9, 10, 3]]), atol=1e-6)
    np.testing.assert_allclose(embedder.embed(["w5"], prompt="query"), embedder.embed([[2, 5, 6, 9, 3]]), atol=1e-6)
    long = " ".join(["w7"] * 60)
    with pytest.raises(ContractError, match="maximum context length is 48 tokens; a text has 62"):
        embedder.embed(["w1", long])
    np.testing.assert_allclose(embedder.embed([long], truncate=True), embedder.embed([[2, *[11] * 46, 3]]), atol=1e-6)
    given = [[2, *[11] * 80, 5]]  # tokens are as they are: nothing was put behind them
    np.testing.assert_allclose(embedder.embed(given, truncate=True), embedder.embed([[2, *[11] * 47]]), atol=1e-6)


def test_first_features_are_vectors_of_length_1(bert: tuple[Path, Path, Embedder]) -> None:
    _, _, embedder = bert
    texts = ragged(3)
    whole, first = embedder.embed(texts), embedder.embed(texts, dimensions=5)
    want = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(first, want, atol=1e-6)
    for wrong in (0, -1, 25, 1 << 62):
        with pytest.raises(ContractError, match="1 to 24 features"):
            embedder.embed(texts, dimensions=wrong)


@pytest.mark.parametrize("tokens", [[], [100], [-1], [1 << 62], [5.5], [True], [None]])
def test_tokens_that_there_arent(bert: tuple[Path, Path, Embedder], tokens: list[int]) -> None:
    with pytest.raises(ContractError, match="no vector|is no token|are integers"):
        bert[2].embed([[5], tokens])
    with pytest.raises(ContractError, match="no prompt 'x'; prompts: query, document"):
        bert[2].embed("a", prompt="x")
    with pytest.raises(ContractError, match="can't be encoded"):
        bert[2].embed("\ud800")


def test_it_is_found_again(bert: tuple[Path, Path, Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache, embedder = bert

    def refuse(_: Any) -> None:
        raise AssertionError("it compiles")

    monkeypatch.setattr("dhlo.serve.embed.EmbeddingProgram.compile", refuse)
    with open_embedder(folder, cache=str(cache)) as again:
        np.testing.assert_allclose(again.embed("w5"), embedder.embed("w5"), atol=1e-6)
    for changed in ({"pooling": "cls"}, {"normalize": False}, {"weights": {"default": "int8"}}):
        with pytest.raises(AssertionError, match="it compiles"):
            open_embedder(folder, cache=str(cache), **changed)
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match="it compiles"):
        patch.setattr(compiling, "_transformers", lambda: "another")
        open_embedder(folder, cache=str(cache))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pooling", "normalize"),
    [
        ("roberta", "cls_token", True),
        ("mpnet", "mean_tokens", True),
        ("mpnet", "max_tokens", False),
        ("modernbert", "weightedmean_tokens", True),
        ("modernbert", "mean_sqrt_len_tokens", False),
        ("qwen3", "lasttoken", True),
    ],
)
def test_other_models(tmp_path: Path, kind: str, pooling: str, normalize: bool) -> None:
    folder, texts = save(tmp_path / "m", kind, pooling, normalize=normalize), ragged(12)
    with open_embedder(folder, cache="", batch_tokens=200) as embedder:
        want = expected(folder, kind, texts, pooling, normalize=normalize)
        np.testing.assert_allclose(embedder.embed(texts), want, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pooling"), [("bert", "mean_tokens"), ("qwen3", "lasttoken")])
def test_folders_without_modules(tmp_path: Path, kind: str, pooling: str) -> None:
    folder, texts = save(tmp_path / "m", kind, None), ragged(4, 60)
    with open_embedder(folder, cache="") as embedder:
        np.testing.assert_allclose(embedder.embed(texts), expected(folder, kind, texts, pooling), atol=2e-5)


def test_what_kind_a_folder_is_of(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "qwen3", "lasttoken")
    assert is_embedder(folder)
    (folder / "modules.json").unlink()
    assert not is_embedder(folder)
    assert read_pipeline(folder).pooling == ("lasttoken",) and read_pipeline(folder).normalized
    assert read_pipeline(folder, "cls", False).pooling == ("cls",) and not read_pipeline(folder, "cls", False).normalized
    write(folder / "config.json", {"architectures": ["BertForMaskedLM"], "model_type": "bert"})
    assert is_embedder(folder) and read_pipeline(folder).pooling == ("mean_tokens",)
    for name in ("GPT2LMHeadModel", "BertForSequenceClassification"):
        write(folder / "config.json", {"architectures": [name]})
        assert not is_embedder(folder)


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], object]:
    return lambda folder: write(folder / name, change(json.loads((folder / name).read_text())))


def stage(kind: str, path: Any = "x") -> Callable[[Path], object]:
    return edit("modules.json", lambda x: [*x, {"type": f"a.{kind}", "path": path}])


LENGTHS = {"max_position_embeddings", "max_seq_length", "model_max_length"}


def without_lengths(folder: Path) -> None:
    for path in folder.glob("*.json"):
        said = json.loads(path.read_text())
        if isinstance(said, dict):
            path.write_text(json.dumps({k: v for k, v in said.items() if k not in LENGTHS}))


REFUSED: dict[str, Callable[[Path], object]] = {
    "has a CNN, which isn't supported": stage("CNN"),
    "no list of modules": stage("Normalize", "../../etc"),
    "no list of modules with": stage("Normalize", 7),
    "doesn't begin with a Transformer: Pooling": edit("modules.json", lambda x: x[1:]),
    "doesn't begin with a Transformer: it is empty": edit("modules.json", lambda _: []),
    "has other modules before its Pooling": edit("modules.json", lambda x: [x[0], {"type": "a.Normalize", "path": ""}, *x[1:]]),
    "has no Pooling, and so gives no vector": edit("modules.json", lambda x: x[:1]),
    "modules.json' is no JSON": lambda f: (f / "modules.json").write_text("["),
    "no way of pooling": edit("1_Pooling/config.json", lambda x: {}),
    "no way of pooling that": edit("1_Pooling/config.json", lambda x: {"pooling_mode": "best"}),
    "include_prompt": edit("1_Pooling/config.json", lambda x: x | {"include_prompt": False}),
    "prompts are texts": edit("config_sentence_transformers.json", lambda x: {"prompts": {"a": 1}}),
    "default_prompt_name": edit("config_sentence_transformers.json", lambda x: {"default_prompt_name": "a"}),
    "in_features": edit("2_Dense/config.json", lambda x: {"in_features": "1"}),
    "the activation Softmax": edit("2_Dense/config.json", lambda x: x | {"activation_function": "torch.nn.Softmax"}),
    "has no model.safetensors": lambda f: (f / "2_Dense" / "model.safetensors").unlink(),
    "has no tokenizer.json": lambda f: (f / "tokenizer.json").unlink(),
    "doesn't say how many tokens": without_lengths,
    "has no config.json": lambda f: (f / "config.json").unlink(),
    "has no weights": lambda f: (f / "model.safetensors").unlink(),
    "is not a folder": lambda f: shutil.rmtree(f),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_named(bert: tuple[Path, Path, Embedder], tmp_path: Path, what: str) -> None:
    folder = shutil.copytree(bert[0], tmp_path / "m")
    REFUSED[what](folder)
    with pytest.raises((CompileError, ModelFileError), match=what):
        open_embedder(folder, cache="")


@pytest.mark.slow
def test_damaged_dense_layers(bert: tuple[Path, Path, Embedder], tmp_path: Path) -> None:
    folder = shutil.copytree(bert[0], tmp_path / "m")
    for data in (b"", b"x" * 100):
        (folder / "2_Dense" / "model.safetensors").write_bytes(data)
        with pytest.raises(CompileError, match="can't be read as a dense layer of 32 and 24 features"):
            open_embedder(folder, cache="")


# ------------------------------------------------------------------ batches
def test_batches_are_of_like_lengths() -> None:
    r = random.Random(1)
    for most in (1, 64, 2048):
        lengths = [round(math.exp(r.uniform(0, math.log(512)))) for _ in range(500)]
        batches = batches_of(lengths, most)
        assert sorted(k for b in batches for k in b) == list(range(500))
        for b in batches:
            longest = max(lengths[k] for k in b)
            assert len(b) == 1 or longest * len(b) <= most
    whole = sum(max(lengths[k] for k in b) * len(b) for b in batches)
    assert whole <= 1.1 * sum(lengths) and len(batches) < 60
    assert batches_of([], 5) == []


@pytest.fixture
def words(tmp_path: Path) -> Path:
    word_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_many_threads(words: Path) -> None:
    failed: list[object] = []

    def ask(embedder: Embedder, seed: int) -> None:
        texts = ragged(30, seed=seed)
        got = embedder.embed(texts)
        lengths = [round(float(v[0] / v[2])) for v in got]
        if lengths != [len(t) for t in texts]:
            failed.append(seed)

    with rule_embedder(words) as embedder:
        threads = [threading.Thread(target=ask, args=(embedder, k)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failed and embedder.stats.tokens == sum(len(t) for k in range(8) for t in ragged(30, seed=k))


def test_an_embedder_that_fails(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what can't come."""

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("dhlo.serve.embed.batches_of", fail)
    with rule_embedder(words) as embedder:
        client = TestClient(make_embedding_app(embedder), raise_server_exceptions=False)
        with pytest.raises(QueueFullError, match="batches can't be made: MemoryError: no room"):
            embedder.embed([[1], [2]])
        answers = client.get("/health"), client.post("/v1/embeddings", json={"input": "one"})
        assert [a.status_code for a in answers] == [503, 503] and all("no room" in a.text for a in answers)


def test_what_waits_is_bounded_and_ends(words: Path) -> None:
    held, begun = threading.Event(), threading.Event()
    embedder = rule_embedder(words, max_waiting=3)
    run = embedder._call

    def hold(*given: Any) -> Any:
        begun.set()
        held.wait(60)
        return run(*given)

    embedder._call = hold
    first = embedder.submit([[5]])
    assert begun.wait(60)
    second, third = embedder.submit([[6], [7]]), embedder.submit([[8]])
    with pytest.raises(QueueFullError, match="3 texts wait, of 3 that may"):
        embedder.submit([[9]])
    assert third.cancel() and embedder.stats.waiting == 2
    fourth = embedder.submit([[9]])
    with pytest.raises(QueueFullError, match="3 texts wait"):
        embedder.submit([[9]])
    threading.Timer(0.05, held.set).start()
    embedder.close()
    assert first.result(60).shape == (1, 8)
    with pytest.raises(QueueFullError, match="is closed"):
        second.result(60)
    assert isinstance(fourth.exception(60), QueueFullError)
    with pytest.raises(QueueFullError, match="is closed"):
        embedder.submit([[5]])


def test_a_batch_that_fails(words: Path) -> None:
    with rule_embedder(words) as embedder:
        run = embedder._call
        embedder._call = lambda ids, lengths: (_ for _ in ()).throw(MemoryError("none left"))
        with pytest.raises(MemoryError, match="none left"):
            embedder.embed([[5], [6]])
        embedder._call = run
        assert embedder.embed([[5]]).shape == (1, 8)


# ------------------------------------------------------------------ HTTP
@pytest.fixture
def client(words: Path) -> Iterator[TestClient]:
    with rule_embedder(words) as embedder:
        app = make_embedding_app(embedder, ServerOptions(api_keys=("k",)))
        yield TestClient(app, raise_server_exceptions=False, headers={"authorization": "Bearer k"})


def test_openais_form(client: TestClient) -> None:
    texts = ["w1 w2", "w3"]
    answer = client.post(URL, json={"input": texts, "model": "rule"}).json()
    assert answer["object"] == "list" and answer["model"] == "rule" and answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [(d["object"], d["index"], len(d["embedding"])) for d in answer["data"]] == [("embedding", 0, 8), ("embedding", 1, 8)]
    coded = client.post(URL, json={"input": texts, "encoding_format": "base64", "user": "u"}).json()
    for a, b in zip(answer["data"], coded["data"], strict=True):
        assert np.frombuffer(base64.b64decode(b["embedding"]), "<f4").tolist() == a["embedding"]
    tokens = client.post(URL, json={"input": [[2, 5, 6, 3], [2, 7, 3]]}).json()
    assert tokens["data"] == answer["data"]
    assert client.post(URL, json={"input": [2, 5, 6, 3]}).json()["data"] == answer["data"][:1]
    first = client.post(URL, json={"input": "w3", "dimensions": 2}).json()["data"][0]["embedding"]
    assert len(first) == 2 and math.isclose(math.hypot(*first), 1, rel_tol=1e-6)
    behind = client.post(URL, json={"input": "w3", "prompt_name": "query"}).json()
    assert behind["usage"]["prompt_tokens"] == 4
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 64
    text = client.get("/metrics").text
    assert 'vllm:prompt_tokens_total{engine="0",model_name="rule"}' in text and "e2e_request_latency_seconds_count" in text


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input"),
        ({"input": [[5], []]}, 400, "input"),
        ({"input": [5, "a"]}, 400, "input"),
        ({"input": [[100000]]}, 400, "input"),
        ({"input": [-1]}, 400, "input"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": "w1 " * 63}, 400, "input"),
        ({"input": "\ud800"}, 400, None),
        ({"input": "a", "dimensions": 9}, 400, "dimensions"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"input": "a", "prompt_name": "x"}, 400, "prompt_name"),
        ({"input": [5], "prompt_name": "query"}, 400, "prompt_name"),
        ({"input": "a", "model": "gpt"}, 404, "model"),
        ({"input": "a", "stream": True}, 400, "stream"),
    ],
)
def test_errors(client: TestClient, body: Any, status: int, param: str | None) -> None:
    answer = client.post(URL, content=json.dumps(body).encode())
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    if body.get("input") == "w1 " * 63:
        assert error["code"] == "context_length_exceeded"


def test_other_routes(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": []})
    assert answer.status_code == 404 and "gives embeddings" in answer.json()["error"]["message"]
    assert client.post(URL, json={"input": "a"}, headers={"authorization": "Bearer x"}).status_code == 401
    assert client.get("/health").json() == {"status": "ok"} and client.get("/v1/models/x").status_code == 404


# ------------------------------------------------------------------ the command line
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--prompt-lookup", "3"], "--prompt-lookup: .* makes vectors"),
        (["--lora-modules", "a=b"], "--lora-modules: .* makes vectors"),
        (["--max-tokens", "3"], "--max-tokens: .* makes vectors"),
        (["--task", "chat"], "'chat' is none of auto, generate, embed"),
        (["--pooling", "best"], "'best' is none of cls, max"),
        (["--task", "generate", "--pooling", "cls"], "--pooling: .* continues texts"),
    ],
)
def test_what_serve_refuses(bert: tuple[Path, Path, Embedder], arguments: list[str], match: str) -> None:
    result = CliRunner().invoke(app, ["serve", str(bert[0]), "--cache", str(bert[1]), "--port", "0", *arguments])
    assert result.exit_code == 1
    with pytest.raises(DhloError, match=match):
        raise DhloError(result.output)


def test_serve_knows_by_the_folder(bert: tuple[Path, Path, Embedder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("dhlo.serve.doors.run_server", lambda app, *_: served.append(TestClient(app).get("/v1/models").json()))
    result = CliRunner().invoke(app, ["serve", str(bert[0]), "--cache", str(bert[1]), "--port", "0"])
    assert result.exit_code == 0, result.output
    assert "bert: vectors of 24 features, up to 48 tokens in a text" in result.output
    assert served[0]["data"][0]["id"] == "bert"
    assert not is_embedder(make_folder(tmp_path / "llama"))
