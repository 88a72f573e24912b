"""Retries of the allocator in later steps: as measured on a card, and in the search for a plan."""

from __future__ import annotations

import json
import sys
from itertools import islice, pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.nn_errors import TooLargeError
from maxslices.nn.reduce import Rewrite, apply_rewrites, reduce_memory, search
from maxslices.nn.reduce.search import ReductionPlan, allocator
from maxslices.nn.replay import CachingAllocator, Spec, Trace, Workspaces
from maxslices.nn.replay.caching_allocator import ROUND_BYTES
from maxslices.nn.replay.expandable_segments import ExpandableAllocator
from maxslices.nn.replay.trace import Steady, each_step, steady
from maxslices.nn.step.model_step import ModelStep

from .networks import DEEP_INPUT as SPEC
from .networks import deep
from .networks import deep_memory as memory
from .replay.traces import trace_of

H200 = json.loads((Path(__file__).parent / "h200_limits.json").read_text())
MIB = 2**20


@pytest.fixture(scope="module")
def model():
    scripts = str(Path(__file__).parents[2] / "docs" / "scripts")
    sys.path.insert(0, scripts)
    try:
        import nn_models
    finally:
        sys.path.remove(scripts)
    return nn_models.resnet50()


def replayed(model, paths, spec, workspaces, steps=2, optimizer=torch.optim.Adam) -> Trace:
    plan = {path: Rewrite("checkpoint") for path in paths}
    step = ModelStep(model, "training", optimizer, nn.CrossEntropyLoss())
    return step.trace([spec], workspaces, steps=steps, change=lambda m: apply_rewrites(m, plan))


def blocks_of(model) -> list[str]:
    return [path for path, m in model.named_modules() if type(m).__name__ == "Bottleneck"]


@pytest.fixture(scope="module")
def traces(model):
    """ResNet50 as it was run on an H200, rewritten in two ways."""
    workspaces, spec = Workspaces.from_plain(H200["workspaces"]), Spec((64, 3, 224, 224))
    plan = [
        "maxpool", "layer1.0.downsample", "layer1.2", "layer2.0.downsample", "layer2.3",
        "layer3.0", "layer1[0:2]", "layer2[0:3]",
    ]  # fmt: skip
    return {
        name: replayed(model, paths, spec, workspaces)
        for name, paths in (("every_block", blocks_of(model)), ("plan", plan))
    }


@pytest.mark.parametrize(
    ("name", "limit"), [(name, mib) for name in ("every_block", "plan") for mib in H200[name]]
)
def test_memory_is_returned_in_the_same_steps_as_measured(traces, name, limit):
    measured = H200[name][limit]
    steps = each_step(traces[name], ExpandableAllocator(int(limit) * MIB))
    assert [counts.retries for counts in islice(steps, len(measured))] == measured


@pytest.mark.parametrize("kind", [CachingAllocator, ExpandableAllocator])
@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
def test_repeating_the_second_step_equals_replaying_more_steps(model, kind, optimizer):
    spec, workspaces = Spec((24, 3, 160, 160)), Workspaces.none()
    two, six = (
        replayed(model, blocks_of(model), spec, workspaces, steps, optimizer) for steps in (2, 6)
    )
    ends = [0, *(m.event for m in six.marks if m.name == six.marks[-1].name)]
    requests, retries = list(six.requests_by_event()), 0
    free = kind()
    free.run(two.requests())
    for limit in range(two.allocated_bytes, free.peak_reserved_bytes, 16 * MIB):
        repeated, other = each_step(two, kind(limit)), kind(limit)
        for begin, end in pairwise(ends):
            before = other.retries, other.taken_bytes
            if not other.run([step for steps in requests[begin:end] for step in steps]):
                assert next(repeated) is None
                break
            counts = other.retries - before[0], other.taken_bytes - before[1]
            assert next(repeated)[:2] == counts
            retries += counts[0]
    assert retries


def reduced(monkeypatch, later: Steady, part: float = 0.6):
    """Reduce a model with the stated later steps, and return the summary."""
    monkeypatch.setattr(search, "steady", lambda *_: later)
    return reduce_memory(deep(), SPEC, memory(part), means=("checkpoint",))[1]


def test_retries_of_the_allocator_add_to_the_time_of_a_step(monkeypatch):
    calm = reduced(monkeypatch, Steady(True))
    held_up = reduced(monkeypatch, Steady(True, 10**9))
    more_s = 10**9 / 227e9
    assert held_up.predicted_added_s >= calm.predicted_added_s + more_s
    # The search goes down to plans that leave more memory free.
    assert held_up.n_replays > calm.n_replays


def test_a_plan_that_fails_in_a_later_step_does_not_fit(monkeypatch):
    monkeypatch.setattr(search, "later_bytes", lambda _trace, limit: limit + 1)
    with pytest.raises(TooLargeError, match="no plan fits"):
        reduced(monkeypatch, Steady(False))


def test_expandable_segments_need_room_for_a_whole_block(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    kept = [("b", 3.3), ("a", -1.0), ("c", 27.5), ("d", 0.33), ("e", 13.2), ("c", -1.0)]
    again = [("a", 44.0), ("b", -1.0), ("e", -1.0), ("d", -1.0), *kept]
    trace = trace_of([("a", 44.0), *kept], again)
    first = ReductionPlan([], trace).needed_bytes
    assert not steady(trace, allocator(first)).runs
    needed = ReductionPlan([], trace, first).needed_bytes
    # One more than all that is ever held does not do.
    free = allocator()
    steady(trace, free)
    assert needed > free.peak_reserved_bytes + ROUND_BYTES
    assert steady(trace, allocator(needed)).runs
