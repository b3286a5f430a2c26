"""Every module of PyTorch's own database, compiled with dynamic sizes, gives what eager PyTorch gives at several sizes."""

from __future__ import annotations

import pytest
import torch

from tests.opinfo.check import check_samples
from tests.opinfo.samples import module_samples, modules

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NAMES = sorted(modules())
STRUCTURES = 5
NOT_COMPARED = {
    "nn.CTCLoss",  # torch.export refuses it
    "nn.GaussianNLLLoss",
    "nn.FractionalMaxPool2d",  # the database's samples of random positions are of another dtype
    "nn.FractionalMaxPool3d",
}
KNOWN = {  # by the beginning of the reason
    "nn.BatchNorm1d": "sizes grown: ContractError: 'tensors_0' dim 1 must be 5",  # of nothing, eager takes any number of channels
    "nn.BatchNorm2d": "sizes grown: ContractError: 'tensors_0' dim 1 must be 5",
    "nn.BatchNorm3d": "sizes grown: ContractError: 'tensors_0' dim 1 must be 5",
    "nn.MultiLabelMarginLoss": "float32[1], not float32[]",  # what torch.export says it is
}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in NOT_COMPARED])
def test_module(name: str) -> None:
    torch.manual_seed(0)
    compared = 0
    for result in check_samples(name, module_samples(modules()[name], STRUCTURES)):
        compared += result["outcome"] == "pass"
        known = name in KNOWN and result["reason"].startswith(KNOWN[name])
        assert known or result["outcome"] in ("pass", "no export"), result
    assert compared
