"""torch.autocast on CPUs: which operators convert their arguments inside a region, and to what."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dhlo.errors import CompileError
from dhlo.frontend.compat import aten

__all__ = ["acts_inside", "conversion", "eligible", "lowered_dtype", "policy"]

# ATen registers a kernel for every operator that autocast is about (autocast_mode.cpp). It converts all floating arguments but
# those of float64, and calls the operator with autocast switched off.
_LOWER = frozenset(
    """
    _addmm_activation _convolution.deprecated _native_multi_head_attention addbmm addmm baddbmm bmm conv1d conv1d.padding conv2d
    conv2d.padding conv3d conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input linalg_vecdot
    linear matmul mkldnn_rnn_layer mm prelu scaled_dot_product_attention
""".split()
)
_FLOAT32 = frozenset(
    """
    _grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d binary_cross_entropy
    binary_cross_entropy_with_logits cdist cholesky cholesky_inverse cholesky_solve cosine_embedding_loss cross_entropy_loss
    ctc_loss.IntList ctc_loss.Tensor fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn
    fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn fractional_max_pool2d fractional_max_pool3d geqrf
    grid_sampler grid_sampler_2d grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky
    linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_matrix_rank.atol_rtol_float
    linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.tol_tensor linalg_matrix_sqrth linalg_qr linalg_solve linalg_svd
    linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve margin_ranking_loss max_pool3d max_unpool2d max_unpool3d mse_loss
    multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nanquantile nanquantile.scalar nll_loss nll_loss2d orgqr
    ormqr pinverse poisson_nll_loss polar prod prod.dim_int qr quantile quantile.scalar reflection_pad1d
    reflection_pad2d replication_pad1d replication_pad2d replication_pad3d smooth_l1_loss soft_margin_loss stft stft.center svd
    trace triangular_solve triplet_margin_loss view_as_complex torchvision::nms torchvision::roi_align
""".split()
)
_PROMOTE = frozenset(["cat", "stack", "index_copy"])

# Whether PyTorch runs these in the lower precision as a whole depends on how it was built.
_UNSETTLED = frozenset(
    ["lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data"]
)


def lowered_dtype(
    device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, outer: torch.dtype | None
) -> torch.dtype | None:
    """The dtype that operators inside torch.autocast(device, ...) lower to, None where that is off; `outer` is that of the code
    around it."""
    if device != "cpu":
        return outer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dtype that autocast doesn't take switches it off
        mode = torch.autocast(device, dtype, enabled, cache)
    return mode.fast_dtype if mode._enabled else None


def _has_kernel(op: Any, key: Any) -> bool:
    return hasattr(op, "_schema") and bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def policy(op: Any) -> str | None:
    """What autocast converts the operator's arguments to: "lower", "float32", "promote"; None if it lets them be.

    Raises CompileError where PyTorch has a rule for the operator that isn't known here.
    """
    name = op.name().removeprefix("aten::") if hasattr(op, "_schema") else ""
    for kind, names in (("lower", _LOWER), ("float32", _FLOAT32), ("promote", _PROMOTE)):
        if name in names:
            return kind
    if name in _UNSETTLED or _has_kernel(op, "AutocastCPU"):
        raise CompileError(
            f"{op} can't be compiled inside torch.autocast",
            hint="switch autocast off around it: with torch.autocast('cpu', enabled=False)",
        )
    return None


def conversion(op: Any, lower: torch.dtype, dtypes: Sequence[torch.dtype]) -> Callable[[torch.dtype], torch.dtype] | None:
    """What autocast to `lower` makes of the dtypes of an operator's tensors, which are given; None if it lets them be."""
    kind = policy(op)
    if kind is None:
        return None
    floats = {d for d in dtypes if eligible(d)}
    to = lower if kind == "lower" else torch.float32
    if kind == "promote" and torch.float32 not in floats:
        if floats - {lower}:
            raise CompileError(f"{op} of {', '.join(sorted(map(str, floats)))} inside torch.autocast of {lower}")
        to = lower
    return lambda d: to if eligible(d) else d


def eligible(dtype: torch.dtype) -> bool:
    """Does autocast convert tensors of this dtype?"""
    return dtype.is_floating_point and dtype != torch.float64


class _Conversions(TorchDispatchMode):
    """Counts conversions of dtypes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is aten._to_copy.default
        return func(*args, **(kwargs or {}))


def acts_inside(op: Any, examples: Callable[[], Any], lower: torch.dtype) -> bool:
    """Does autocast to `lower` convert anything inside an operator that PyTorch composes of others, which it then meets one by one?
    `examples` makes arguments (args, kwargs) to see by; it is called where fake tensors are made. Raises what that raises."""
    if not _has_kernel(op, "CompositeImplicitAutograd"):
        return False
    counts = []
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        args, kwargs = examples()
        for enabled in (False, True):
            with torch.autocast("cpu", lower, enabled=enabled), _Conversions() as conversions:
                try:
                    op(*args, **kwargs)
                except Exception:  # without autocast, dtypes may not fit together
                    conversions.count = -1
            counts.append(conversions.count)
    return len(set(counts)) > 1
