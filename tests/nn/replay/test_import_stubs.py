"""torch's compiler is not imported for a replay, and is whole when used."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

REPLAY = """
import sys
import torch
from torch import nn
from maxslices.nn.replay import Spec, replay

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    def forward(self, x):
        {uses}
        return self.a(x * 2.0) + 1.0

before = {before}
made = replay(Net(), Spec((2, 1, 8, 8)), mode="training", optimizer=torch.optim.Adam)
assert made.peak_bytes > 0
loaded = "torch._dynamo" in sys.modules
"""

WORKS = """
import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch._dynamo.disable.__module__.startswith("torch._dynamo"), torch._dynamo.disable
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
assert torch.compile(lambda x: x + 1, backend=counter)(torch.ones(3)).sum() == 6
assert counter.frame_count == 1
optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())
assert hasattr(torch.optim.Optimizer.add_param_group.__wrapped__, "__dynamo_disable")
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "uses, before",
    [
        ("import torch._dynamo.config; torch._dynamo.config.suppress_errors", "None"),
        ("pass", "torch._dynamo.disable"),
    ],
)
def test_the_compiler_is_loaded_if_it_is_used(uses, before):
    run(REPLAY.format(uses=uses, before=before) + "assert loaded\n" + WORKS)


def test_the_compiler_is_not_loaded_without_need_and_whole_afterwards():
    uses = "torch.compiler.is_compiling(); nn.functional.layer_norm(x, x.shape[1:])"
    run(REPLAY.format(uses=uses, before="None") + "assert not loaded\n" + WORKS)
