"""The loader of code: no files, no dynamic loader, no memory that is writable and executable, and damaged tables are refused."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo import _runtime
from dhlo.model_file import SECTION, open_sections, write_model_file
from tests.conftest import ROOT
from tests.runtime.conftest import TOY_CONSTANTS, TOY_METADATA

BuildElf = Callable[..., Path]


class Functions(torch.nn.Module):
    """Everything that f64 takes from libm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        unary = ("exp2 expm1 log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma exp log "
                 "sigmoid sqrt rsqrt floor ceil round trunc").split()  # fmt: skip
        rows = [getattr(torch, name)(x) for name in unary]
        rows += [torch.pow(x, x), torch.atan2(x, x + 1), torch.fmod(x, x * 0.3), torch.fmod(x.float(), x.float() * 0.3).double()]
        return torch.stack(rows)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file of `Functions`."""
    path = tmp_path_factory.mktemp("functions") / "model.so"
    x = torch.linspace(0.1, 3, 5, dtype=torch.float64)
    compiled = dhlo.compile(torch.export.export(Functions(), (x,), dynamic_shapes=({0: Dim("n")},)), cache="")
    compiled.save(path)
    torch.testing.assert_close(dhlo.load(path)(x), Functions()(x), equal_nan=True)
    return path


# Whatever could bring code into a process by a file fails, and is counted.
HOST = """
#include <dlfcn.h>
#include <sys/mman.h>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include "dhlo/runtime.hpp"
static int attempts = 0;
extern "C" void* dlopen(const char*, int) noexcept { return ++attempts, nullptr; }
extern "C" void* dlsym(void*, const char*) noexcept { return ++attempts, nullptr; }
extern "C" int memfd_create(const char*, unsigned) noexcept { return ++attempts, -1; }
extern "C" char* mkdtemp(char*) noexcept { return ++attempts, nullptr; }
int main(int, char** argv) {
  const dhlo::Model model = dhlo::Model::load(argv[1]);
  dhlo::Session session(model);
  double x[3] = {0.5, 1, 2};
  session.run({dhlo::Tensor::of(x, {3})});
  int executable = 0, both = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::string flags = line.substr(line.find(' ') + 1, 4);
    executable += flags == "r-xp" && line.find('/') == std::string::npos && line.find('[') == std::string::npos;
    both += flags[1] == 'w' && flags[2] == 'x';
  }
  std::printf("%d %d %d", attempts, executable, both);
}
"""


@pytest.mark.parametrize("linking", ["dynamic", "static"])
def test_without_files_and_without_the_dynamic_loader(functions: Path, build_host: Any, tmp_path: Path, linking: str) -> None:
    """Of all functions of libm that generated code calls. In a static binary, too."""
    source = tmp_path / "host.cpp"
    flags = ()
    if linking == "static":
        source.write_text(re.sub(r'extern "C".*\n', "", HOST))
        flags = ("-static", "-w")
    else:
        source.write_text(HOST)
    host = build_host(tmp_path / "host", source, *flags)
    result = subprocess.run([str(host), str(functions)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "0 1 0"), result.stderr


IFUNC = 'int a(void) { return 1; } void* r() { return a; } int f(void) __attribute__((ifunc("r"))); int (*g)(void) = f;'


def toy(folder: Path, build_elf: BuildElf, extra: str = "", *flags: str) -> Path:
    """The toy model with more code and other flags for the linker."""
    source, path = folder / "extra.c", folder / f"toy{len(list(folder.iterdir()))}.so"
    source.write_text(extra)
    command = ["cc", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'runtime/include'}", *flags]
    subprocess.run([*command, str(ROOT / "tests/runtime/toy_model.c"), str(source), "-o", str(path)], check=True)
    write_model_file(path, path.read_bytes(), [TOY_CONSTANTS], TOY_METADATA, "")
    return path


@pytest.mark.parametrize(
    "flags", ["-Wl,-z,pack-relative-relocs", "-Wl,-z,now", "-Wl,-z,lazy", "-Wl,-z,norelro", "-Wl,--hash-style=both"]
)
def test_what_linkers_make(build_elf: BuildElf, tmp_path: Path, flags: str) -> None:
    model = _runtime.Model.from_file(toy(tmp_path, build_elf, "", flags))
    assert [v["name"] for v in model.inputs] == ["x", "mode"]
    assert _runtime.Session(model)(torch.ones(2, 4), 0)[0].shape == (2, 4)


def test_constructors_and_destructors(build_elf: BuildElf, tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    source = (
        "#include <stdlib.h>\n"
        '__attribute__((constructor)) static void up(void) { setenv("DHLO_TEST_CODE", "up", 1); }\n'
        '__attribute__((destructor)) static void down(void) { setenv("DHLO_TEST_CODE", "down", 1); }\n'
    )
    path = toy(tmp_path, build_elf, source)
    assert libc.getenv(b"DHLO_TEST_CODE") is None
    model = _runtime.Model.from_file(path)
    assert libc.getenv(b"DHLO_TEST_CODE") == b"up"
    del model
    assert libc.getenv(b"DHLO_TEST_CODE") == b"down"
    libc.unsetenv(b"DHLO_TEST_CODE")


@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [
        ("__thread int x; int* f(void) { return &x; }", [], "thread-local"),
        (IFUNC, [], "code of models can't have"),
        ("", ["-Wl,-z,max-page-size=16", "-Wl,-z,noseparate-code"], "share a page|writable and executable"),
        ("", ["-Wl,--hash-style=sysv"], "DT_GNU_HASH"),
        ("int g(void); int f(void) { return g(); }", [], "nothing in this process defines 'g'"),
    ],
)  # fmt: skip
def test_what_is_refused(build_elf: BuildElf, tmp_path: Path, source: str, flags: list[str], message: str) -> None:
    path = toy(tmp_path, build_elf, source, *flags)
    with pytest.raises(RuntimeError, match=message) as raised:
        _runtime.Model.from_file(path)
    assert raised.value.status == "format"  # type: ignore[attr-defined]


def test_names_for_profilers(functions: Path) -> None:
    """Kernels by name, in the ranges that are executable."""
    script = (
        "import os, sys\nfrom dhlo import _runtime\nmodel = _runtime.Model.from_file(sys.argv[1])\n"
        "path = f'/tmp/perf-{os.getpid()}.map'\nprint(open(path).read())\nos.remove(path)\n"
        "print(*(l.split()[0] for l in open('/proc/self/maps') if 'r-xp' in l and '/' not in l and '[' not in l))"
    )
    command = [sys.executable, "-c", script, str(functions)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"DHLO_PERF_MAP": "1"}).stdout
    *lines, ranges = [x for x in output.splitlines() if x]
    names = {line.split()[2]: int(line.split()[0], 16) for line in lines}
    assert any(name.startswith("dhlo_run") for name in names) and len(names) >= 2
    places = [tuple(int(x, 16) for x in r.split("-")) for r in ranges.split()]
    assert all(any(low <= at < high for low, high in places) for at in names.values())


@pytest.mark.parametrize("count", [200, pytest.param(500_000, marks=pytest.mark.slow)])
def test_damaged_images(functions: Path, build_elf: BuildElf, build_native: Any, tmp_path: Path, count: int) -> None:
    """Tables that lie, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    fuzz = build_native("elf_fuzz", "address,undefined") / "elf_fuzz"
    with open_sections(functions) as sections:
        code = sections.read(sections.only(SECTION["code"]))
    (tmp_path / "code.so").write_bytes(code)
    for image in (build_elf(), tmp_path / "code.so"):
        result = subprocess.run([str(fuzz), str(image), str(count)], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        mapped, refused = map(int, result.stdout.split())
        assert mapped > 0.2 * count and refused > 0.2 * count
