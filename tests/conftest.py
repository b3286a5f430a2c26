"""Shared by all tests: a seed, a small transformer, and a C++ compiler call that finds the runtime."""

import fcntl
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import torch

from tests import kept_code

kept_code.install()  # before what imports the functions that it stands before

from dhlo.commands.flags import host_flags  # noqa: E402
from dhlo.errors import DhloError  # noqa: E402
from tests.goldens import Golden  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
os.environ["DHLO_VERIFY_PASSES"] = "1"
# Choices at a call don't depend on what else the machine did when it was measured, and nothing is kept in the user's folders.
os.environ.setdefault("DHLO_MACHINE", "nominal")
# Tests have several ranks in a process. PyTorch's flight recorder notes each collective's stack under a lock, under which it frees
# what older stacks held: a finalizer that gives up the GIL there never gets it back from a rank that waits for the lock with it.
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
# The same examples in every run; `--hypothesis-profile=random` looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None)
hypothesis.settings.register_profile("random")
hypothesis.settings.load_profile("repeatable")

BuildHost = Callable[[Path, Path], Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption("--fuzz-seconds", type=float, default=0, help="how long tests/fuzz looks for new failures")


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        kept_code.prune()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is `sampled` the first case and those that its name draws are run by default, the others are slow."""
    begun = set[str]()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None:
            continue
        test = item.nodeid.partition("[")[0]
        if test in begun and zlib.crc32(item.name.encode()) % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        begun.add(test)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with a golden file; see tests/goldens.py."""
    return Golden(request.config.getoption("--update-goldens"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Encoder(torch.nn.Module):
    """Ids and mask [batch, seq] -> last hidden state of a two-layer BERT."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(
            BertConfig(
                vocab_size=97,
                hidden_size=48,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=80,
                max_position_embeddings=64,
            ),
            add_pooling_layer=False,
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return state


@dataclass
class Example:
    """A model, its export, and a function from sizes to inputs."""

    model: torch.nn.Module
    exported: torch.export.ExportedProgram
    inputs: Callable[..., tuple[torch.Tensor, ...]]


def _encoder_inputs(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and a mask that pads every sequence after the first."""
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[1:, (seq + 1) // 2 :] = 0
    return torch.randint(0, 97, (batch, seq)), mask


@pytest.fixture(scope="session")
def encoder() -> Example:
    """A small BERT, exported with batch 1..16 and seq 1..64 dynamic."""
    torch.manual_seed(0)
    model = Encoder().eval().requires_grad_(False)
    sizes = {0: torch.export.Dim("batch", min=1, max=16), 1: torch.export.Dim("seq", min=1, max=64)}
    with torch.no_grad():
        exported = torch.export.export(model, _encoder_inputs(2, 8), dynamic_shapes=(sizes, sizes))
    return Example(model, exported, _encoder_inputs)


@pytest.fixture(scope="session")
def build_host() -> BuildHost:
    """Compiles a C++ source, with whatever else is on the command line, against the static runtime."""

    def build(binary: Path, *sources: Path) -> Path:
        command = [
            "c++",
            "-std=c++17",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            *map(str, sources),
            *runtime_flags(),
            "-o",
            str(binary),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return binary

    return build


def runtime_flags() -> list[str]:
    """Flags of the installed package, or of a CMake build of this source tree, kept between runs."""
    try:
        return host_flags()
    except DhloError:
        pass
    local = Path(sys.executable).parent / "cmake"
    cmake = str(local) if local.exists() else shutil.which("cmake")
    assert cmake is not None, "tests of C++ hosts need an installed package or cmake"
    folder = ROOT / "build" / "tests-plain"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = ["-DDHLO_BUILD_PYTHON=OFF", "-DDHLO_BUILD_TESTS=ON", "-DDHLO_BUILD_EXAMPLES=ON", "-DDHLO_SANITIZE="]
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(folder), *options],
            [cmake, "--build", str(folder), "--target", "dhlo_runtime"],
        ):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stdout + result.stderr
    return [f"-I{ROOT / 'runtime' / 'include'}", str(folder / "runtime" / "libdhlo_runtime.a"), "-pthread", "-ldl"]
