"""Products in matrix registers against 64-bit references, on an emulator of tiles where the CPU has none; what code is made of."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import dhlo
from dhlo.callspec import read_call
from dhlo.codegen.backends.cpu.link import extern_addresses
from dhlo.codegen.backends.cpu.llvm import code_features, compile_object, emit_assembly, lower_to_llvm_ir
from dhlo.codegen.families.gemm.matmul import Matmul
from dhlo.codegen.families.gemm.register_tile import BF16, TileSpec, tile_spec
from dhlo.codegen.families.gemm.tiles import LEAST_ROWS, LEAST_SHARE, TILES_PAY, TileProduct
from dhlo.codegen.kernel_ir.builder import F32, I8, KernelModule, Linkage
from dhlo.codegen.target import Target, parse_target
from dhlo.compiler import compile_program
from dhlo.frontend import import_program
from dhlo.loading import load_artifact
from dhlo.options import Options
from tests.codegen import tile_machine
from tests.codegen.test_matmul import Array, cases, run, tensor
from tests.codegen.test_matmul import check as check_floats
from tests.codegen.test_matmul_bytes import bytes_, runs_here
from tests.codegen.test_matmul_bytes import check as check_integers
from tests.targets import TARGET

AMX = parse_target("x86-64-v4+amx-bf16+amx-int8+bf16+vnni")
V3 = parse_target("x86-64-v3")
WITHOUT = replace(AMX, extras=frozenset(f for f in AMX.extras if not f.startswith("amx")))
"""What the emulator leaves to the CPU."""
FAST = {"tiles_percent": 1600, "l1d_bytes": 48 << 10}
"""Facts of a machine with tiles."""

pytestmark = pytest.mark.skipif(not TARGET.is_x86, reason="tiles of x86-64")


def targets() -> list[Target]:
    """Tiles beside vectors of 256 bits, which every machine here runs, and of 512."""
    short = replace(V3, name="x86-64-v3+tiles", tag="v3tiles", tiles=AMX.tiles, extras=AMX.extras)
    return [short, *([AMX] if runs_here(WITHOUT) else [])]


SPECS = [tile_spec(t) for t in targets()]
BYTES = [replace(spec, unsigned=unsigned) for spec in SPECS for unsigned in (False, True)]
every_target = pytest.mark.parametrize("spec", SPECS, ids=str)
every_form = pytest.mark.parametrize("spec", BYTES, ids=str)
both = pytest.mark.parametrize("packed", [True, False])

EDGES = (1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)


@pytest.fixture(autouse=True)
def _clean_tiles() -> Iterator[None]:
    """Nothing that would trap, and no tiles that are kept."""
    tile_machine.report()
    yield
    tile_machine.report()


def in_tiles(a: Array, b: Array, *, spec: TileSpec, machine: Mapping[str, int] | None = None, **options: Any) -> Array:
    """`run` by the tiles' kernels at every size."""
    always = replace(spec, target=replace(spec.target, name=spec.target.name + "+always", dots={}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TileProduct, "emit_choice", lambda self, host, x, tiles, others: tiles())
        patch.setattr("dhlo.codegen.families.gemm.matmul.byte_rows.serves", lambda spec: False)
        patch.setattr("dhlo.codegen.families.gemm.matmul.STREAM_ROWS", {})
        tile_machine.report()
        got = run(a, b, spec=always, machine=FAST | (dict(machine) if machine else {}), **options)
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    if tile_machine.is_needed(spec.target):
        assert (tile_machine.report() > 0) == (min(m, n, k) > 0)
    return got


# ---------------------------------------------------------------------------------------------------- the emulator
def configuration(rows: int, row_bytes: int) -> Array:
    """Of tiles 0 (sums), 1 and 2."""
    config = np.zeros(64, np.uint8)
    config[0] = 1
    config[16:22].view(np.uint16)[:] = 64, row_bytes, 64
    config[48:51] = rows, rows, row_bytes // 4
    return config


def test_emulated_products_round_as_the_manual_says() -> None:
    """Even and odd k apart, their sum to the tile's; subnormal numbers are zeros."""
    call = {name: ctypes.CFUNCTYPE(None)(f) for name, f in tile_machine.symbols().items()}
    a, b, c = np.zeros((2, 4), np.uint16), np.zeros((2, 32), np.uint16), np.zeros((2, 16), np.float32)
    one, tiny, large = 0x3F80, 0x0040, 0x7180  # 1, 2 ** -127, 2 ** 100
    a[0], a[1] = (one, one, 0, 0), (tiny, 0, 0, one)
    b[0, 0], b[0, 1], b[1, 1] = one, one, one
    b[0, 2] = large
    c[0, 0], c[1, 1] = 2.0**24, 2.0**-149
    call["tile_ldtilecfg"](ctypes.c_void_p(configuration(2, 8).ctypes.data))
    for tile, x in enumerate((c, a, b)):
        call["tile_tileloadd64"](ctypes.c_int8(tile), ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(x.strides[0]))
    call["tile_tdpbf16ps"](ctypes.c_int8(0), ctypes.c_int8(1), ctypes.c_int8(2))
    call["tile_tilestored64"](ctypes.c_int8(0), ctypes.c_void_p(c.ctypes.data), ctypes.c_int64(64))
    call["tile_tilerelease"]()
    assert tile_machine.report() == 1
    assert c[0, 0] == 2.0**24 + 2  # one by one they would be lost
    assert c[0, 1] == 2.0**100 and c[1, 0] == 1 and c[1, 1] == 0 and not c[:, 2:].any()


def test_what_would_trap_is_reported() -> None:
    call = {name: ctypes.CFUNCTYPE(None)(f) for name, f in tile_machine.symbols().items()}
    call["tile_tilezero"](ctypes.c_int8(0))
    with pytest.raises(AssertionError, match="no configuration"):
        tile_machine.report()
    config = configuration(2, 8)
    config[50] = 3
    call["tile_ldtilecfg"](ctypes.c_void_p(config.ctypes.data))
    call["tile_tdpbssd"](ctypes.c_int8(0), ctypes.c_int8(1), ctypes.c_int8(2))
    with pytest.raises(AssertionError, match="sizes that don't match"):
        tile_machine.report()
    with pytest.raises(AssertionError, match="not released"):
        tile_machine.report()
    config[40] = 1
    call["tile_ldtilecfg"](ctypes.c_void_p(config.ctypes.data))
    call["tile_tilerelease"]()
    with pytest.raises(AssertionError, match="reserved"):
        tile_machine.report()


# ---------------------------------------------------------------------------------------------------- bf16
@pytest.mark.sampled(2)
@both
@every_target
def test_sizes_of_bf16(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(1)
    sizes = [*((m, n, 70) for m in EDGES for n in (1, 31, 33)), *((m, 40, k) for m in (1, 17, 33) for k in EDGES)]
    sizes += [*cases(40, 1), (0, 3, 5), (3, 0, 5), (3, 5, 0), (300, 100, 1029), (70, 200, 128)]
    for i, (m, n, k) in enumerate(sizes):
        a, b = tensor(rng, (1, 1, m, k), BF16), tensor(rng, (1, 1, k, n), BF16)
        got = in_tiles(a, b, packed=packed, seed=i if i % 2 else None, num_threads=1 + i % 3, spec=spec)
        check_floats(got, a, b)


@both
@every_target
def test_strides_and_batches_of_bf16(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(2)
    for i, (m, n, k) in enumerate([*cases(12, 2), (20, 200, 40), (100, 300, 64), (33, 96, 131), (40, 33, 512)]):
        a_forms = [
            tensor(rng, (3, 2, m, k), BF16),
            tensor(rng, (3, 2, k, m), BF16).swapaxes(2, 3),
            tensor(rng, (3, 2, m, 3 * k), BF16)[..., ::3],
            tensor(rng, (3, 2, m, k + 5), BF16)[..., 3 : k + 3],
            np.broadcast_to(tensor(rng, (3, 1, 1, k), BF16), (3, 2, m, k)),
        ]
        b_forms = [
            tensor(rng, (3, 2, n, k), BF16).swapaxes(2, 3),
            tensor(rng, (3, 2, k, n + 3), BF16)[..., 1 : n + 1],
            tensor(rng, (3, 2, k, 2 * n), BF16)[..., ::2],
            np.broadcast_to(tensor(rng, (1, 2, k, n), BF16), (3, 2, k, n)),
        ]
        for j, a in enumerate(a_forms):
            b = b_forms[(i + j) % 4]
            check_floats(in_tiles(a, b, packed=packed, seed=i, num_threads=2, spec=spec), a, b)


@both
@every_target
def test_what_cuts_a_product_changes_no_bit(spec: TileSpec, packed: bool) -> None:
    """Chunks of k, groups of panels, blocks of rows, threads; A in place or packed."""
    rng = np.random.default_rng(3)
    for m, n, k in ((37, 330, 700), (130, 70, 1500), (5, 200, 2100), (97, 40, 64)):
        a, b = tensor(rng, (1, 2, m, k), BF16), tensor(rng, (1, 2, k, n), BF16)
        wide = np.zeros((1, 2, m, 2048 * (-(-k // 2048)) + 2048), np.uint16)  # rows that crowd the first-level cache
        wide[..., :k] = a
        want = in_tiles(a, b, packed=packed, spec=spec)
        check_floats(want, a, b)
        runs = [
            in_tiles(a, b, packed=packed, spec=spec, machine={"l1d_bytes": 8 << 10}, l2_bytes=128 << 10),
            in_tiles(a, b, packed=packed, spec=spec, machine={"l1d_bytes": 8 << 10}, l2_bytes=128 << 10, num_threads=3, seed=m),
            in_tiles(a, b, packed=packed, spec=spec, num_threads=16, l2_bytes=128 << 10),
            in_tiles(wide[..., :k], b, packed=packed, spec=spec, seed=k),
        ]
        assert all(x.tobytes() == want.tobytes() for x in runs)


@both
@every_target
def test_infinities_and_nan_stay_in_their_rows_and_columns(spec: TileSpec, packed: bool) -> None:
    """What lies beside a panel or a row in memory isn't multiplied, not even by zeros."""
    rng = np.random.default_rng(4)
    for m, n, k in ((20, 70, 35), (33, 33, 97), (6, 64, 3), (17, 33, 31), (40, 20, 63), (9, 32, 64)):
        a_all, b_all = (np.full((1, 1, x + 40, y + 40), 0x7FC0, np.uint16) for x, y in ((m, k), (k, n)))
        a, b = a_all[..., 8 : m + 8, 8 : k + 8], b_all[..., 8 : k + 8, 8 : n + 8]
        a[...], b[...] = tensor(rng, a.shape, BF16), tensor(rng, b.shape, BF16)
        check_floats(in_tiles(a, b, packed=packed, spec=spec), a, b)
        row, column = m // 2, n // 2
        a[..., row, k - 1], b[..., 0, column] = 0x7F80, 0xFFC0
        got = in_tiles(a, b, packed=packed, spec=spec)
        special = np.zeros(got.shape, bool)
        special[..., row, :] = special[..., column] = True
        assert np.isnan(got[..., column]).all() and not np.isfinite(got[..., row, :]).any()
        assert np.isfinite(got[~special]).all()


def test_epilogues_get_tiles() -> None:
    rng = np.random.default_rng(5)
    for spec in SPECS:
        for m, n, k in ((40, 70, 64), (5, 33, 33), (33, 1, 1)):
            a, b, bias = tensor(rng, (1, 1, m, k), BF16), tensor(rng, (1, 1, k, n), BF16), tensor(rng, (n,))
            check_floats(in_tiles(a, b, packed=True, bias=bias, spec=spec), a, b, bias)


@both
@every_target
def test_the_kernel_stores_whole_tiles_itself(spec: TileSpec, packed: bool) -> None:
    """Where the result is nothing but the rounded sums: also past the caches, and of several pieces and chunks of k."""
    rng = np.random.default_rng(8)
    slow = {"l3_bytes_per_us": 30_000, "fma512_per_us": 7600}
    for m, n, k in ((40, 64, 64), (33, 100, 31), (70, 96, 2100), (5, 32, 700), (64, 33, 1)):
        a, b = tensor(rng, (2, 1, m, k), BF16), tensor(rng, (2, 1, k, n), BF16)
        sums = torch.from_numpy(in_tiles(a, b, packed=packed, spec=spec))
        want = sums.bfloat16().view(torch.int16).numpy().view(np.uint16)
        for l2_bytes in (1 << 20, 4 << 10):
            got = in_tiles(a, b, packed=packed, spec=spec, rounded=True, l2_bytes=l2_bytes, machine=slow, num_threads=2, seed=m)
            np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------------------------------------------- bytes
@pytest.mark.sampled(2)
@both
@every_form
def test_bytes_are_stored_whole(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(9)
    slow = {"l3_bytes_per_us": 30_000, "fma512_per_us": 7600}
    for m, n, k in ((40, 64, 64), (70, 96, 3000), (33, 40, 5), (37, 48, 130)):
        a, b = bytes_(rng, (1, 2, m, k), unsigned=spec.unsigned), bytes_(rng, (1, 2, k, n))
        for l2_bytes in (1 << 20, 4 << 10):
            check_integers(in_tiles(a, b, packed=packed, spec=spec, l2_bytes=l2_bytes, machine=slow, num_threads=2), a, b)


@both
@every_form
def test_sizes_of_bytes(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(6)
    sizes = [*((m, 33, 70) for m in EDGES), *((17, 40, k) for k in (*EDGES, 127, 128, 129)), *cases(30, 6)]
    for i, (m, n, k) in enumerate([*sizes, (0, 3, 5), (3, 0, 5), (3, 5, 0), (300, 100, 1029)]):
        a_forms = [
            bytes_(rng, (1, 1, m, k), unsigned=spec.unsigned),
            bytes_(rng, (1, 1, k, m), unsigned=spec.unsigned).swapaxes(2, 3),
        ]
        b_forms = [bytes_(rng, (1, 1, k, n)), bytes_(rng, (1, 1, n, k)).swapaxes(2, 3), bytes_(rng, (1, 1, k, 2 * n))[..., ::2]]
        a, b = a_forms[i % 2], b_forms[i % 3]
        check_integers(in_tiles(a, b, packed=packed, seed=i if i % 2 else None, num_threads=1 + i % 3, spec=spec), a, b)


@every_form
def test_extremes_of_bytes(spec: TileSpec) -> None:
    """Nothing saturates, and sums wrap."""
    for k in (4, 65, 140_000):
        for x in (0, 255) if spec.unsigned else (-128, 127):
            for y in (-128, 127):
                a, b = np.full((1, 1, 6, k), x, np.uint8 if spec.unsigned else np.int8), np.full((1, 1, k, 17), y, np.int8)
                check_integers(in_tiles(a, b, packed=True, spec=spec), a, b)


# ---------------------------------------------------------------------------------------------------- the choice
@both
@pytest.mark.parametrize("elem", [BF16, I8])
def test_tiles_are_taken_where_they_pay(elem: str, packed: bool) -> None:
    """On a machine that multiplies in them fast, with rows enough and a part of a step of k."""
    rng = np.random.default_rng(7)
    step = 64 if elem == I8 else 32
    spec = SPECS[0]
    if not tile_machine.is_needed(spec.target):
        pytest.skip("products are counted by the emulator")
    for percent, m, k, taken in (
        (TILES_PAY, 40, step, True),
        (TILES_PAY, LEAST_ROWS + 8, step, True),
        (TILES_PAY - 1, 40, step, False),
        (0, 40, step, False),
        (TILES_PAY, LEAST_ROWS - 1, step, False),
        (TILES_PAY, 40, step // LEAST_SHARE, True),
        (TILES_PAY, 40, step // LEAST_SHARE - 1, False),
    ):
        shapes = (1, 1, m, k), (1, 1, k, 50)
        a, b = (bytes_(rng, s) if elem == I8 else tensor(rng, s, BF16) for s in shapes)
        tile_machine.report()
        got = run(a, b, packed=packed, spec=spec, machine=FAST | {"tiles_percent": percent})
        assert (tile_machine.report() > 0) == taken
        (check_integers if elem == I8 else check_floats)(got, a, b)


def test_other_products_have_no_tiles() -> None:
    spec = tile_spec(AMX)
    assert TileProduct.of(BF16, spec) and TileProduct.of(I8, spec) and TileProduct.of(I8, replace(spec, unsigned=True))
    assert TileProduct.of(F32, spec) is None and TileProduct.of(BF16, replace(spec, widen=True)) is None
    assert TileProduct.of(BF16, tile_spec(parse_target("x86-64-v4+amx-int8"))) is None
    assert TileProduct.of(I8, tile_spec(parse_target("x86-64-v4+amx-bf16"))) is None
    assert TileProduct.of(BF16, tile_spec(parse_target("x86-64-v4+bf16"))) is None


# ---------------------------------------------------------------------------------------------------- instructions
def assembly_of_kernels(elem: str, spec: TileSpec) -> tuple[dict[str, str], list[str]]:
    """The assembly of each function of a product's kernels, and the features that they need."""
    module = KernelModule(spec.target)
    Matmul(elem, spec).emit_kernels(module, packed=False)
    for name, symbol in module.functions.items():
        module.functions[name] = replace(symbol, linkage=Linkage.EXPORTED)
    text = module.text()
    assembly = emit_assembly(lower_to_llvm_ir(text, spec.target), spec.target)
    return dict(re.findall(r"^(\w+)\.v4\w*:.*\n((?:.*\n)*?)\.Lfunc_end", assembly, re.MULTILINE)), code_features(text, spec.target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("elem", "unsigned", "product", "feature"),
    [
        (BF16, False, "tdpbf16ps", "amx-bf16"),
        pytest.param(I8, False, "tdpbssd", "amx-int8", marks=pytest.mark.slow),
        (I8, True, "tdpbusd", "amx-int8"),
    ],
)
def test_code_is_made_of_instructions_on_tiles(elem: str, unsigned: bool, product: str, feature: str) -> None:
    """Four products, four loads and no spill in a step of the inner loop; nothing of it in kernels of vectors, or without the
    feature."""
    spec = replace(tile_spec(AMX), unsigned=unsigned)
    functions, features = assembly_of_kernels(elem, spec)
    assert {"amx-tile", feature} <= set(features)
    on_tiles = {name for name, text in functions.items() if re.search(r"\btile|\btdp", text)}
    tail = "_unsigned" if unsigned else ""
    micro = {f"ukr_{elem}_tiles_{i}{rows}{tail}" for i in (1, 2) for rows in ("", "_rows")}
    kernels = {f"matmul_{elem}_tiles{s}{tail}" for s in ("", "_pack_b")}
    assert on_tiles == micro | kernels
    for name in kernels:
        orders = 1 if "pack_b" in name else 2
        assert len(re.findall(r"\bldtilecfg\b", functions[name])) == orders and "tilerelease" in functions[name]
    text = functions[f"ukr_{elem}_tiles_2{tail}"] + functions[f"ukr_{elem}_tiles_2_rows{tail}"]
    loops = [x for x in re.split(r"^\.LBB.*$|^\t(?:j\w+)\t.*$", text, flags=re.MULTILINE) if product in x]
    assert len(loops) == 4
    for loop in loops:
        assert [len(re.findall(rf"\b{word}\b", loop)) for word in (product, "tileloadd", "tileloaddt1")] == [4, 2, 2]
        assert re.search(rf"{product}\t%tmm[67], %tmm[45], %tmm[0-3]", loop) and "tilestored" not in loop.partition(product)[0]
    past = functions[f"stream_tile_{elem}"]
    assert len(re.findall(r"\bvmovnt(?:ps|dq)\b", past)) == (1 if elem == BF16 else 2) and "vmovaps\t%zmm0, (" not in past
    for name in ("x86-64-v4", "x86-64-v4+bf16+vnni"):
        plain, features = assembly_of_kernels(elem, replace(spec, target=parse_target(name)))
        assert not any(re.search(r"\bldtilecfg|\btile|\btdp|%tmm", text) for text in plain.values())
        assert not any(f.startswith("amx") for f in features)


# ---------------------------------------------------------------------------------------------------- programs
@pytest.fixture
def emulating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for tiles run in this process, and take them whatever the machine is."""

    def compile_calls(ir_text: str, target: Target) -> bytes:
        return compile_object(tile_machine.emulated(ir_text), target)

    def other_features(text: str, target: Target) -> list[str]:
        return [f for f in code_features(text, target) if not f.startswith("amx")]

    def addresses(externs: Mapping[str, str]) -> dict[str, int]:
        return extern_addresses(externs) | tile_machine.symbols()

    if not tile_machine.is_needed(AMX) or not runs_here(WITHOUT):
        pytest.skip("the CPU has tiles, or no AVX-512")
    monkeypatch.setattr("dhlo.compiler.compile_object", compile_calls)
    monkeypatch.setattr("dhlo.compiler.compile_common", compile_calls)
    monkeypatch.setattr("dhlo.compiler.code_features", other_features)
    monkeypatch.setattr("dhlo.codegen.backends.cpu.link.extern_addresses", addresses)
    monkeypatch.setattr("dhlo.codegen.families.gemm.tiles.TILES_PAY", 0)


def compiled(module: torch.nn.Module, args: tuple[torch.Tensor, ...], dims: Any, target: Target) -> dhlo.CompiledModel:
    exported = torch.export.export(module.eval(), args, dynamic_shapes=dims)
    made = compile_program(import_program(exported), Options(target=target.name))
    model = load_artifact(made)
    return dhlo.CompiledModel(model, {"": read_call(made.metadata["call"], model.inputs, model.outputs)})


class Products(torch.nn.Module):
    """Of bf16 with weights and with one another, and of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(96, 200, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(200, 70, dtype=torch.bfloat16)
        self.register_buffer("codes", torch.randint(-128, 128, (96, 65), dtype=torch.int8))

    def forward(self, x: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.down(torch.nn.functional.gelu(self.up(x)))
        return y, x @ x.transpose(1, 2), torch._int_mm(q, self.codes), torch._int_mm(q, q.t())


@pytest.mark.usefixtures("emulating")
def test_programs_of_any_size() -> None:
    torch.manual_seed(1)
    auto, module = torch.export.Dim.AUTO, Products()
    example = torch.randn(2, 20, 96).bfloat16(), torch.randint(-128, 128, (40, 96), dtype=torch.int8)
    model = compiled(module, example, ({0: auto, 1: auto}, {0: auto}), AMX)
    assert {"matmul_bf16_tiles", "matmul_i8_tiles", "matmul_i8_tiles_pack_b"} <= set(model.native.launches)
    for batch, rows in ((1, 1), (2, 5), (1, 15), (3, 17), (2, 33), (1, 130), (0, 7)):
        x, q = torch.randn(batch, rows, 96).bfloat16(), torch.randint(-128, 128, (rows + 17, 96), dtype=torch.int8)
        with torch.no_grad():
            want = module(x, q)
        tile_machine.report()
        got = model(x, q)
        assert tile_machine.report() > 0
        for g, w in zip(got[:2], want[:2], strict=True):
            torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-2)
        assert all(torch.equal(g, w) for g, w in zip(got[2:], want[2:], strict=True))


@pytest.mark.usefixtures("emulating")
def test_codes_become_panels_for_tiles() -> None:
    """Many rows of bf16 with weights kept as codes."""
    torch.manual_seed(2)

    class Coded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codes", torch.randint(-128, 128, (330, 65), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(65) * 0.01)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.codes.float() * self.scale).bfloat16()

    module = Coded()
    target = parse_target("x86-64-v4+bf16+amx-bf16")
    model = compiled(module, (torch.randn(20, 330).bfloat16(),), ({0: torch.export.Dim.AUTO},), target)
    (tiles,) = (name for name in model.native.launches if "tiles" in name)
    assert tiles.startswith("matmul_bf16_tiles_coded")
    for rows in (1, 40, 97):
        x = torch.randn(rows, 330).bfloat16()
        tile_machine.report()
        got, want = model(x).float(), module(x).float()
        assert (tile_machine.report() > 0) == (rows >= 40)
        # A few rows are multiplied by numbers that aren't rounded to bf16.
        bound = x.float().abs() @ (module.codes.float() * module.scale).abs()
        assert ((got - want).abs() <= 4e-3 * bound + 2**-7 * want.abs()).all()


def test_a_program_for_tiles_is_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DHLO_TARGET", raising=False)
    if not tile_machine.is_needed(AMX):
        pytest.skip("the CPU has tiles")
    module, x = torch.nn.Linear(64, 40, dtype=torch.bfloat16), torch.randn(8, 64).bfloat16()
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with pytest.raises(dhlo.CompileError, match="lacks .*amx-bf16, amx-tile"):
        dhlo.compile(exported, target="x86-64-v4+amx-bf16")
    several = compile_program(import_program(exported), Options(target="x86-64-v3,x86-64-v4+amx-bf16"))
    needs = {level["name"]: level["cpu_features"].split(",") for level in several.metadata["levels"]}
    assert "amx-bf16" in needs["x86-64-v4+amx-bf16"] and "amx-tile" not in needs["x86-64-v3"]
    assert load_artifact(several).level == "x86-64-v3"
    monkeypatch.setenv("DHLO_TARGET", "x86-64-v4+amx-bf16")
    with pytest.raises(dhlo.CompileError, match="lacks .*amx-tile.* for 'x86-64-v4\\+amx-bf16'"):
        load_artifact(several)
    plain = torch.export.export(torch.nn.Linear(64, 40), (x.float(),))
    (level,) = compile_program(import_program(plain), Options(target="x86-64-v4+amx-bf16+amx-int8")).metadata["levels"]
    assert "amx" not in level["cpu_features"]
