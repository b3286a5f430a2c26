"""What instructions code is made of: those of AVX-512 f, bw, dq and vl, whatever else the CPU has; other CPUs are refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch.export import Dim, export

import dhlo
from dhlo.api import _load_artifact
from dhlo.callspec import read_call
from dhlo.codegen.backends.cpu.llvm import BASELINE, TargetSpec, code_features, emit_assembly, host_target
from dhlo.compiler import Artifact, compile_program
from dhlo.frontend import import_program
from dhlo.options import Options

F = torch.nn.functional
HASWELL = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+ssse3,+sse4.1,+sse4.2"
SKYLAKE = HASWELL + ",+cx16,+sahf,+crc32,+prfchw,+xsave,+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl"
# Of AVX-512's later extensions, of the crypto ones, and of cd.
FOREIGN = re.compile(
    r"v?(gf2p8|aes|pclmul|sha\d)\w*|vpmadd52\w*|vp(lzcnt|conflict|popcnt|shld|shrd|dpbusd|dpwssd|multishift)\w*"
    r"|vp(ermb|ermi2b|ermt2b|ermi2b|compress[bw]|expand[bw]|shufbitqmb)|(?!vcvtps2ph)v\w+ph|vp2intersect\w*|adcx|adox|rdrand"
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


def artifact(target: TargetSpec | None = None, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, Artifact]:
    torch.manual_seed(0)
    module = Mixed(dtype).eval()
    n = torch.zeros(2, 5, 32, dtype=torch.uint8)
    exported = export(module, (torch.randn(2, 5, 32), n), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},) * 2)
    return module, compile_program(import_program(exported), Options(), target=target)


def spec(cpu: str, features: str) -> TargetSpec:
    return TargetSpec(host_target().triple, cpu, features)


@pytest.mark.parametrize("lacks", ["avx512f", "avx512bw", "avx512dq", "avx512vl"])
def test_cpu_without_a_part_of_avx512_is_refused(lacks: str) -> None:
    features = ",".join(f for f in SKYLAKE.split(",") if f != f"+{lacks}")
    with pytest.raises(dhlo.CompileError, match=f"'skylake-avx512'.* lacks {lacks}\n.*compile on a CPU that has it"):
        artifact(spec("skylake-avx512", features))


def test_other_cpus_are_refused() -> None:
    with pytest.raises(dhlo.CompileError, match="'haswell'.* lacks avx512f, avx512bw, avx512dq, avx512vl"):
        artifact(spec("haswell", HASWELL))
    with pytest.raises(dhlo.CompileError, match="'neoverse-n1'.* is not x86-64|lacks"):
        artifact(TargetSpec("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"))


def test_required_features_are_those_that_the_code_uses() -> None:
    """Two CPUs, one list; what one has beyond the other is neither asked for nor used."""
    module, here = artifact()
    _, there = artifact(spec("skylake-avx512", SKYLAKE))
    models = [_load_artifact(here), _load_artifact(there)]
    assert [m.cpu_features for m in models] == [",".join(BASELINE)] * 2
    args = torch.randn(3, 7, 32), torch.randint(0, 255, (3, 7, 32), dtype=torch.uint8)
    with torch.no_grad():
        want = module(*args)
    for model in models:
        got = dhlo.CompiledModel(model, read_call(here.metadata["call"], model.inputs, model.outputs))(*args)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("features", [SKYLAKE, host_target().features], ids=["skylake", "here"])
def test_rounding_to_bf16_calls_nothing(features: str) -> None:
    """Code that rounds single elements to bf16 runs whether or not the CPU has an instruction for that."""
    module = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    function = lambda x: F.pad(module(x.bfloat16()).float(), (1, 1), mode="reflect")
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        exported = export(Function(function), (x,), dynamic_shapes=({0: Dim.AUTO},))
        want = function(x)
    made = compile_program(import_program(exported), Options(), target=spec("skylake-avx512", features))
    assert not re.search(r"__(trunc|extend)\w+", "\n".join(emit_assembly(ir, made.target) for ir in made.llvm_ir))
    model = _load_artifact(made)
    got = dhlo.CompiledModel(model, read_call(made.metadata["call"], model.inputs, model.outputs))(x)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_no_other_instructions_occur() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        _, made = artifact(dtype=dtype)
        text = "\n".join(emit_assembly(ir, made.target) for ir in made.llvm_ir)
        words = set(re.findall(r"^\s+([a-z]\w+)", text, re.MULTILINE))
        assert not {w for w in words if FOREIGN.fullmatch(w)}
        assert text.count("%zmm") > 10 * text.count("%ymm")  # whatever the CPU at hand prefers
        assert dtype == torch.bfloat16 or "bf16" not in text


def test_extra_features_are_those_that_the_code_names() -> None:
    target = spec("znver4", SKYLAKE + ",+avx512bf16,+avx512vnni")
    dot = "declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)\n"
    assert code_features(dot, target) == [*BASELINE, "avx512bf16"]
    assert code_features("  %1 = load bfloat, ptr %0\n", target) == [*BASELINE, "avx512bf16"]
    assert code_features('@name = constant [4 x i8] c"@llvm.x86.avx512vnni.x"\n', target) == [*BASELINE]
    with pytest.raises(dhlo.CompileError, match="needs avx512bf16, which the CPU 'skylake-avx512' lacks"):
        code_features(dot, spec("skylake-avx512", SKYLAKE))
