"""torch's compiler and SymPy are not imported for a replay, and are whole when used."""

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


ALGEBRA = """
import sympy
import torch.fx.experimental.symbolic_shapes as shapes
assert torch.fx.experimental.symbolic_shapes is shapes is sys.modules[shapes.__name__]
assert sympy.Symbol("x") + 1 != 2 and sympy.Basic.__module__.startswith("sympy")
assert shapes.sym_eq.__module__ == shapes.__name__
assert shapes.ShapeEnv() is not None
from torch.fx.experimental.proxy_tensor import make_fx
make_fx(lambda x: x[: x.shape[0] // 2] + 1, tracing_mode="symbolic")(torch.ones(8))
"""


@pytest.mark.parametrize(
    "uses",
    [
        "import sympy; sympy.Symbol('x')",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv; ShapeEnv()",
    ],
)
def test_sympy_is_loaded_if_there_are_symbols(uses):
    code = REPLAY.format(uses=uses, before="None")
    run(code + "assert 'sympy' in sys.modules\n" + ALGEBRA)


def test_neither_is_loaded_without_need_and_both_are_whole_afterwards():
    uses = "torch.compiler.is_compiling(); nn.functional.layer_norm(x, x.shape[1:])"
    code = REPLAY.format(uses=uses, before="None")
    run(code + "assert not loaded and 'sympy' not in sys.modules\n" + ALGEBRA + WORKS)


@pytest.mark.filterwarnings("ignore:guard_size_oblivious:FutureWarning")
def test_rules_for_numbers_are_those_of_torch():
    from torch.fx.experimental import symbolic_shapes

    from maxslices.nn.replay.import_stubs import _OF_NUMBERS

    given = {
        "sym_eq": [((1, [2, 3]), (1, [2, 3])), (1, 2), ((1,), (1, 2))],
        "sym_and": [(True, False), (True,), (True, True, True)],
        "sym_or": [(False, False, True), (False,)],
        "free_unbacked_symbols": [(3,), ((1, 2),)],
        "guarding_hint_or_throw": [(3,), (False,)],
        "has_guarding_hint": [(3,)],
        "has_hint": [(3,)],
        "is_nested_int": [(3,)],
        "size_hint": [(3,), (3, 4)],
    }
    for name, stand_in in _OF_NUMBERS.items():
        real = getattr(symbolic_shapes, name, None)  # not every torch has each
        for args in given.get(name, [(True,), (False,)]) if real else []:
            assert stand_in(*args) == real(*args), name
