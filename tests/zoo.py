"""Real models (a folder with a zoo.py, named by DHLO_ZOO), each tested in a process of its own: what one registers in PyTorch when
it is exported, such as the classes of its caches, would stay for those after it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

__all__ = ["NAMES", "ZOO", "assert_close", "exported", "in_own_process", "marks"]

_FOLDER = os.environ.get("DHLO_ZOO")


def _zoo() -> Any:
    spec = importlib.util.spec_from_file_location("zoo", Path(_FOLDER or "") / "zoo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ZOO = _zoo() if _FOLDER else None
NAMES = list(ZOO.REGISTRY) if ZOO else []
marks = [pytest.mark.slow, pytest.mark.skipif(ZOO is None, reason="DHLO_ZOO names no folder")]


def exported(name: str) -> tuple[Any, Any]:
    """A model with its input sets, and its exported program. Skips what doesn't export, or needs a package that isn't there."""
    assert ZOO is not None
    entry = ZOO.REGISTRY[name]
    if "known_fail" in entry.tags:
        pytest.skip("does not export")
    try:
        case = ZOO.build(name)
        return case, ZOO.export(case, **entry.recipe)
    except ImportError as e:
        pytest.skip(str(e))


def in_own_process(check: Callable[[str], None], name: str) -> None:
    """Runs check(name), a function of a module, in a process forked from one that has only imported PyTorch; its failure or skip
    is this process's."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "dhlo"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(check, name, theirs))
    process.start()
    theirs.close()
    try:
        outcome, text = ours.recv()
    except EOFError:
        outcome, text = "died", ""
    process.join()
    if outcome == "skipped":
        pytest.skip(text)
    assert outcome == "passed", text or f"the process ended with {process.exitcode}"


def _report(check: Callable[[str], None], name: str, to: Connection) -> None:
    torch.manual_seed(0)
    try:
        check(name)
        to.send(("passed", ""))
    except pytest.skip.Exception as e:
        to.send(("skipped", str(e)))
    except Exception:
        to.send(("failed", traceback.format_exc()))


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal up to rounding, relative to the largest element."""
    assert got.shape == want.shape and got.dtype == want.dtype
    low = want.dtype in (torch.bfloat16, torch.float16)
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    finite = want[want.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    torch.testing.assert_close(got, want, rtol=2e-2 if low else 1e-3, atol=(1e-2 if low else 1e-4) * scale, equal_nan=True)
