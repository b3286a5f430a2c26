"""Models and sessions are copied and pickled: code and weights go along, and state goes on from where it was, apart."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.export import export

import dhlo
from tests.test_sessions import AT, X, calls, compile_decoder


class Count(torch.nn.Module):
    """A state that two entries have in common."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.by = by

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.n += self.by
        return {"y": x["a"] * 2 + self.n}


@pytest.fixture(scope="module")
def compiled() -> dhlo.CompiledModel:
    return compile_decoder()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two entries."""
    x = {"a": torch.ones(2)}
    model = dhlo.compile({"one": export(Count(1), (x,)), "ten": export(Count(10), (x,))})
    model.save(path := tmp_path_factory.mktemp("models") / "count.so")
    return path


def n_of(y: dict[str, torch.Tensor]) -> int:
    return int(y["y"][0]) - 2


ONES = {"a": torch.ones(2)}


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_compiled_model_goes_on_by_itself(compiled: dhlo.CompiledModel, again: object) -> None:
    assert callable(again)
    model = copy.copy(compiled)
    assert int(model(X, AT)[0][0]) == 2  # the state of `compiled` is untouched
    twin = again(model)
    assert int(model(X, AT)[0][0]) == 3 and int(model(X, AT)[0][0]) == 4
    assert int(twin(X, AT)[0][0]) == 3
    assert twin.signature == model.signature and twin.planned == model.planned
    assert calls(twin.session()) == 0  # which begins as exported
    with pytest.raises(dhlo.ContractError, match="rank"):
        twin(X[0], AT)


def test_weights_are_kept_as_compiled(tmp_path: Path) -> None:
    """What is saved or pickled later is what runs, whatever became of the module's tensors."""
    module, x = torch.nn.Embedding(5, 4), torch.arange(5)
    model = dhlo.compile(module, (x,))
    want = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.zero_()
    model.save(tmp_path / "model.so")
    for again in (model, dhlo.load(tmp_path / "model.so"), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(x), want)


def test_state_of_another_thread() -> None:
    model = compile_decoder()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model, X, AT).result()
        assert int(copy.copy(model)(X, AT)[0][0]) == 3
    for refused in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(dhlo.SessionError, match="belongs to thread 'ThreadPool"):
            refused(model)


def test_entries_that_are_copied_together_share_state(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DHLO_NUM_THREADS", raising=False)  # which wins
    model = dhlo.load(file, num_threads=1)
    assert model.native.num_threads == 1
    assert n_of(model["ten"](ONES)) == 10
    for again in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        twins = again({"one": model["one"], "ten": model["ten"]})
        assert n_of(twins["one"](ONES)) == 11 and n_of(twins["ten"](ONES)) == 21 and n_of(twins["one"]["one"](ONES)) == 22
        assert twins["ten"].native.num_threads == 1
    assert n_of(model(ONES)) == 11


def test_sessions_are_pickled_with_their_state(compiled: dhlo.CompiledModel, file: Path) -> None:
    session = compiled.session(max_bytes=1 << 20)
    session(X, AT)
    again = pickle.loads(pickle.dumps(session))
    assert torch.equal(session(X, AT)[1], again(X, AT)[1]) and calls(again) == 2
    session(X, AT)
    assert calls(again) == 2 and again._max_bytes == 1 << 20
    counts = dhlo.load(file).session()
    counts["ten"](ONES)
    one, ten = pickle.loads(pickle.dumps((counts, counts["ten"])))
    assert n_of(one(ONES)) == 11 and n_of(ten(ONES)) == 21 and ten["one"] is one
    alone = pickle.loads(pickle.dumps(dhlo.load(file).session()["ten"]))
    assert n_of(alone(ONES)) == 10


def test_another_process_gets_models(compiled: dhlo.CompiledModel, file: Path) -> None:
    fresh, loaded = copy.copy(compiled), dhlo.load(file)
    fresh(X, AT), loaded(ONES)
    assert len(pickle.dumps(loaded)) < 4096  # which names its file
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert int(pool.apply(fresh, (X, AT))[0][0]) == 3
        assert n_of(pool.apply(loaded["ten"], (ONES,))) == 11
    assert int(fresh(X, AT)[0][0]) == 3


def test_a_pickle_names_one_file(file: Path, tmp_path: Path) -> None:
    shutil.copy(file, path := tmp_path / "model.so")
    model = dhlo.load(path)
    data = pickle.dumps(model)
    other = torch.nn.ReLU()
    dhlo.compile(export(other, (torch.ones(2),))).save(path)
    with pytest.raises(dhlo.ModelFileError, match="replaced or changed after it was loaded"):
        pickle.dumps(model)
    with pytest.raises(dhlo.ModelFileError, match="isn't the one whose model was pickled"):
        pickle.loads(data)
    path.unlink()
    with pytest.raises(dhlo.ModelFileError, match="cannot be opened"):
        pickle.loads(data)
    assert n_of(model(ONES)) == 1 and n_of(copy.deepcopy(model)(ONES)) == 2


def test_html(compiled: dhlo.CompiledModel) -> None:
    from xml.etree import ElementTree

    table = ElementTree.fromstring(compiled._repr_html_())
    texts = list(table.itertext())
    assert "inputs" in texts and "x" in texts and "float32[n, 3]" in texts and "0 <= n <= 8" in texts and "cache.keys" in texts
    shown = re.sub(r"\W", "", "".join(texts))
    assert shown == re.sub(r"\W", "", compiled.signature)


@pytest.mark.parametrize(
    "error",
    [
        dhlo.UnsupportedError([("aten.a", "model.py:3"), ("aten.b", None)]),
        dhlo.CompileError("sizes differ", where="model.py:3", hint="make them equal"),
    ],
)
def test_errors_are_pickled(error: dhlo.CompileError) -> None:
    """As pools of processes do."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
