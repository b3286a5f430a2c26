"""Decoders of transformers as shards of several processes (tensor parallelism), by the plan that their configs have for it."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from dhlo.errors import CompileError

__all__ = ["GROUP", "shard_decoder"]

GROUP = "tp"
"""The process group that shards do collective operations in."""

_C = torch.ops._c10d_functional
_REPLICATED = ("replicated_with_grad_allreduce", "replicate")


def shard_decoder(model: Any, rank: int, size: int) -> Any:
    """A decoder as process `rank` of `size` has it, for `step_program`: with its heads and its part of the layers between them, as
    `base_model_tp_plan` of the model's config says, and its part of the vocabulary's logits, which all processes get whole.
    The model stays as it is; what isn't divided is shared with it.

    Only an export of a shard, which does its operations in the process group `GROUP`, says what the model does: what is run eagerly
    has the right shapes alone. Raises CompileError for models without a plan, with parts that it divides otherwise than here is
    known, and with sizes that processes can't share evenly.
    """
    if not 0 <= rank < size:
        raise CompileError(f"there is no process {rank} of {size}")
    config = model.config.get_text_config()
    plan: dict[str, str] = dict(getattr(config, "base_model_tp_plan", None) or {})
    head = model.get_output_embeddings()
    if not plan or type(head) is not torch.nn.Linear:
        raise CompileError(
            f"transformers has no plan how several processes share a {type(model).__name__} (base_model_tp_plan of its config)",
            hint="serve it by one process, or shard its modules as docs/distributed.md says",
        )
    kept = {id(x): x for x in itertools.chain(model.parameters(), model.buffers())}
    part = copy.deepcopy(model, kept)
    _check_heads(config, plan, size)
    decoder = part.get_decoder()
    shares = _Shares(type(model).__name__, rank, size)
    modules = dict(decoder.named_modules())
    for name, module in modules.items():
        if (style := _style_of(plan, name)) is not None:
            shares.share_module(decoder, name, module, style)
    for name, parameter in list(decoder.named_parameters()):
        if (style := _style_of(plan, name)) is not None:
            shares.share_parameter(decoder, name, parameter, style)
    part.set_output_embeddings(_Gathered(head, rank, size))
    return part


def _style_of(plan: dict[str, str], name: str) -> str | None:
    """How the plan divides what is called so; names of the plan have `*` for the number of a layer."""
    found = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
    return found if found is not None else plan.get(name)


def _check_heads(config: Any, plan: dict[str, str], size: int) -> None:
    """Heads are whole where the products that make them are divided."""
    if not any(style == "colwise" and "att" in name for name, style in plan.items()):
        return
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, what, None)
        if heads is not None and heads % size:
            raise CompileError(f"{size} processes can't share {heads} heads evenly ({what})")


class _Shares:
    """Puts a process's parts in the places of modules and parameters."""

    def __init__(self, model: str, rank: int, size: int) -> None:
        self.model, self.rank, self.size = model, rank, size
        self._linear: dict[str, Callable[[torch.nn.Linear], torch.nn.Module]] = {
            "colwise": lambda whole: _Columns(whole, rank, size),
            "packed_colwise": lambda whole: _Columns(whole, rank, size, packed=True),
            "colwise_gather_output": lambda whole: _Gathered(whole, rank, size),
            "colwise_rep": lambda whole: _Gathered(whole, rank, size),
            "rowwise": lambda whole: _Rows(whole, rank, size),
            "rowwise_split_input": lambda whole: _Rows(whole, rank, size, splits=True),
            "rowwise_rep": lambda whole: _Rows(whole, rank, size, splits=True),
        }

    def share_module(self, decoder: torch.nn.Module, name: str, module: torch.nn.Module, style: str) -> None:
        if style == "moe_tp_experts":
            module.register_forward_hook(lambda _module, _args, output: _summed(output))
        elif type(module) is torch.nn.Linear and style in self._linear:
            decoder.set_submodule(name, self._linear[style](module))
        elif style not in _REPLICATED:
            raise self._unknown(name, type(module).__name__, style)

    def share_parameter(self, decoder: torch.nn.Module, name: str, whole: torch.nn.Parameter, style: str) -> None:
        owner, _, last = name.rpartition(".")
        if style == "packed_colwise" and whole.dim() == 3:
            part = _part(whole, 1, self.rank, self.size, packed=True)
        elif style == "rowwise" and whole.dim() == 3:
            part = _part(whole, 2, self.rank, self.size)
        elif style in _REPLICATED:
            return
        else:
            raise self._unknown(name, f"parameter of {whole.dim()} dims", style)
        decoder.get_submodule(owner)._parameters[last] = torch.nn.Parameter(part, requires_grad=False)

    def _unknown(self, name: str, what: str, style: str) -> CompileError:
        return CompileError(f"{self.model}'s plan divides '{name}' ({what}) as '{style}', which isn't known here")


def _part(whole: torch.Tensor, dim: int, rank: int, size: int, *, packed: bool = False) -> torch.Tensor:
    """A process's part of a dim; of each half of it, where two products are packed into one."""
    halves = whole.detach().chunk(2, dim) if packed else (whole.detach(),)
    if any(half.shape[dim] % size for half in halves):
        raise CompileError(f"{size} processes can't share {halves[0].shape[dim]} rows or columns of a product evenly")
    return torch.cat([half.chunk(size, dim)[rank] for half in halves], dim).clone()


def _frozen(x: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(x, requires_grad=False)


def _summed(x: torch.Tensor) -> torch.Tensor:
    """The sum of all processes' x."""
    if not torch.compiler.is_exporting():
        return x
    total: torch.Tensor = _C.wait_tensor(_C.all_reduce(x.contiguous(), "sum", GROUP))
    return total


class _Columns(torch.nn.Module):
    """Some of a product's columns."""

    def __init__(self, whole: torch.nn.Linear, rank: int, size: int, *, packed: bool = False) -> None:
        super().__init__()
        self.weight = _frozen(_part(whole.weight, 0, rank, size, packed=packed))
        self.bias = None if whole.bias is None else _frozen(_part(whole.bias, 0, rank, size, packed=packed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class _Rows(torch.nn.Module):
    """A product's summands of some of its rows, and then the sum of all processes'."""

    def __init__(self, whole: torch.nn.Linear, rank: int, size: int, *, splits: bool = False) -> None:
        """`splits`: what it is given is whole."""
        super().__init__()
        self.weight = _frozen(_part(whole.weight, 1, rank, size))
        self.bias = None if whole.bias is None else _frozen(whole.bias.detach())
        columns = self.weight.shape[1]
        self.mine = slice(rank * columns, rank * columns + columns) if splits else slice(None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _summed(F.linear(x[..., self.mine], self.weight))
        return y if self.bias is None else y + self.bias


class _Gathered(torch.nn.Module):
    """Some of a product's columns, and then all processes', one behind the other; zeros fill up what can't be shared evenly."""

    def __init__(self, whole: torch.nn.Linear, rank: int, size: int) -> None:
        super().__init__()
        self.columns, self.size = whole.weight.shape[0], size
        missing = -self.columns % size
        self.weight = _frozen(_part(F.pad(whole.weight.detach(), (0, 0, 0, missing)), 0, rank, size))
        self.bias = None if whole.bias is None else _frozen(_part(F.pad(whole.bias.detach(), (0, missing)), 0, rank, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = F.linear(x, self.weight, self.bias)
        if not torch.compiler.is_exporting():
            return part.repeat_interleave(self.size, -1)[..., : self.columns]
        *rows, columns = part.shape
        every = _C.wait_tensor(_C.all_gather_into_tensor(part, self.size, GROUP)).reshape(self.size, *rows, columns)
        whole: torch.Tensor = every.movedim(0, -2).reshape(*rows, self.size * columns)[..., : self.columns]
        return whole
