"""Targets by name, and the one that this machine is."""

from __future__ import annotations

import functools
import platform
from collections import Counter
from dataclasses import replace

import llvmlite.binding as llvm

from dhlo import _runtime
from dhlo.codegen.target import aarch64, x86
from dhlo.codegen.target.base import Target
from dhlo.errors import CompileError

__all__ = ["native", "parse_target", "parse_targets"]

_NAMES = "native, x86-64-v3 (+vnni), x86-64-v4 (+bf16, +vnni, +amx-bf16, +amx-int8), aarch64 (+dotprod, +i8mm, +bf16, +sve)"


@functools.cache
def native() -> Target:
    """The machine that the compiler runs on. Raises CompileError for a CPU below x86-64-v3."""
    llvm.initialize_native_target()
    cpu = llvm.get_host_cpu_name()
    # Some the system must grant a process besides (AMX): what the runtime would refuse isn't this machine's.
    features = {name for name, has in llvm.get_host_cpu_features().items() if has and _runtime.cpu_supports(name)}
    if platform.machine() == "aarch64":
        return aarch64.aarch64([n for n, needs in aarch64.EXTRAS.items() if features.issuperset(needs)], cpu)
    found = x86.level_of(features)
    if found is None:
        lacks = [f for f in x86.LEVELS["x86-64-v3"] if f not in features]
        raise CompileError(
            f"can't compile for the CPU '{cpu}', which lacks {', '.join(lacks)}",
            hint="x86-64 CPUs need AVX2, FMA and F16C at least; name another machine by target=",
        )
    return x86.x86(*found, cpu)


def parse_target(name: str) -> Target:
    """The target of a name such as "native", "x86-64-v4+bf16" or "aarch64+dotprod+i8mm".

    Raises CompileError for a name that isn't one.
    """
    level, *extras = name.strip().split("+")
    if level == "native" and not extras:
        return native()
    known = {**x86.EXTRAS, aarch64.LEVEL: aarch64.EXTRAS}.get(level, {})
    if level not in (*x86.LEVELS, aarch64.LEVEL):
        below = level in ("x86-64", "x86-64-v1", "x86-64-v2")
        why = "has no AVX2, which kernels need" if below else "isn't known"
        raise CompileError(f"the target '{name}' {why}", hint=f"targets are {_NAMES}")
    unknown = [e for e in extras if e not in known]
    if unknown:
        raise CompileError(f"the target '{level}' has no extension '{unknown[0]}'", hint=f"targets are {_NAMES}")
    return aarch64.aarch64(extras) if level == aarch64.LEVEL else x86.x86(level, extras)


def parse_targets(names: str) -> tuple[Target, ...]:
    """The targets of a list such as "x86-64-v3,x86-64-v4+bf16", from which a machine takes the last that it can run.

    Raises CompileError for what isn't a target, is named twice, or is of another architecture than the first.
    """
    found = [parse_target(name) for name in names.split(",")]
    for name, count in Counter(t.name for t in found).items():
        if count > 1:
            raise CompileError(f"the target '{name}' is named twice")
    for t in found:
        if t.triple != found[0].triple:
            raise CompileError(
                f"'{found[0].name}' and '{t.name}' are different architectures", hint="compile a model file for each"
            )
    shared = {tag for tag, count in Counter(t.tag for t in found).items() if count > 1}
    return tuple(
        replace(t, tag="_".join([t.tag, *t.name.replace("-", "").split("+")[1:]])) if t.tag in shared else t for t in found
    )
