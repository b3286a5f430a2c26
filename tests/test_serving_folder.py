"""Folders of transformers as what is served: compiled once, found again, or refused by what they lack."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertModel

from dhlo.errors import CompileError, DhloError
from dhlo.serve import folder as folders
from dhlo.serve.folder import Served, open_folder
from tests.serving import WORDS, make_folder

AGAIN = """\
import sys
from dhlo.serve.folder import open_folder
served = open_folder(sys.argv[1], cache=sys.argv[2])
print([v["name"] for v in served.step.inputs], {"torch", "transformers"} & set(sys.modules))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Served]:
    """A folder, its cache, and what its first start gave."""
    root = tmp_path_factory.mktemp("served")
    folder = make_folder(root / "llama-0.1")
    generation = {"eos_token_id": [0, 2], "temperature": 0.5, "top_k": 7, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    said = list[str]()
    served = open_folder(folder, cache=str(root / "cache"), progress=said.append)
    assert "generate code" in said
    return folder, root / "cache", served


def test_a_folder_is_what_serving_takes(started: tuple[Path, Path, Served]) -> None:
    _, _, served = started
    assert (served.name, served.eos_tokens, served.max_positions) == ("llama-0.1", (0, 2), 512)
    assert served.defaults == {"temperature": 0.5, "top_k": 7}
    assert served.chat is not None and len(served.tokenizer.vocabulary) == WORDS
    names = [v["name"] for v in served.step.inputs]
    assert {"input_ids", "kept", "slots", "tables"} <= set(names)


def test_the_second_start_needs_no_torch(started: tuple[Path, Path, Served]) -> None:
    folder, cache, served = started
    command = [sys.executable, "-c", AGAIN, str(folder), str(cache)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert result.stdout.split("] ")[1].strip() == "set()"
    assert [v["name"] for v in served.step.inputs] == json.loads(result.stdout.split("] ")[0].replace("'", '"') + "]")


class _CompiledError(Exception):
    pass


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling raises _CompiledError."""

    def refuse(_: Any) -> None:
        raise _CompiledError

    monkeypatch.setattr(folders._Compiling, "_compile", refuse)


@pytest.mark.usefixtures("compiles")
def test_whatever_changes_the_step_compiles_again(started: tuple[Path, Path, Served], tmp_path: Path, monkeypatch: Any) -> None:
    folder, cache, _ = started
    open_folder(folder, cache=str(cache))
    for options in ({"weights": {"default": "int8"}}, {"kv_cache": "bf16"}, {"cache": ""}, {"cache": str(tmp_path)}):
        with pytest.raises(_CompiledError):
            open_folder(folder, **({"cache": str(cache)} | options))
    with monkeypatch.context() as patch, pytest.raises(_CompiledError):
        patch.setenv("DHLO_TARGET", "x86-64-v3")
        open_folder(folder, cache=str(cache))
    copy = shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(_CompiledError):
        open_folder(copy, cache=str(cache))


@pytest.mark.usefixtures("compiles")
def test_damaged_and_foreign_files_arent_used(started: tuple[Path, Path, Served], tmp_path: Path) -> None:
    folder, cache, _ = started
    other = shutil.copytree(cache, tmp_path / "cache")
    (file,) = other.glob("*.so")
    open_folder(folder, cache=str(other))
    file.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="others may write"), pytest.raises(_CompiledError):
        open_folder(folder, cache=str(other))
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(_CompiledError):
        open_folder(folder, cache=str(other))


def break_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def save_bert(folder: Path) -> None:
    config = BertConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(folder)


REFUSALS = {
    "no config.json": lambda f: (f / "config.json").unlink(),
    "no tokenizer.json": lambda f: (f / "tokenizer.json").unlink(),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "config.json' is no JSON": lambda f: (f / "config.json").write_text("{"),
    "config.json' is no object": lambda f: (f / "config.json").write_text("[]"),
    "generation_config.json' is no JSON": lambda f: (f / "generation_config.json").write_bytes(b"\xff"),
    "vocab_size": lambda f: break_config(f, vocab_size=None),
    "eos_token_id 9999": lambda f: break_config(f, eos_token_id=9999) or (f / "generation_config.json").unlink(),
    "quantised": lambda f: break_config(f, quantization_config={"quant_method": "x"}),
    "adapter": lambda f: (f / "adapter_config.json").write_text("{}"),
    "isn't a decoder": lambda f: save_bert(f),
    "is not a folder": lambda f: shutil.rmtree(f),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_missing_is_named(started: tuple[Path, Path, Served], tmp_path: Path, what: str) -> None:
    folder = shutil.copytree(started[0], tmp_path / "m")
    REFUSALS[what](folder)
    with pytest.raises(DhloError, match=what):
        open_folder(folder, cache="")


def test_options_are_the_compilers(started: tuple[Path, Path, Served]) -> None:
    with pytest.raises(CompileError, match="int9"):
        open_folder(started[0], cache="", weights={"default": "int9"})
