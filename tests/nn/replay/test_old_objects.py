"""Objects that were there before a replay are left out of garbage collections."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("torch")

from torch import nn

from maxslices.nn import max_batch_size, max_patch_shape, memory_report
from maxslices.nn.replay import Spec, replay

pytestmark = pytest.mark.usefixtures("nothing_frozen")

LEFT_OUT: list[int] = []
"""Objects that the collector left out when `Watched` was called."""


class Watched(nn.Conv2d):
    """Notes how many objects the collector leaves out."""

    def forward(self, x):
        LEFT_OUT.append(gc.get_freeze_count())
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:the search reached its bound")
@pytest.mark.parametrize(
    "ask",
    [
        lambda model: replay(model, Spec((2, 1, 8, 8))),
        lambda model: max_batch_size(model, (8, 8), 1, memory="1GB", max_batch_size=4),
        lambda model: max_patch_shape(model, 2, 2, (8, 8), 1, memory="1GB", max_scale_factor=4),
        lambda model: memory_report(model, (2, 1, 8, 8)),
    ],
    ids=["replay", "batch", "patch", "report"],
)
def test_a_replay_leaves_out_what_was_there(ask):
    LEFT_OUT.clear()
    alive = len(gc.get_objects())
    ask(Watched(1, 1, 3, padding=1))
    assert min(LEFT_OUT) > 0.9 * alive
    assert gc.get_freeze_count() < 0.1 * alive
