"""Reduced steps on a GPU: the same gradients, confirmed by a real step."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.reduce import Rewrite, apply_rewrites, reduce_memory, restore
from maxslices.nn.replay import Spec

from .networks import assert_same

pytestmark = pytest.mark.gpu
SPEC = Spec((16, 3, 256, 256))


def model() -> nn.Sequential:
    torch.manual_seed(1)

    def block(n_in: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(n_in, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip

    return nn.Sequential(block(3), *(block(32) for _ in range(3)), nn.Conv2d(32, 1, 1)).cuda()


PLANS = {
    "inside each other": {
        "[0:3]": Rewrite("checkpoint"),
        "1": Rewrite("checkpoint"),
        "1[0:3]": Rewrite("checkpoint"),
    },
    "on the host": {"0": Rewrite("offload"), "2.1": Rewrite("offload")},
    "selective": {"[0:2]": Rewrite("selective"), "3": Rewrite("selective")},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_gradients_are_the_same_to_the_bit(plan, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    whole = model()
    reduced = copy.deepcopy(whole)
    apply_rewrites(reduced, plan)
    x = torch.randn(SPEC.shape, device="cuda")
    for _ in range(2):  # pinned memory is used again
        assert_same(whole, reduced, x)


def test_a_plan_runs_within_its_limit():
    network = model()
    _, roomy = reduce_memory(network, SPEC, "40GB")
    limit = int(0.6 * roomy.measured_after_bytes)
    _, summary = reduce_memory(network, SPEC, limit + CONTEXT_BYTES)
    print(summary)
    assert 0 < summary.measured_after_bytes <= limit
    assert summary.peak_after_bytes == pytest.approx(summary.measured_after_bytes, rel=0.03)
    restore(network, summary)
