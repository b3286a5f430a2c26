"""The parts of PyTorch that the backend of torch.compile rests on without their being public.

Import raises TorchVersionError, naming what is missing, under a version of PyTorch that lacks one.
"""

from __future__ import annotations

import torch

from dhlo.errors import TorchVersionError
from dhlo.torch_version import require_supported

__all__ = [
    "ModuleCallEntry",
    "ModuleCallSignature",
    "PlainAOTInput",
    "PythonPrinter",
    "SymFloatArgument",
    "TrainingIRVerifier",
    "aot_autograd",
    "make_boxed_func",
    "min_cut_rematerialization_partition",
    "override_composite_implicit_decomp",
    "statically_known_true",
]

require_supported(torch.__version__)
try:
    from torch._dynamo.backends.common import aot_autograd
    from torch._export.verifier import TrainingIRVerifier
    from torch._functorch._aot_autograd.descriptors import PlainAOTInput
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
    from torch.export.exported_program import _override_composite_implicit_decomp as override_composite_implicit_decomp
    from torch.export.graph_signature import SymFloatArgument
    from torch.fx.experimental.symbolic_shapes import statically_known_true
    from torch.utils._sympy.printers import PythonPrinter
except ImportError as e:
    raise TorchVersionError(f"the backend 'dhlo' of torch.compile doesn't work with torch {torch.__version__}: {e}") from e
