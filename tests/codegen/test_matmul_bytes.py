"""Products of bytes in i32 against 64-bit references, by every way in which targets multiply them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dhlo import _runtime
from dhlo.codegen.backends.cpu.llvm import emit_assembly, lower_to_llvm_ir
from dhlo.codegen.families.gemm import byte_rows
from dhlo.codegen.families.gemm.matmul import workspace_bytes
from dhlo.codegen.families.gemm.microkernel import emit_microkernel
from dhlo.codegen.families.gemm.pack import pack_matrix
from dhlo.codegen.families.gemm.register_tile import TileSpec, tile_spec
from dhlo.codegen.kernel_ir.builder import I8, KernelModule, Linkage
from dhlo.codegen.target import Target, parse_target
from tests.codegen.test_matmul import Array, cases, run
from tests.targets import TARGET

V3 = parse_target("x86-64-v3")


def targets() -> list[Target]:
    """The target of the tests, without its extensions, and on x86 what else may run here: also the 256-bit form of AVX-VNNI, as
    AVX-512 spells it."""
    found = [TARGET, parse_target(TARGET.name.partition("+")[0])]
    if TARGET.is_x86:
        short = replace(
            V3, name="x86-64-v3+short", features=(*V3.features, "avx512f", "avx512vl"), extras=frozenset({"avx512vnni"})
        )
        dots = parse_target("x86-64-v3+vnni").dots
        found += [V3, parse_target("x86-64-v4"), parse_target("x86-64-v4+vnni")]
        found.append(replace(short, dots={k: replace(d, feature="avx512vnni") for k, d in dots.items()}))
    return [t for t in {t.name: t for t in found}.values() if not t.is_x86 or runs_here(t)]


def runs_here(target: Target) -> bool:
    return all(map(_runtime.cpu_supports, (*target.features, *target.extras)))


SPECS = [tile_spec(t).of_bytes(unsigned=unsigned) for t in targets() for unsigned in (False, True)]
every_way = pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s}")


def bytes_(rng: np.random.Generator, shape: tuple[int, ...], *, unsigned: bool = False) -> Array:
    """Of all values, the extremes above all."""
    info = np.iinfo(np.uint8 if unsigned else np.int8)
    x = rng.integers(info.min, info.max + 1, shape, info.dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(np.array([info.min, info.max, 0], info.dtype), shape), x)


def check(got: Array, a: Array, b: Array) -> None:
    """Sums wrap."""
    want = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("packed", [True, False])
@every_way
def test_sizes(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(1)
    sizes = [*((m, n, 33) for m in range(1, 31) for n in (31, 65)), *((m, 40, k) for m in (1, 4, 20) for k in range(70))]
    for i, (m, n, k) in enumerate([*sizes, *cases(60, 1), (0, 3, 5), (3, 0, 5), (3, 5, 0), (300, 100, 1029)]):
        a, b = bytes_(rng, (1, 1, m, k), unsigned=spec.unsigned), bytes_(rng, (1, 1, k, n))
        check(run(a, b, packed=packed, seed=i if i % 2 else None, num_threads=1 + i % 3, spec=spec), a, b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("packed", [True, False])
@every_way
def test_strides_and_batches(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(2)

    def left(*shape: int) -> Array:
        return bytes_(rng, (3, 1, *shape), unsigned=spec.unsigned)

    for i, (m, n, k) in enumerate([*cases(30, 2), (20, 200, 40), (100, 300, 64), (33, 96, 131)]):
        a_forms = left(m, k), left(k, m).swapaxes(2, 3), left(m, 3 * k)[..., ::3], left(m, k + 5)[..., 3 : k + 3]
        b_forms = [
            bytes_(rng, (3, 1, n, k)).swapaxes(2, 3),
            bytes_(rng, (3, 1, k, n + 3))[..., 1 : n + 1],
            bytes_(rng, (3, 1, k, 2 * n))[..., ::2],
            np.broadcast_to(bytes_(rng, (1, 1, k, n)), (3, 1, k, n)),
        ]
        for a in a_forms:
            b = b_forms[i % 4]
            check(run(a, b, packed=packed, seed=i, num_threads=2, spec=spec), a, b)


@pytest.mark.parametrize("packed", [True, False])
@every_way
def test_chunks_of_k(spec: TileSpec, packed: bool) -> None:
    """A small second-level cache cuts k: each chunk takes back what flipped signs add to it."""
    rng = np.random.default_rng(3)
    sizes = [(m, 33 + 16 * (m % 5), k) for m in (1, 6, 7, 13, 14, 15, 29, 200) for k in (2050, 4099)]
    for i, (m, n, k) in enumerate([*sizes, (129, 330, 2563)]):
        a_forms = [
            bytes_(rng, (2, 1, m, k), unsigned=spec.unsigned),
            bytes_(rng, (2, 1, k, m), unsigned=spec.unsigned).swapaxes(2, 3),
        ]
        b_forms = [bytes_(rng, (2, 1, n, k)).swapaxes(2, 3), bytes_(rng, (1, 1, k, n))]
        a, b = a_forms[i % 2], np.broadcast_to(b_forms[i // 2 % 2], (2, 1, k, n))
        want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32)  # exact: the sums fit 31 bits
        for threads, seed in ((1, None), (3, i)):
            got = run(a, b, packed=packed, spec=spec, num_threads=threads, seed=seed, l2_bytes=64 << 10)
            np.testing.assert_array_equal(got, want)


@every_way
def test_extremes(spec: TileSpec) -> None:
    """Nothing saturates on the way, and sums that exceed i32 wrap."""
    least, most = (0, 255) if spec.unsigned else (-128, 127)
    for k in (1, 2, 3, 4, 64, 257, 140_000):
        for x in (least, most):
            for y in (-128, 127):
                a, b = np.full((1, 1, 2, k), x, np.uint8 if spec.unsigned else np.int8), np.full((1, 1, k, 17), y, np.int8)
                for packed in (True, False):
                    check(run(a, b, packed=packed, spec=spec), a, b)


@pytest.mark.parametrize(
    ("name", "instruction", "rows", "unsigned_rows"),
    [
        ("x86-64-v4+vnni", r"vpdpbusd\t\S*, %zmm", 13, 14),
        ("x86-64-v3+vnni", r"vpdpbusd\t\S*, %ymm", 5, 6),
        ("x86-64-v4", r"vpmaddwd\t\S*, %zmm", 12, 12),
        ("x86-64-v3", r"vpmaddwd\t\S*, %ymm", 4, 4),
        ("aarch64+dotprod", r"\tsdot\t", 6, 5),
        ("aarch64+dotprod+i8mm", r"\tu?smmla\t", 12, 12),
        ("aarch64", r"\tmla\t", 4, 4),
    ],
)
def test_the_inner_loop_multiplies_and_does_not_spill(name: str, instruction: str, rows: int, unsigned_rows: int) -> None:
    """The largest tile: panels of the left side that needn't be flipped leave a row more."""
    target = parse_target(name)
    for spec, height in ((tile_spec(target).of_bytes(unsigned=u), rows if not u else unsigned_rows) for u in (False, True)):
        assert spec.rows(I8) == height
        module = KernelModule(target)
        symbol = emit_microkernel(module, I8, height, spec)
        module.functions[symbol] = replace(module.functions[symbol], linkage=Linkage.EXPORTED)
        text = emit_assembly(lower_to_llvm_ir(module.text(), target), target)
        blocks = re.split(r"^\.LBB.*$|^\t(?:j|b\.)\w+\t.*$", text, flags=re.MULTILINE)
        loops = [x for x in blocks if len(re.findall(instruction, x)) >= height]
        assert max(len(re.findall(instruction, x)) for x in loops) >= height * spec.vectors
        for loop in loops:
            assert not re.search(r"%rsp|\[sp", loop), "a spill"


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("x86-64-v4+vnni", r"vpdpbusd\t\S*.*%zmm"),
        ("x86-64-v3+vnni", r"vpdpbusd\t\S*.*%ymm"),
        ("x86-64-v3", r"vpmaddwd\t\S*.*%ymm"),
        ("aarch64+dotprod", r"\tsdot\t"),
        ("aarch64+dotprod+i8mm", r"\tu?sdot\t"),
        ("aarch64+i8mm", r"\tusdot\t"),
        ("aarch64", r"\tmla\t"),
    ],
)
def test_few_rows_are_multiplied_as_the_target_can(name: str, instruction: str) -> None:
    target = parse_target(name)
    for unsigned in (False, True):
        spec = tile_spec(target).of_bytes(unsigned=unsigned).by_dots
        if not byte_rows.serves(spec):
            assert name == "aarch64+dotprod" and unsigned
            continue
        for form in byte_rows.FORMS:
            module = KernelModule(target)
            symbol = byte_rows.emit_byte_rows_kernel(module, spec, form)
            module.functions[symbol] = replace(module.functions[symbol], linkage=Linkage.EXPORTED)
            assert re.search(instruction, emit_assembly(lower_to_llvm_ir(module.text(), target), target))


def test_panels_are_the_same_on_all_targets() -> None:
    w = torch.randint(-128, 128, (5, 33), dtype=torch.int8)
    want = torch.zeros(2, 2, 32, 4, dtype=torch.int8)
    for k in range(5):
        for n in range(33):
            want[n // 32, k // 4, n % 32, k % 4] = w[k, n]
    for m in (w, w.t().contiguous().t()):
        np.testing.assert_array_equal(pack_matrix(m, 32), want.numpy())
    for name in ("x86-64-v3", "x86-64-v3+vnni", "x86-64-v4", "x86-64-v4+vnni", "aarch64", "aarch64+dotprod+i8mm"):
        spec: Any = tile_spec(parse_target(name)).of_bytes(unsigned=False)
        assert spec.panel(I8) == 32 and workspace_bytes(1, 33, 5, I8, spec) == want.numel()


@every_way
def test_few_rows_with_b_as_it_lies(spec: TileSpec) -> None:
    """Contiguous rows or columns of B, sizes around those of vectors, of strips, and of what threads take."""
    rng = np.random.default_rng(4)
    size = spec.target.vector_bits // 8
    sizes = [
        (m, n, k) for m in (1, 2, 3, 4, 5, 8, 9) for n, k in ((size, 4), (2 * size - 1, size + 1), (3 * size + 5, 2 * size - 1))
    ]
    sizes += [(1, 4 * 4096 + 70, 9), (3, 1500, 33), (2, 3, 5 * size), (4, 9, size), (8, 130, 300)]
    for i, (m, n, k) in enumerate(sizes):
        a_forms = [
            bytes_(rng, (2, 1, m, k), unsigned=spec.unsigned),
            bytes_(rng, (2, 1, k, m), unsigned=spec.unsigned).swapaxes(2, 3),
            bytes_(rng, (2, 1, m, k + 3), unsigned=spec.unsigned)[..., 3:],
        ]
        b_forms = [
            bytes_(rng, (2, 1, k, n)),
            bytes_(rng, (2, 1, k, n + 7))[..., 5 : n + 5],
            bytes_(rng, (2, 1, n, k)).swapaxes(2, 3),
            bytes_(rng, (2, 1, n, k + 5))[..., 1 : k + 1].swapaxes(2, 3),
            np.broadcast_to(bytes_(rng, (1, 1, n, k)).swapaxes(2, 3), (2, 1, k, n)),
        ]
        for j, b in enumerate(b_forms):
            a = a_forms[(i + j) % 3]
            check(run(a, b, packed=False, seed=i if j % 2 else None, num_threads=1 + j % 3, spec=spec), a, b)
