"""A checkout of KernelBench, from Python problems and timing files to rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuseledger.validate.checkout import read_checkout
from fuseledger.validate.corpus import CorpusError
from fuseledger.validate.run import validate

pytestmark = pytest.mark.torch

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 32, 3)
        self.norm = nn.BatchNorm2d(32)
        self.linear = nn.Linear(30, 10)

    def forward(self, x):
        return torch.softmax(self.linear(self.norm(torch.relu(self.conv(x)))), -1)


def get_inputs():
    return [torch.rand(64, 8, 32, 32)]


def get_init_inputs():
    return [8]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two problems, one of them timed twice, and rows that nothing can price."""
    level = tmp_path / "KernelBench" / "level2"
    level.mkdir(parents=True)
    for name in ("2_Conv_Norm", "4_Conv_Norm"):
        (level / f"{name}.py").write_text(PROBLEM)
    times = {
        "level2": {
            "2_Conv_Norm.py": {"mean": 0.2, "std": 0.01, "hardware": "NVIDIA H100 PCIe"},
            "4_Conv_Norm.py": {"mean": 0.3, "hardware": "NVIDIA H100 PCIe"},
            "6_Lost.py": {"mean": 0.3, "hardware": "NVIDIA H100 PCIe"},
            "8_Far.py": {"mean": 0.3, "hardware": "NVIDIA Unknown 9000"},
        },
        "level9": {"1_Other.py": {"mean": 1.0, "hardware": "NVIDIA H100 PCIe"}},
    }
    folder = tmp_path / "results" / "timing" / "My_Host"
    folder.mkdir(parents=True)
    for mode in ("torch", "torch_compile_inductor_default"):
        (folder / f"baseline_time_{mode}.json").write_text(json.dumps(times))
    return tmp_path


def test_problems_become_the_calls_that_eager_dispatches(checkout: Path) -> None:
    """A bias is a kernel of its own, and so is the count of batches that a norm keeps."""
    rows = [row for row in read_checkout(checkout).rows if row.setting.mode == "eager"]
    assert [row.name for row in rows] == ["2_Conv_Norm", "4_Conv_Norm"]
    kinds = [kernel.kind for kernel in rows[0].kernels]
    passes = ["pointwise", "pointwise", "pointwise"]  # bias, ReLU, count
    assert kinds == ["conv", *passes, "batch_norm", "gemm", "softmax"]
    assert rows[0].kernels[0].flops == 2 * 64 * 32 * 30 * 30 * 8 * 9
    assert rows[0].setting.arguments == 1 + 2 + 5 + 2  # x, convolution, norm, linear


def test_what_cannot_be_priced_is_counted_and_named(checkout: Path) -> None:
    """A missing file, an unknown GPU and a level without rules, each in two modes."""
    assert read_checkout(checkout).skipped == {
        "My_Host/baseline_time_torch.json, level9: mode or level not priced": 1,
        "My_Host/baseline_time_torch_compile_inductor_default.json, level9: mode or level not priced": 1,  # noqa: E501
        "no problem KernelBench/level2/6_Lost.py": 2,
        "device NVIDIA Unknown 9000 is not in the catalog": 2,
    }


def test_a_checkout_is_validated_from_end_to_end(checkout: Path) -> None:
    """Two eager and two compiled times give one row each of the whole, and say what was run."""
    result = validate(checkout)
    whole = [r for r in result.rows if (r.device, r.class_) == ("all", "all") and "L1" in r.corpus]
    assert {(r.mode, r.n) for r in whole} >= {("eager", 2), ("compile-default", 2)}
    assert "the problems' Python files were run, on fake tensors" in result.notes


def test_a_problem_that_fails_is_counted_with_its_error(checkout: Path) -> None:
    """The file and what it raised are named; the other problem is still priced."""
    broken = checkout / "KernelBench" / "level2" / "4_Conv_Norm.py"
    broken.write_text("raise RuntimeError('no')\n")
    found = read_checkout(checkout)
    assert {row.name for row in found.rows} == {"2_Conv_Norm"}
    (reason,) = [reason for reason in found.skipped if "4_Conv_Norm.py" in reason]
    assert "RuntimeError: no" in reason


def test_a_wrong_timing_file_is_one_clear_line(checkout: Path) -> None:
    """The message names the file and the field."""
    path = checkout / "results" / "timing" / "My_Host" / "baseline_time_torch.json"
    path.write_text('{"level1": {"1_A.py": {"mean": "fast"}}}')
    with pytest.raises(CorpusError, match=r"baseline_time_torch\.json: .*float.*mean"):
        read_checkout(checkout)
