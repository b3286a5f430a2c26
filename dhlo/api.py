"""`compile` and `load`: the two ways to a CompiledModel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dhlo import _runtime
from dhlo.callspec import CallSpec
from dhlo.capture import as_exported
from dhlo.errors import CompileError, UnsupportedError
from dhlo.hidden import Shared
from dhlo.loading import ELSEWHERE, FileOrigin, Memory, Verify, load_artifact, open_model
from dhlo.model import CompiledModel
from dhlo.options import CustomPass, LoraOptions, Options, Range, cache_dir, read_options
from dhlo.pickling import calls_of
from dhlo.progress import reporter

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact
    from dhlo.frontend.program import Program
    from dhlo.update import Weights

__all__ = ["build", "build_entries", "compile", "import_programs", "load", "weights_file"]


def compile(
    program: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> CompiledModel:
    """Compiles a torch.export program once, for all shapes that it allows.

    Args:
        program: an ExportedProgram, or the path of one in a file of torch.export.save; or a module, which is exported with the
            example arguments; or several of the former by name, which become entries (`model["decode"]`) of one model with one copy
            of equal weights, and state of one name in common.
        args: of a module, its positional arguments as an example.
        kwargs: of a module, its keyword arguments.
        dynamic_shapes: of a module, as torch.export.export takes it. By default all dims of tensors are dynamic that can be; the
            logger "dhlo" says which have become so.
        options: the fields of `dhlo.Options`.

    Raises UnsupportedError listing every operator that can't be compiled, with the user's source lines; CompileError if a program
    is inconsistent, or states of one name differ between programs.
    """
    opts = read_options(options)
    _refuse_foreign(opts.target)
    exported = {name: as_exported(p, args, kwargs, dynamic_shapes) for name, p in _by_name(program).items()}
    with reporter(opts.progress) as progress:
        programs, artifact = build_entries(exported, opts, progress)
        progress("pack weights")
        model = load_artifact(artifact)
    calls = {n: CallSpec.of(p.inputs, p.outputs, p.in_spec, p.out_spec, p.mutations) for n, p in programs.items()}
    return CompiledModel(model, calls, artifact)


def _by_name(program: Any) -> Mapping[str, Any]:
    return program if isinstance(program, Mapping) else {"": program}


def _refuse_foreign(names: str) -> None:
    """Raises CompileError if this machine can run code for none of the targets."""
    from dhlo.codegen.target import parse_targets

    lacks = [(t.name, [f for f in t.features if not _runtime.cpu_supports(f)]) for t in parse_targets(names)]
    if all(missing for _, missing in lacks):
        name, missing = lacks[0]
        raise CompileError(f"code for '{name}' can't run in this process: the CPU lacks {', '.join(missing)}", hint=ELSEWHERE)


def build(
    exported: torch.export.ExportedProgram, options: Options, progress: Callable[[str], None] = lambda _: None
) -> tuple[Program, Artifact]:
    """The imported program and its object code, not loaded into this process. Raises the errors of `compile`."""
    programs, artifact = build_entries({"": exported}, options, progress)
    return programs[""], artifact


def build_entries(
    exported: Mapping[str, torch.export.ExportedProgram], options: Options, progress: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, Program], Artifact]:
    """The same of the entries of a model. The only entry of a model may be called ""."""
    from dhlo.cache import Cache, model_key
    from dhlo.codegen.target import parse_targets
    from dhlo.compiler import compile_programs, renumber
    from dhlo.custom import registered_fusions
    from dhlo.frontend.growing import read_growth
    from dhlo.frontend.paging import read_pages
    from dhlo.pipeline import FRONT, run_passes

    if not isinstance(options.passes, Sequence) or not all(isinstance(p, CustomPass) for p in options.passes):
        raise CompileError("passes: is a sequence of dhlo.CustomPass", hint="dhlo.custom_pass(before='fuse')(f) makes one of f")
    programs = import_programs(exported, options, progress)
    for entry, program in programs.items():
        with _naming(entry), program.context:
            run_passes(program.module, program.weights, FRONT)
        read_growth(program)
        read_pages(program)
    targets = parse_targets(options.target)
    folder = options.cache if options.cache is not None else cache_dir()
    passes = (*registered_fusions(), *options.passes)
    if not folder or options.dump is not None or not all(p.version for p in passes):
        return programs, compile_programs(programs, options, progress)
    try:
        key = model_key(programs, targets, options, passes)
    except OSError:  # the compiler's own files can't be read: nothing to tell its versions by
        return programs, compile_programs(programs, options, progress)
    cache = Cache(folder)
    artifact = cache.get(key, targets)
    if artifact is not None:
        for program in programs.values():
            renumber(program)
        return programs, artifact
    artifact = compile_programs(programs, options, progress)
    progress("keep in the cache")
    cache.put(key, artifact)
    return programs, artifact


@contextmanager
def _naming(entry: str) -> Iterator[None]:
    """Errors say which entry they are of, where it has a name."""
    try:
        yield
    except UnsupportedError as e:
        raise UnsupportedError([(f"entry '{entry}': {what}", where) for what, where in e.problems]) if entry else e from None
    except CompileError as e:
        raise CompileError(f"entry '{entry}': {e.what}", where=e.where, hint=e.hint) if entry else e from None


def import_programs(
    exported: Mapping[str, torch.export.ExportedProgram], options: Options, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Program]:
    """Imports programs and writes down what the options ask for. Raises the errors of `compile`."""
    from dhlo.frontend import import_program
    from dhlo.frontend.growing import request_growth
    from dhlo.frontend.paging import request_pages
    from dhlo.passes.add_adapters import request_adapters
    from dhlo.passes.quantise_caches import request_caches
    from dhlo.passes.quantise_weights import request_weights
    from dhlo.passes.round_activations import request_activations
    from dhlo.sharing import check_names, share_states

    check_names(exported)
    given = options.shapes
    if not isinstance(given, Mapping) or not all(isinstance(k, str) and isinstance(x, Range) for k, x in given.items()):
        raise CompileError("shapes: is a dict of sizes, each with its dhlo.Range", hint='{"batch": dhlo.Range(min=1, max=64)}, say')
    programs = {}
    for name, program in exported.items():
        progress("import" + (f" {name}" if name else ""))
        with _naming(name):
            programs[name] = import_program(program, options.shapes)
    _check_bounded(programs, options.shapes)
    request_growth(programs.values(), options.grow)
    request_pages(programs.values(), options.pages)
    share_states(programs)
    modules = [program.module for program in programs.values()]
    request_weights(modules, options.weights)
    request_activations(modules, options.activations)
    request_caches(modules, options.kv_cache)
    if options.lora is not None:
        if not isinstance(options.lora, LoraOptions):
            raise CompileError(f"lora: is a dhlo.LoraOptions, not {options.lora!r}")
        request_adapters(modules, options.lora.max_rank, options.lora.max_adapters, options.lora.targets)
    return programs


def _check_bounded(programs: Mapping[str, Program], shapes: Iterable[str]) -> None:
    """Raises CompileError where no program has a dynamic size of that name."""
    bounded = frozenset[str]().union(*(p.bounded for p in programs.values()))
    for key in shapes:
        if key not in bounded:
            sizes = dict.fromkeys(p.user_names.get(n, n) for p in programs.values() for n in p.symbols if not n.startswith("u"))
            inputs = dict.fromkeys(s.name for p in programs.values() for s in p.inputs if s.type is not None)
            hint = f"sizes are {', '.join(sizes) or 'all static'}; or INPUT.DIM, where inputs are {', '.join(inputs)}"
            raise CompileError(f"shapes: '{key}' is no dynamic size of the program", hint=hint)


def load(
    path: str | Path,
    *,
    num_threads: int = 0,
    verify: Verify = True,
    memory: Memory = "auto",
    require_key: str | Path | bytes | None = None,
    weights: Weights | None = None,
) -> CompiledModel:
    """Loads a model file. It is called like the model that was compiled: same pytrees, keywords and updated inputs.

    All of the file is verified against its digests before any of its code is loaded. Of the weights it is remembered that they
    were found right, as long as nobody has changed the file since; `verify="always"` reads them each time, and `verify=False`
    never, where no key is asked for. `num_threads` run each call (0: one per processor); DHLO_NUM_THREADS in the environment wins.

    `memory` says where the weights are: "mapped", as pages of the file that all processes share and that are read when first
    needed; "populated", which reads all of them now; "locked", which keeps them in memory, too; or "copied", in memory of this
    model's own. "auto" is "mapped", but "copied" with a key and from file systems that can't map. A mapped file may be replaced by
    another, but mustn't be written to as long as the model lives.

    `require_key` is an Ed25519 public key (a PEM file, or its bytes): a file is refused that `dhlo sign` didn't sign with its
    private key. Without it a model file is trusted like any program: load what you made or got from somebody you trust.

    `weights` are taken instead of the model's own: tensors by their names in the state dict of the exported module, or a
    .safetensors file of them, or several, all as `update_weights` takes them; or a weights file of `update_weights(...,
    weights_only=True)`. With a key no others are taken than those that the model was signed with.

    Where the file names pytree types that aren't registered in this process, as their library isn't imported, it takes
    and gives flat sequences. Raises ModelFileError if the file is truncated, damaged, foreign, made for another version or
    another CPU; SignatureError, a kind of it, if the signature is missing or isn't right; CompileError for tensors that don't fit.
    """
    key = require_key if require_key is None or isinstance(require_key, bytes) else Path(require_key).absolute()
    options = {"num_threads": num_threads, "verify": verify, "memory": memory, "require_key": key}
    origin = FileOrigin.of(path, options) if weights is None else None
    with weights_file(path, weights) as (others, fresh):
        checked = False if fresh else verify
        model = open_model(path, num_threads, verify=checked, memory=memory, require_key=require_key, weights=others)
    calls = calls_of(model)
    return CompiledModel(model, calls, shared=Shared(model, calls, origin=origin))


@contextmanager
def weights_file(model: str | Path, weights: Weights | None) -> Iterator[tuple[str | Path | None, bool]]:
    """The weights file to load a model with: the one that is named, None for the model's own, or one that is made here, in memory,
    of tensors or .safetensors files; and whether it was. Raises the errors of `update_weights`."""
    if weights is None or (isinstance(weights, str | Path) and Path(weights).suffix != ".safetensors"):
        yield weights, False
        return
    from dhlo.update import weights_in_memory

    with weights_in_memory(model, weights) as made:
        yield made, True
