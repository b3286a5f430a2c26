"""What instructions code is made of: those of its target and no others; what it needs of a CPU; code for several targets."""

from __future__ import annotations

import ctypes
import json
import re
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch.export import Dim, export

import dhlo
from dhlo import _runtime
from dhlo.callspec import read_call
from dhlo.codegen.backends.cpu.llvm import (
    Jit,
    code_features,
    compile_common,
    compile_object,
    emit_assembly,
    lower_common,
    lower_to_llvm_ir,
)
from dhlo.codegen.host.shared import share_host_program
from dhlo.codegen.kernel_ir.builder import F32, I32, I64, PTR, Fn, KernelModule, Linkage
from dhlo.codegen.kernel_ir.split import split_module
from dhlo.codegen.target import Target, parse_target, parse_targets
from dhlo.codegen.target.x86 import LEVELS, level_of
from dhlo.compiler import Artifact, compile_program
from dhlo.frontend import import_program
from dhlo.loading import load_artifact
from dhlo.options import Options

F = torch.nn.functional
V3, V4 = parse_target("x86-64-v3"), parse_target("x86-64-v4")
# Of AVX-512's later extensions, of the crypto ones, and of cd.
FOREIGN = re.compile(
    r"v?(gf2p8|aes|pclmul|sha\d)\w*|vpmadd52\w*|vp(lzcnt|conflict|popcnt|shld|shrd|dpbusd|dpwssd|multishift)\w*"
    r"|vp(ermb|ermi2b|ermt2b|ermi2b|compress[bw]|expand[bw]|shufbitqmb)|(?!vcvtps2ph|vcvtph2ps)v\w+ph|vp2intersect\w*|adcx|adox"
    r"|rdrand"
)


class Mixed(torch.nn.Module):
    """A linear layer, attention, a convolution, ordering and integers."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear, self.conv = torch.nn.Linear(32, 96, dtype=dtype), torch.nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, x, n):
        q, k, v = self.linear(x.to(self.linear.weight.dtype)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).float()
        y = self.conv(F.gelu(y).transpose(1, 2)).transpose(1, 2)
        return y.softmax(-1), y.topk(3, -1)[1], (n >> 3) * (n << 1), n.transpose(1, 2).contiguous(), y.half()


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@cache
def compiled(targets: str, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, Artifact]:
    torch.manual_seed(0)
    module = Mixed(dtype).eval()
    n = torch.zeros(2, 5, 32, dtype=torch.uint8)
    exported = export(module, (torch.randn(2, 5, 32), n), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},) * 2)
    return module, compile_program(import_program(exported), Options(target=targets))


def assembly(artifact: Artifact, target: Target) -> str:
    (texts,) = (texts for t, texts in artifact.levels if t.name == target.name)
    return "\n".join(emit_assembly(ir, target) for ir in texts)


def instructions(text: str) -> set[str]:
    return set(re.findall(r"^\s+([a-z]\w+)", text, re.MULTILINE))


def runs_here(target: Target) -> bool:
    return all(map(_runtime.cpu_supports, (*target.features, *target.extras)))


needs_v4 = pytest.mark.skipif(not runs_here(V4), reason="a CPU without AVX-512")


def check(module: torch.nn.Module, artifact: Artifact) -> str:
    """That the artifact's results are right on this machine; returns the level that was taken."""
    model = load_artifact(artifact)
    args = torch.randn(3, 7, 32), torch.randint(0, 255, (3, 7, 32), dtype=torch.uint8)
    with torch.no_grad():
        want = module(*args)
    bfloat = module.linear.weight.dtype == torch.bfloat16
    got = dhlo.CompiledModel(model, {"": read_call(artifact.metadata["call"], model.inputs, model.outputs)})(*args)
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        if n != 1 or not bfloat:  # which of nearly equal elements are largest is left open
            torch.testing.assert_close(g, w, rtol=2e-2 if bfloat else 1e-3, atol=2e-2 if bfloat else 1e-4)
    return model.level


# ---------------------------------------------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x86-64-v2", "the target 'x86-64-v2' has no AVX2, which kernels need\n.*targets are native, x86-64-v3"),
        ("x86-64", "has no AVX2"),
        ("", "the target '' isn't known"),
        ("haswell", "the target 'haswell' isn't known"),
        ("x86-64-v3+bf16", "the target 'x86-64-v3' has no extension 'bf16'"),
        ("x86-64-v3+amx-int8", "the target 'x86-64-v3' has no extension 'amx-int8'"),
        ("x86-64-v4+dotprod", "no extension 'dotprod'"),
        ("aarch64+vnni", "no extension 'vnni'"),
        ("native+bf16", "the target 'native\\+bf16' isn't known"),
        ("x86-64-v3,x86-64-v3", "named twice"),
        ("x86-64-v4+vnni+bf16,x86-64-v4+bf16+vnni", "named twice"),
        ("x86-64-v3,aarch64", "'x86-64-v3' and 'aarch64' are different architectures\n.*a model file for each"),
        ("x86-64-v3,", "the target '' isn't known"),
    ],
)
def test_names_that_are_no_targets(name: str, text: str) -> None:
    with pytest.raises(dhlo.CompileError, match=text):
        parse_targets(name)


def test_targets_are_data() -> None:
    assert [t.name for t in parse_targets("x86-64-v3, x86-64-v4+vnni+bf16")] == ["x86-64-v3", "x86-64-v4+bf16+vnni"]
    assert (V3.lanes("f32"), V3.registers, V4.lanes("f64"), V4.registers) == (8, 16, 8, 32)
    assert parse_target("x86-64-v3+vnni").extras == {"avxvnni"} and parse_target("x86-64-v4+vnni").extras == {"avx512vnni"}
    assert parse_target("x86-64-v4+amx-int8").extras == {"amx-tile", "amx-int8"}
    assert parse_target("aarch64").lanes("f32") == 4 and not parse_target("aarch64").mask_registers
    assert len({t.tag for t in parse_targets("x86-64-v3,x86-64-v4,x86-64-v4+bf16,x86-64-v4+amx-bf16")}) == 4


def test_levels_of_cpus() -> None:
    """The CPU at hand has the highest level all of whose features it has; below the third it has none."""
    v4 = set(LEVELS["x86-64-v4"])
    assert level_of(v4 | {"avx512bf16"}) == ("x86-64-v4", ["bf16"])
    for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl"):
        assert level_of((v4 - {f}) | {"avx512bf16"}) == ("x86-64-v3", [])
        assert level_of((v4 - {f}) | {"avx512bf16", "avxvnni"}) == ("x86-64-v3", ["vnni"])
    assert level_of(v4 | {"avxvnni", "avx512vnni"}) == ("x86-64-v4", ["vnni"])
    for f in ("avx2", "fma", "f16c"):
        assert level_of(v4 - {f}) is None


# ---------------------------------------------------------------------------------------------------- instructions
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_code_for_v3_is_made_of_its_instructions(dtype: torch.dtype) -> None:
    module, made = compiled("x86-64-v3", dtype)
    text = assembly(made, V3)
    assert "%ymm" in text
    assert not re.findall(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])|%k\d", text)
    assert not {w for w in instructions(text) if FOREIGN.fullmatch(w)}
    assert made.metadata["levels"][0]["cpu_features"] == ",".join(V3.features)
    assert check(module, made) == "x86-64-v3"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_code_for_v4_is_made_of_its_instructions(dtype: torch.dtype) -> None:
    module, made = compiled("x86-64-v4", dtype)
    text = assembly(made, V4)
    assert not {w for w in instructions(text) if FOREIGN.fullmatch(w)}
    assert text.count("%zmm") > 10 * text.count("%ymm")  # whatever the CPU at hand prefers
    assert not {w for w in instructions(text) if "bf16" in w}
    assert made.metadata["levels"][0]["cpu_features"] == ",".join(V4.features)
    if runs_here(V4):
        assert check(module, made) == "x86-64-v4"


@pytest.mark.parametrize(
    "name", [pytest.param("x86-64-v4+bf16+vnni", marks=pytest.mark.slow), "x86-64-v4+amx-bf16+amx-int8+bf16+vnni"]
)
def test_required_features_are_those_that_the_code_uses(name: str) -> None:
    """What the target has beyond that is neither asked for nor used."""
    module, plain = compiled(name)
    assert plain.metadata["levels"][0]["cpu_features"] == ",".join(V4.features)
    assert not {w for w in instructions(assembly(plain, parse_target(name))) if "bf16" in w}
    _, rounded = compiled(name, torch.bfloat16)
    tiles = ["amx-bf16", "amx-tile"] if "amx" in name else []
    assert rounded.metadata["levels"][0]["cpu_features"] == ",".join([*V4.features, *tiles, "avx512bf16"])
    if runs_here(V4):
        assert check(module, plain) == name


@pytest.mark.parametrize("name", ["x86-64-v3", pytest.param("x86-64-v4", marks=pytest.mark.slow), "x86-64-v4+bf16"])
def test_rounding_to_bf16_calls_nothing(name: str) -> None:
    """Code that rounds single elements to bf16 runs whether or not the CPU has an instruction for that."""
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    function = lambda x: F.pad(module(x.bfloat16()).float(), (1, 1), mode="reflect")
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        exported = export(Function(function), (x,), dynamic_shapes=({0: Dim.AUTO},))
        want = function(x)
    made = compile_program(import_program(exported), Options(target=name))
    assert not re.search(r"__(trunc|extend)\w+", assembly(made, parse_target(name)))
    if runs_here(parse_target(name)):
        model = load_artifact(made)
        got = dhlo.CompiledModel(model, {"": read_call(made.metadata["call"], model.inputs, model.outputs)})(x)
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_features_are_those_that_the_code_names() -> None:
    target = parse_target("x86-64-v4+bf16+vnni")
    dot = '%3 = llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"(%0, %1, %2) : (vector<16xf32>) -> vector<16xf32>\n'
    assert code_features(dot, target) == [*V4.features, "avx512bf16"]
    assert code_features("  %1 = llvm.load %0 : !llvm.ptr -> bf16\n", target) == [*V4.features, "avx512bf16"]
    assert code_features("  %1 = llvm.load %0 : !llvm.ptr -> vector<16xbf16>\n", target) == [*V4.features, "avx512bf16"]
    name = 'llvm.mlir.global constant @name("a bf16 and @llvm.x86.avx512vnni.x") : !llvm.array<34 x i8>\n'
    assert code_features(name + "llvm.call @copy_bf16(%0) : (!llvm.ptr) -> ()\n", target) == [*V4.features]
    bytes_ = '%3 = llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.256"(%0, %1, %2) : (vector<8xi32>) -> vector<8xi32>\n'
    assert code_features(bytes_, parse_target("x86-64-v3+vnni")) == [*V3.features, "avxvnni"]
    with pytest.raises(dhlo.CompileError, match="needs avx512bf16, which the target 'x86-64-v4' lacks"):
        code_features(dot, V4)


# ---------------------------------------------------------------------------------------------------- symbols
def two_kernels() -> KernelModule:
    """A host that launches `outer`, which calls `inner`, an inlined function and one from elsewhere; both read a table."""
    module = KernelModule(V3)
    module.declare("sinf", [F32], F32)
    helper = Fn(module, "helper", [("x", F32)], F32, inline=True)
    helper.ret(helper.call("sinf", [helper.args[0]], F32))
    helper.done()
    module.add_constant("table", "(dense<[1.0, 2.0]> : tensor<2xf32>) : !llvm.array<2 x f32>")
    for name, other in (("inner", None), ("outer", "inner"), ("apart", None)):
        f = Fn(module, name, [("p", PTR)])
        x = f.load(f.address_of("table"), F32) if name != "apart" else f.load(f.args[0], F32)
        f.store(f.call("helper", [x], F32), f.args[0])
        if other is not None:
            f.call(other, [f.args[0]])
        f.done()
    host = Fn(module, "main", [("p", PTR)], I64, internal=False)
    host.store(host.address_of("outer"), host.args[0])
    host.store(host.address_of("apart"), host.args[0])
    host.ret(host.i64(0))
    host.done()
    return module


def test_symbols_end_with_the_targets_tag() -> None:
    """All but what others know by its name; those who build kernels say plain names."""
    module = two_kernels()
    assert "outer" in module.functions and "table" in module.globals
    assert set(re.findall(r"@([\w.]+)", module.text())) == {
        "outer.v3", "inner.v3", "apart.v3", "helper.v3", "table.v3", "main", "sinf",
    }  # fmt: skip


def test_parts_hold_what_calls_each_other() -> None:
    parts = [p.text for p in split_module(two_kernels(), 3)]
    defined = [set(re.findall(r"llvm\.func (?:internal )?@([\w.]+)\([^\n]*\{$", p, re.MULTILINE)) for p in parts]
    assert "main" in defined[0]
    assert [d & {"outer.v3", "inner.v3"} for d in defined if d & {"outer.v3", "inner.v3"}] == [{"outer.v3", "inner.v3"}]
    for part, names in zip(parts, defined, strict=True):
        assert ("llvm.func internal @helper.v3" in part) == bool(names & {"outer.v3", "apart.v3"})
        assert ("@table.v3(dense" in part) == ("outer.v3" in names)
        known = names | set(re.findall(r"(?:llvm\.func|constant) (?:internal )?@([\w.]+)\(", part))
        assert set(re.findall(r"@([\w.]+)", part)) <= known


def test_programs_share_what_large_parts_were_compiled_to() -> None:
    """Kernels of products are the same text in all programs, whatever is fused into them."""
    rows = partial(export, dynamic_shapes=({0: Dim.AUTO},))
    first = torch.nn.Linear(8, 40)
    dhlo.compile(rows(first, (torch.randn(3, 8),)))
    before = [kept.cache_info() for kept in (lower_common, compile_common)]
    second = torch.nn.Sequential(torch.nn.Linear(16, 40), torch.nn.GELU(), torch.nn.Softmax(-1))
    model, x = dhlo.compile(rows(second, (torch.randn(3, 16),))), torch.randn(30, 16)
    torch.testing.assert_close(model(x), second(x))
    for old, kept in zip(before, (lower_common, compile_common), strict=True):
        assert kept.cache_info().misses == old.misses and kept.cache_info().hits > old.hits


# ---------------------------------------------------------------------------------------------------- several targets
PAIR = "x86-64-v3,x86-64-v4+bf16"


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_one_program_for_several_machines(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last level that runs here is taken, or the one that the environment names; each has its own instructions."""
    module, made = compiled(PAIR, dtype)
    levels = made.metadata["levels"]
    assert [x["name"] for x in levels] == PAIR.split(",")
    assert levels[0]["cpu_features"] == ",".join(V3.features)
    assert levels[1]["cpu_features"] == ",".join([*V4.features, *(["avx512bf16"] if dtype == torch.bfloat16 else [])])
    assert all(len(x["groups"]) == len(made.metadata["groups"]) for x in levels)
    low, high = assembly(made, V3), assembly(made, parse_target("x86-64-v4+bf16"))
    assert "%zmm" not in low and "%zmm" in high
    monkeypatch.setenv("DHLO_TARGET", "x86-64-v3")
    assert check(module, made) == "x86-64-v3"
    monkeypatch.setenv("DHLO_TARGET", "")
    best = parse_target("x86-64-v4+bf16") if dtype == torch.bfloat16 else V4
    assert check(module, made) == ("x86-64-v4+bf16" if runs_here(best) else "x86-64-v3")
    monkeypatch.setenv("DHLO_TARGET", "native")
    assert check(module, made) == ("x86-64-v4+bf16" if runs_here(best) else "x86-64-v3")
    monkeypatch.setenv("DHLO_TARGET", "x86-64-v5")
    with pytest.raises(
        dhlo.CompileError, match="DHLO_TARGET asks for 'x86-64-v5'; the model has the levels 'x86-64-v3', 'x86-64-v4"
    ):
        load_artifact(made)


class Both(torch.nn.Module):
    """Products, attention, a reduction, views and a product of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 40)

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).unbind(2)
        y = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        y = self.out(y.transpose(1, 2).reshape(x.shape)) * x.shape[1]
        return torch.softmax(y[:, i], -1)


def test_levels_share_a_host_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels that differ in kernels and numbers only have one host program, which computes and refuses what a program for the level
    alone does."""
    torch.manual_seed(0)
    module = Both().eval()
    b, s, n = Dim("b", max=64), Dim("s", max=512), Dim("n", max=64)
    exported = export(module, (torch.randn(2, 5, 64), torch.tensor([1, 0])), dynamic_shapes=({0: b, 1: s}, {0: n}))
    made = compile_program(import_program(exported), Options(target="x86-64-v3,x86-64-v4"))
    assert made.metadata["host_programs"] == 1
    names = re.findall(r"define[^@]*@(dhlo_run[\w.]*)\(", "\n".join(made.llvm_ir))
    assert sorted(names) == ["dhlo_run", "dhlo_run.v3", "dhlo_run.v4"]
    bodies = re.findall(r"define[^@]*@dhlo_run\.v\d\(.*?^}", "\n".join(made.llvm_ir), re.S | re.M)
    assert all("br " not in body for body in bodies)  # a level's own part decides nothing
    for target in ("x86-64-v3", "x86-64-v4") if runs_here(V4) else ("x86-64-v3",):
        monkeypatch.setenv("DHLO_TARGET", target)
        loaded, alone = load_artifact(made), dhlo.compile(exported, target=target)
        several = dhlo.CompiledModel(loaded, {"": read_call(made.metadata["call"], loaded.inputs, loaded.outputs)})
        assert several.native.level == target and several.native.launches == alone.native.launches
        for shape, count in (((1, 1), 1), ((2, 7), 3), ((3, 40), 0), ((0, 4), 2), ((5, 129), 64)):
            x, i = torch.randn(*shape, 64), torch.randint(0, shape[1], (count,))
            assert torch.equal(several(x, i), alone(x, i))
            torch.testing.assert_close(several(x, i), module(x, i), rtol=1e-4, atol=1e-5)
        for x, i in (
            (torch.randn(2, 5, 63), torch.tensor([1])),
            (torch.randn(65, 5, 64), torch.tensor([1])),
            (torch.randn(2, 5, 64), torch.tensor([5])),
        ):
            with pytest.raises(dhlo.DhloError) as refused:
                several(x, i)
            with pytest.raises(dhlo.DhloError) as also:
                alone(x, i)
            assert str(refused.value) == str(also.value)


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (torch.nn.Conv2d(16, 32, 3, padding=1), 12),  # Winograd's algorithm is one choice
        (torch.nn.Conv2d(16, 32, 3, stride=2), 13),
        (torch.nn.Conv2d(8, 8, 3, padding=1, groups=8), 13),
        (torch.nn.ConvTranspose2d(32, 32, 4, 2, 1), 7),
    ],
    ids=["3x3", "strided", "depthwise", "transposed"],
)
def test_levels_share_the_host_program_of_convolutions(layer: torch.nn.Conv2d, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of costs, which a level's numbers make larger or smaller, need no check that another level's don't need."""
    module = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    example = torch.randn(2, layer.in_channels, size, size)
    exported = export(module, (example,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))
    made = compile_program(import_program(exported), Options(target="x86-64-v3,x86-64-v4"))
    assert made.metadata["host_programs"] == 1
    monkeypatch.setenv("DHLO_TARGET", "x86-64-v3")
    loaded = load_artifact(made)
    several = dhlo.CompiledModel(loaded, {"": read_call(made.metadata["call"], loaded.inputs, loaded.outputs)})
    for batch in (1, 2, 5):
        x = torch.randn(batch, *example.shape[1:])
        torch.testing.assert_close(several(x), module(x), rtol=1e-4, atol=1e-4)


def program(target: Target, factor: int, term: int, place: int, real: float, stack: int) -> SimpleNamespace:
    """A host program that stores x * factor + term and the sum of the numbers below `factor`, and says its kernel's name."""
    module = KernelModule(target)
    module.declare("abs", [I32], I32)
    kernel = Fn(module, "kernel", [("p", PTR)])
    kernel.store(kernel.i64(100 + term), kernel.args[0])
    kernel.done()
    fn = Fn(module, f"dhlo_run.{target.tag}", [("call", PTR), ("inputs", PTR)], I32, internal=False)
    call, inputs = fn.args
    fn.alloca(stack, I64)
    x = fn.add(fn.op(I64, f"arith.muli {fn.load(call, I64).name}, {fn.i64(factor).name} : i64"), fn.i64(term))
    fn.store(x, fn.gep(inputs, place, I64))
    zero = fn.i64(0)
    with fn.loop(0, factor, 1, [zero]) as lp:
        lp.yield_(fn.add(lp.carried[0], lp.iv))
    fn.store(lp.results[0], fn.gep(inputs, 4, I64))
    fn.call_ptr(fn.address_of("kernel"), [fn.gep(inputs, 5, I64)])
    fn.store(fn.const(real, F32), fn.gep(inputs, 6, I64))
    fn.ret(fn.call("abs", [fn.const(-3, I32)], I32))
    fn.done()
    return SimpleNamespace(module=module, fn=fn, symbol="dhlo_run")


LEAST, OTHER = parse_targets("x86-64-v3,x86-64-v3+vnni")  # no code here uses the extension, so that both run


@pytest.mark.parametrize(("first", "second"), [((3, 3, 1), (5, 7, 2)), ((5, 7, 3), (6, 6, 3)), ((4, 1, 2), (4, 1, 2))])
def test_places_that_depend_on_the_level_come_from_its_table(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Numbers by their uses, since one number may be two at another level; indices of addresses; and kernels."""
    programs = [program(target, *numbers, 1.5, 2) for target, numbers in ((LEAST, first), (OTHER, second))]
    made = share_host_program(programs)
    assert made is not None
    shared, least = made
    assert least is LEAST and [n for n, s in shared.functions.items() if s.linkage is Linkage.DECLARED] == ["abs"]
    texts = [(shared.text(), LEAST), *((p.module.text(), p.module.target) for p in programs)]
    jit = Jit([compile_object(lower_to_llvm_ir(text, target), target) for text, target in texts])
    for one, (factor, term, place) in zip(programs, (first, second), strict=True):
        run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(jit.address(one.fn.name))
        call, inputs = (ctypes.c_int64 * 1)(11), (ctypes.c_int64 * 7)()
        assert run(ctypes.addressof(call), ctypes.addressof(inputs)) == 3
        want = [0, 0, 0, 0, sum(range(factor)), 100 + term, 0x3FC00000]
        want[place] = 11 * factor + term
        assert list(inputs) == want


@pytest.mark.parametrize("other", [(5, 7, 0, 1.5, 2), (5, 7, 2, 1.25, 2), (5, 7, 2, 1.5, 3)])
def test_programs_that_differ_in_more_are_left_alone(other: tuple) -> None:
    """An index that makes no line, a number that isn't an i64, and the stack's layout."""
    programs = [program(LEAST, 3, 3, 1, 1.5, 2), program(OTHER, *other)]
    before = [p.module.text() for p in programs]
    assert share_host_program(programs) is None
    assert [p.module.text() for p in programs] == before


def test_levels_of_other_structure_have_host_programs_of_their_own() -> None:
    """Whether bf16 is multiplied by dot products is a choice that the lower level doesn't have."""
    _, made = compiled(PAIR, torch.bfloat16)
    assert made.metadata["host_programs"] == 2
    assert sorted(re.findall(r"define[^@]*@(dhlo_run[\w.]*)\(", "\n".join(made.llvm_ir))) == ["dhlo_run.v3", "dhlo_run.v4"]


def test_one_level_has_no_table() -> None:
    exported = export(Function(lambda x: x + 1), (torch.randn(3),))
    made = compile_program(import_program(exported), Options(target="x86-64-v3"))
    assert made.metadata["host_programs"] == 1
    assert re.findall(r"define[^@]*@(dhlo_run[\w.]*)\(", "\n".join(made.llvm_ir)) == ["dhlo_run.v3"]


def test_levels_in_a_model_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DHLO_TARGET", raising=False)
    x = torch.randn(5, 33)
    module = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.GELU()).eval()
    exported = export(module, (x,), dynamic_shapes=({0: Dim.DYNAMIC},))
    path = tmp_path / "model.so"
    dhlo.compile(exported, target=PAIR).save(path)
    for name in ("x86-64-v3", *(["x86-64-v4+bf16"] if runs_here(V4) else [])):
        monkeypatch.setenv("DHLO_TARGET", name)
        model = dhlo.load(path)
        assert model.native.level == name
        assert model.native.launches == next(x["launches"] for x in json.loads(model.metadata)["levels"] if x["name"] == name)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)
    monkeypatch.setenv("DHLO_TARGET", "x86-64-v4")
    with pytest.raises(dhlo.DhloError, match="DHLO_TARGET asks for 'x86-64-v4'"):
        dhlo.load(path)


def test_levels_share_constants_of_equal_layout() -> None:
    """Weights that are packed alike, and what isn't packed, are stored once; what is packed for each is stored for each."""
    torch.manual_seed(0)
    linear, table = torch.nn.Linear(32, 96), torch.randn(32)

    def constants(targets: str) -> bytes:
        exported = export(Function(lambda x: linear(x + table)), (torch.randn(5, 32),), dynamic_shapes=({0: Dim.DYNAMIC},))
        made = compile_program(import_program(exported), Options(target=targets))
        assert {x["name"] for x in made.metadata["levels"]} == set(targets.split(","))
        return b"".join(c.tobytes() for c in made.constants.chunks())

    one = constants("x86-64-v4")
    assert constants("x86-64-v4,x86-64-v4+vnni") == one
    assert len(one) <= len(constants("x86-64-v3,x86-64-v4")) < 2 * len(one)


def test_code_that_cant_run_here_is_refused_where_it_would_run() -> None:
    exported = export(Function(lambda x: x + 1), (torch.randn(3),))
    for name in ("aarch64", "aarch64,aarch64+bf16"):
        with pytest.raises(dhlo.CompileError, match="code for 'aarch64' can't run in this process.*\n.*dhlo compile --target"):
            dhlo.compile(exported, target=name)
    made = compile_program(import_program(exported), Options(target="aarch64"))
    assert made.objects[0][18:20] == b"\xb7\0"  # EM_AARCH64
