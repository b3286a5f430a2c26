"""Models linked into hosts: static libraries, headers with typed calls, the examples, and the runtime as an installed package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim
from typer.testing import CliRunner

import dhlo
from dhlo.cli import app
from dhlo.codegen.backends.cpu.archive import Member, archive_head, constants_object
from dhlo.codegen.kernel_ir.abi import DTYPES
from dhlo.codegen.target import native
from dhlo.commands.flags import cmake_dir
from dhlo.errors import CompileError, DhloError
from dhlo.header import check_identifier, identifier, model_header
from tests.conftest import ROOT, runtime_flags

EXAMPLES = ROOT / "runtime/examples"
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wconversion", "-pedantic")


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 6)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.linear(codes)


def sh(*command: object, cwd: Path | None = None, stdin: str | None = None, **environment: str) -> str:
    """Standard output of a command, which must end well."""
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd, input=stdin, env=os.environ | environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Encoder and decoder: the modules, and the folder with a static library and headers of each, and the encoder's model file."""
    folder = tmp_path_factory.mktemp("linked")
    torch.manual_seed(0)
    made: dict[str, Any] = {"folder": folder}
    for name, model, features in (("encoder", Encoder(), 6), ("decoder", Decoder(), 3)):
        rows = ({0: Dim("rows", min=0, max=100)},)
        exported = torch.export.export(model.eval(), (torch.randn(2, features),), dynamic_shapes=rows)
        compiled = dhlo.compile(exported, name=name, cache="")
        compiled.save_archive(folder / f"lib{name}.a", name)
        compiled.save_header(folder / f"{name}.h", "archive", name)
        compiled.save_header(folder / f"{name}.hpp", "archive", name)
        made |= {name: model, f"compiled {name}": compiled}
    made["compiled encoder"].save(folder / "encoder.so")
    return made


def counting(rows: int) -> torch.Tensor:
    return torch.arange(6.0 * rows).reshape(rows, 6)


@torch.no_grad()
def decoded(models: dict[str, Any], rows: int) -> np.ndarray:
    return models["decoder"](models["encoder"](counting(rows))).numpy().reshape(-1)


# ---------------------------------------------------------------------------------------------------- two models in a binary
@pytest.mark.parametrize("language", ["c", "c++"])
def test_two_models_in_one_binary(models: dict[str, Any], tmp_path: Path, language: str) -> None:
    """Without files, in C and in C++ without exceptions, with nothing but the system's libraries."""
    folder, host = models["folder"], tmp_path / "host"
    mode = ["cc"] if language == "c" else ["c++", "-fno-exceptions", "-fno-rtti"]
    libraries = [folder / "libencoder.a", folder / "libdecoder.a", *runtime_flags(), "-lstdc++", "-lm"]
    sh(*mode, *STRICT, f"-I{folder}", "-x", language, EXAMPLES / "two_models.c", "-x", "none", *libraries, "-o", host)
    for rows in (0, 1, 7):
        found = np.array(sh(host, rows).split(), np.float32)
        np.testing.assert_allclose(found, decoded(models, rows), rtol=1e-5, atol=1e-6)
    needed = set(re.findall(r"lib[\w+]+(?=\.so)", sh("ldd", host)))
    assert needed <= {"libc", "libm", "libstdc++", "libgcc_s"}
    result = subprocess.run([str(host), "101"], capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "must be at most 100" in result.stderr


def test_symbols(models: dict[str, Any]) -> None:
    """Nothing else is visible, or two models would not link into one host."""
    defined = [
        line.split()[-1] for line in sh("nm", "-g", "--defined-only", models["folder"] / "libencoder.a").splitlines() if line
    ]
    assert sorted(x for x in defined if not x.endswith(":")) == ["encoder_constants", "encoder_descriptor"]


def test_the_default_symbol_and_names_that_c_refuses(models: dict[str, Any], tmp_path: Path) -> None:
    models["compiled decoder"].save_object(tmp_path / "x.o")
    assert "decoder_descriptor" in sh("nm", "-g", tmp_path / "x.o")
    for symbol in ("", "1x", "a-b", "a__b", "_a", "int", "ä", "std", "dhlo_session", "NULL", "main", "uint8_t"):
        with pytest.raises(CompileError, match="can't be a symbol's name"):
            models["compiled decoder"].save_archive(tmp_path / "x.a", symbol)
    assert not (tmp_path / "x.a").exists()
    with pytest.raises(CompileError, match=r"ends with \.h"):
        models["compiled decoder"].save_header(tmp_path / "x.txt")
    (tmp_path / "y.constants").mkdir()
    with pytest.raises(OSError, match=r"y\.constants"):
        models["compiled decoder"].save_object(tmp_path / "y.o")
    assert not (tmp_path / "y.o").exists()
    names = {
        "a-b.c": "a_b_c",
        "3d": "m3d",
        "": "model",
        "class": "class_",
        "a__b": "a_b",
        "dhlo_model": "m_dhlo_model",
        "NULL": "NULL_",
        "main": "main_",
        "log": "log_",
        "size_t": "size_t_",
    }
    assert {name: check_identifier(identifier(name)) for name in names} == names


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exported = torch.export.export(Decoder(), (torch.randn(2, 3),))
    torch.export.save(exported, tmp_path / "m.pt2")

    def run(*options: object) -> str:
        return CliRunner().invoke(app, ["compile", str(tmp_path / "m.pt2"), *map(str, options)]).output

    assert "without weights" in run("--emit", "archive", "--symbol", "tiny", "--header", tmp_path / "tiny.hpp")
    assert "tiny_descriptor" in sh("nm", "-g", tmp_path / "m.a") and "namespace tiny {" in (tmp_path / "tiny.hpp").read_text()
    assert "can't be a symbol's name" in run("--emit", "obj", "--symbol", "a b")
    assert "go with --emit so, obj and archive" in run("--emit", "llvm", "--header", tmp_path / "x.h")
    assert not (tmp_path / "x.h").exists()
    assert "ends with .h (C) or .hpp (C++)" in run("--emit", "obj", "--header", "x.c", "-o", tmp_path / "x.o")
    assert not (tmp_path / "x.o").exists()


# ---------------------------------------------------------------------------------------------------- parts of a static library
@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 100_001])
def test_constants_object(tmp_path: Path, nbytes: int) -> None:
    """Its bytes where its symbol points to, aligned, through the linker."""
    data = np.random.default_rng(0).bytes(nbytes)
    before, behind = constants_object("some_constants", nbytes, native())
    (first,) = archive_head([Member("constants.o", ["some_constants"], len(before) + nbytes + len(behind))])
    whole = first + before + data + behind
    (tmp_path / "x.a").write_bytes(whole + b"\n" * (len(whole) % 2))
    source = tmp_path / "host.c"
    source.write_text(
        "#include <stdint.h>\n#include <stdio.h>\nextern const void* const some_constants;\n"
        f"int main(void) {{ fwrite(some_constants, 1, {nbytes}, stdout); return (uintptr_t)some_constants % 64 != 0; }}"
    )
    sh("cc", "-Wl,--fatal-warnings", source, tmp_path / "x.a", "-o", tmp_path / "host")
    assert subprocess.run([str(tmp_path / "host")], capture_output=True, check=True).stdout == data


def test_constants_that_are_too_large() -> None:
    with pytest.raises(CompileError, match="too large for a static library"):
        archive_head([Member("a.o", ["a"], 1000), Member("b.o", ["b"], 10**10)])
    assert len(archive_head([Member("a.o", ["a"], 1001), Member("b.o", ["b"], 10**10 - 2)])) == 2


# ---------------------------------------------------------------------------------------------------- headers
def any_entry(name: str) -> dict[str, Any]:
    """An entry with an argument and a result of every dtype, and names that are none in C."""
    names = ["int", "a-b", "a_b", "a.b", "*/", "x\n#error", "ÿ", "session", "outputs"]
    names += ["tensors", "NULL", "EOF", "errno", "dhlo", "DHLO_F32", "INT64_MAX"]
    values = [
        {"name": names[n] if n < len(names) else f"v{n}", "dtype": dtype, "sizes": [-1, 2, -1][: n % 4],
         "dims": ["batch", "2", "a*/b\\"][: n % 4]} for n, dtype in enumerate(DTYPES)
    ]  # fmt: skip
    more = ["int64_t", "EXIT_SUCCESS", "M_PI", "IDS", "Outputs", "index", "main", "x" * 300]
    values += [{"name": text, "dtype": "int64", "sizes": [2], "dims": ["2"]} for text in more]
    symbols = {"batch": [0, 16], "a*/b": [None, None]}
    return {
        "name": "*/ x",
        "producer": "dhlo",
        "entry": name,
        "inputs": values,
        "outputs": values,
        "updated": [1],
        "symbols": symbols,
    }


@pytest.mark.parametrize("form", ["so", "obj", "archive"])
@pytest.mark.parametrize("names", [[""], ["load", "a-b", "a.b", "dhlo"]], ids=["one", "four"])
def test_headers_compile(tmp_path: Path, form: Any, names: list[str]) -> None:
    """In C99, C++17 and C++ without exceptions, pedantically, twice in one file and beside another model's."""
    for language, suffix, compilers in (
        ("c", "h", [("c", "-std=c99"), ("c++", "-std=c++17", "-fno-exceptions", "-fno-rtti"), ("c++", "-std=c++20")]),
        ("c++", "hpp", [("c++", "-std=c++17"), ("c++", "-std=gnu++20")]),
    ):
        for prefix in ("one", "two"):
            text = model_header([any_entry(n) for n in names], prefix, form, language)  # type: ignore[arg-type]
            (tmp_path / f"{prefix}.{suffix}").write_text(text)
        source = tmp_path / f"all_{suffix}"
        source.write_text("".join(f'#include "{x}.{suffix}"\n' for x in ("one", "two", "one")))
        for kind, *flags in compilers:
            sh("cc", *flags, *STRICT, f"-I{ROOT / 'runtime/include'}", f"-I{tmp_path}", "-fsyntax-only", "-x", kind, source)


def test_the_wrapper_needs_exceptions(tmp_path: Path) -> None:
    (tmp_path / "host.cpp").write_text('#include "dhlo/runtime.hpp"\n')
    command = ["c++", "-fno-exceptions", "-fsyntax-only", f"-I{ROOT / 'runtime/include'}", str(tmp_path / "host.cpp")]
    assert "without them include dhlo/runtime.h" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_a_header_of_another_model(models: dict[str, Any], build_host: Any, tmp_path: Path) -> None:
    """Typed calls of a session that is another model's are refused, in both languages, and the session stays usable."""
    compiled = dhlo.compile(torch.export.export(Decoder(), (torch.randn(2, 3),)), name="other", cache="")
    compiled.save_archive(tmp_path / "other.a", "other")
    entry = any_entry("")
    entry |= {"inputs": [entry["inputs"][0] | {"dtype": "float32", "sizes": [2, 3], "dims": ["2", "3"]}], "updated": []}
    entry |= {"outputs": [entry["outputs"][2] | {"dtype": "float32"}]}  # of two dims, but as a matrix of int64 below
    (tmp_path / "right.hpp").write_text(model_header([entry], "other", "archive", "c++"))
    entry |= {"outputs": [entry["outputs"][0] | {"dtype": "int64"}]}
    (tmp_path / "wrong.h").write_text(model_header([entry], "wrong", "so", "c"))
    (tmp_path / "host.cpp").write_text(
        '#include <cstdio>\n#include "right.hpp"\n#include "wrong.h"\n'
        "int main() {\n  dhlo::Session session(other::load());\n  const float x[6] = {};\n"
        "  const wrong_inputs inputs = {{x, {2, 3}, nullptr}};\n  wrong_outputs outputs;\n"
        '  std::printf("%d ", wrong_run(session.get(), &inputs, &outputs));\n'
        '  try { other::run(session, {x, {3, 3}}); } catch (const dhlo::RuntimeError& e) { std::printf("%d ", e.status()); }\n'
        "  const auto out = other::run(session, {x, {2, 3}});\n"
        '  std::printf("%d", static_cast<int>(out.a_b.sizes[1]));\n}'
    )
    host = build_host(tmp_path / "host", tmp_path / "host.cpp", tmp_path / "other.a")
    assert sh(host) == "1 2 6"


# ---------------------------------------------------------------------------------------------------- a server
def test_server(models: dict[str, Any], build_host: Any, tmp_path: Path) -> None:
    """Answers come in the order of the requests, whatever batch they were part of; what can't be answered says why."""
    host = build_host(tmp_path / "server", EXAMPLES / "server.cpp")
    x = torch.randn(300, 6)
    lines = [" ".join(map(str, row.tolist())) for row in x]
    lines[7], lines[150], lines[299] = "1 2 3", "1 2 x 4 5 6", ""
    with torch.no_grad():
        expected = models["encoder"](x).numpy()
    for threads, batch in ((4, 16), (1, 1)):
        answers = sh(host, models["folder"] / "encoder.so", threads, batch, stdin="\n".join(lines) + "\n").splitlines()
        assert len(answers) == 300
        for n, answer in enumerate(answers):
            if n in (7, 150, 299):
                assert answer.startswith("error: ")
            else:
                np.testing.assert_allclose(np.array(answer.split(), np.float32), expected[n], rtol=1e-5, atol=1e-6)
    assert sh(host, models["folder"] / "encoder.so", stdin="") == ""


# ---------------------------------------------------------------------------------------------------- installed packages
def cmake() -> str:
    local = Path(sys.executable).parent / "cmake"
    return str(local) if local.exists() else "cmake"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed Python package's folder of dhloConfig.cmake."""
    try:
        return cmake_dir()
    except DhloError:
        pytest.skip("needs an installed package")


def test_cmake_project(models: dict[str, Any], installed: Path, tmp_path: Path) -> None:
    build_project(models["folder"], installed, tmp_path / "static")
    assert CliRunner().invoke(app, ["--cmake-dir"]).output.strip() == str(installed)
    expected = torch.tanh(models["encoder"].linear(counting(3))).detach().numpy().reshape(-1)
    found = np.array(sh(tmp_path / "static/host", 3).split(), np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def build_project(models: Path, package: Path, folder: Path, **options: str) -> None:
    defines = [f"-D{k}={v}" for k, v in options.items()]
    sh(cmake(), "-S", EXAMPLES / "cmake", "-B", folder, f"-Ddhlo_DIR={package}", f"-DMODEL={models}", *defines)
    sh(cmake(), "--build", folder)


def test_pkg_config(models: dict[str, Any], installed: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config")
    path = {"PKG_CONFIG_PATH": str(installed.parents[1] / "pkgconfig")}
    for package, prefix in (("dhlo", f"{installed.parents[1]}"), ("dhlo-static", "")):
        flags = sh("pkg-config", "--cflags", "--libs", package, **path).split()
        sh("cc", EXAMPLES / "host.c", *flags, "-o", tmp_path / package)
        with torch.no_grad():  # a vector is no matrix
            result = subprocess.run(
                [str(tmp_path / package), str(models["folder"] / "encoder.so"), "6"], capture_output=True, text=True,
                check=False, env=os.environ | {"LD_LIBRARY_PATH": prefix},
            )  # fmt: skip
        assert (result.returncode, "rank" in result.stderr) == (1, True), result.stderr
    assert sh("pkg-config", "--modversion", "dhlo", **path).strip() == dhlo.__version__


@pytest.mark.slow
def test_installation_without_python(models: dict[str, Any], tmp_path: Path) -> None:
    """`cmake --install` and CPack's packages: hosts link both libraries, wherever the folder is moved to."""
    build = tmp_path / "build"
    sh(cmake(), "-S", ROOT, "-B", build, "-DDHLO_BUILD_PYTHON=OFF")
    sh(cmake(), "--build", build, "-j", 2)
    sh(cmake(), "--install", build, "--prefix", tmp_path / "there")
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    (package,) = (tmp_path / "elsewhere").rglob("dhloConfig.cmake")
    for kind in ("OFF", "ON"):
        build_project(models["folder"], package.parent, tmp_path / kind, SHARED_RUNTIME=kind)
        assert len(sh(tmp_path / kind / "host", 2).split()) == 6
    served = [p.name for p in (tmp_path / "elsewhere").rglob("*serve*")]
    assert {"serve.hpp", "libdhlo_serve.a", "libdhlo_serve.so.1", "dhlo-serve.pc", "dhlo-serve-static.pc"} <= set(served)
    (library,) = {p.resolve() for p in (tmp_path / "elsewhere").rglob("libdhlo_serve.so*")}
    assert str(tmp_path / "elsewhere") in sh("ldd", library)  # it finds the runtime beside it
    assert "libdhlo_runtime" in sh("ldd", tmp_path / "ON/host") and "libdhlo_runtime" not in sh("ldd", tmp_path / "OFF/host")
    (shared,) = {p.resolve() for p in (tmp_path / "elsewhere").rglob("libdhlo_runtime.so*")}
    sh("strip", "-o", tmp_path / "stripped.so", shared)
    assert (tmp_path / "stripped.so").stat().st_size <= 400 << 10
    generators = "TGZ;DEB" if shutil.which("dpkg-shlibdeps") else "TGZ"
    sh(cmake().removesuffix("cmake") + "cpack", "-G", generators, cwd=build)
    assert len(list(build.glob("*.tar.gz"))) == 2
    if "DEB" in generators:
        files = {p.name.split("_")[0]: sh("dpkg-deb", "-c", p) for p in build.glob("*.deb")}
        assert "libdhlo_runtime.so" in files["libdhlo-runtime"] and ".h\n" not in files["libdhlo-runtime"]
        assert "dhlo/runtime.hpp" in files["libdhlo-dev"] and "dhloConfig.cmake" in files["libdhlo-dev"]
        assert "libstdc++6" in sh("dpkg-deb", "-f", next(build.glob("libdhlo-runtime_*.deb")), "Depends")


@pytest.mark.slow
def test_as_a_part_of_another_project(models: dict[str, Any], tmp_path: Path) -> None:
    """add_subdirectory: nothing of Python, nothing installed, and no warning is an error."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(host LANGUAGES C CXX)\n"
        f"add_subdirectory({ROOT} dhlo)\nadd_executable(host {EXAMPLES / 'cmake/main.cpp'})\n"
        f"target_include_directories(host PRIVATE {models['folder']})\n"
        f"target_link_libraries(host {models['folder'] / 'libencoder.a'} dhlo::runtime)\n"
    )
    sh(cmake(), "-S", tmp_path, "-B", tmp_path / "build")
    sh(cmake(), "--build", tmp_path / "build", "--target", "host", "-j", 2)
    assert len(sh(tmp_path / "build/host", 2).split()) == 6
    assert "-Werror" not in "".join(p.read_text() for p in (tmp_path / "build").rglob("flags.make"))
