"""Machine code that LLVM made of a text before is read back rather than made again, by later tests and later runs.

A file's name is the SHA-256 of all that its content is a function of: the text, the target, the versions of LLVM and MLIR, and the
source of what calls them. So a change of the compiler is tested by new code, and a kernel that it left alone is run, but not
compiled. `make clean`, or removing build/tests-code, forgets all of it; DHLO_KEPT_CODE=0 does without, DHLO_KEPT_CODE=FOLDER keeps
it there.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from dhlo.codegen.backends.cpu import dialects, llvm
from dhlo.codegen.target import Target

__all__ = ["install", "prune"]

FOLDER = os.environ.get("DHLO_KEPT_CODE", str(Path(__file__).resolve().parents[1] / "build" / "tests-code"))
DAYS = 7
"""How long what no run asks for is kept."""


def install() -> None:
    """Before anything imports functions of `llvm` by name."""
    if FOLDER in ("", "0"):
        return
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    llvm.lower_to_llvm_ir = kept("mlir", llvm.lower_to_llvm_ir, str.encode, bytes.decode)
    llvm.compile_object = kept("llvm", llvm.compile_object, bytes, bytes)
    llvm.emit_assembly = kept("assembly", llvm.emit_assembly, str.encode, bytes.decode)
    for name, made in (("lower_common", llvm.lower_to_llvm_ir), ("compile_common", llvm.compile_object)):
        size = getattr(llvm, name).cache_parameters()["maxsize"]
        setattr(llvm, name, functools.lru_cache(maxsize=size)(made))


def prune() -> None:
    """Removes what no run has asked for lately."""
    oldest = time.time() - DAYS * 86400
    for path in Path(FOLDER).glob("??/*") if FOLDER not in ("", "0") else ():
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)


def kept(
    step: str, make: Callable[[str, Target], Any], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> Callable[[str, Target], Any]:
    """`make`, a function of a text and a target, with files of its results."""
    made_by = versions()

    @functools.wraps(make)
    def read_or_make(text: str, target: Target) -> Any:
        digest = hashlib.sha256(f"{step}\n{made_by}\n{described(target)}\n{text}".encode()).hexdigest()
        path = Path(FOLDER, digest[:2], digest[2:])
        try:
            result = decode(zlib.decompress(path.read_bytes()))
            os.utime(path)
            return result
        except (OSError, zlib.error):  # none, or one that was cut short
            pass
        result = make(text, target)
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
        partial.write_bytes(zlib.compress(encode(result), 1))
        partial.rename(path)
        return result

    return read_or_make


def versions() -> str:
    """Of all that makes code of a text."""
    source = [Path(m.__file__ or "").read_bytes() for m in (llvm, dialects)]
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("llvmlite", "torch-mlir")]
    return " ".join([*packages, hashlib.sha256(b"\0".join(source)).hexdigest()])


def described(target: Target) -> str:
    """All fields of a target, in an order of their own."""
    values = {f.name: getattr(target, f.name) for f in fields(target)}
    return repr({k: sorted(v) if isinstance(v, frozenset) else v for k, v in values.items()})
