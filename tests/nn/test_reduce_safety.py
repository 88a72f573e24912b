"""Rewritten modules have the gradients and the state of the modules as they were.

Each model has one idiom that made recomputation wrong: `gradient_idioms` in docs/scripts.
"""

from __future__ import annotations

import random
import sys
from collections import UserDict
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import RewriteError, TooLargeError
from maxslices.nn.reduce import (
    Rewrite,
    apply_rewrites,
    reduce_by_level,
    reduce_memory,
    undo_rewrites,
)
from maxslices.nn.reduce.binary_inputs import probe_binary
from maxslices.nn.reduce.block_state import BlockState
from maxslices.nn.reduce.gradient_check import GradientCheck
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep
from maxslices.system.process_state import HostDraws

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "scripts"))

import gradient_idioms as own

INPUT = Spec((4, own.N, 16, 16))
RECOMPUTED = [
    own.Dense,
    own.Passes,
    own.Nested,
    own.Averages,
    own.Counts,
    own.Quantizes,
    own.renormalizes,
    own.spectral,
    own.spectral_by_hooks,
    own.HostDraws,
    lambda: own.HandsOn(own.Items),
    lambda: own.HandsOn(UserDict),
    lambda: own.HandsOn(own.Holder),
    lambda: own.HandsOn(own.Slots),
    lambda: own.HandsOn(own.SlottedItems),
    lambda: own.HandsOn(own.SelfDict),
    lambda: own.Remembers(dict),
    lambda: own.Remembers(own.Items),
    lambda: own.Remembers(UserDict),
    lambda: own.Remembers(own.Holder),
    lambda: own.Remembers(own.Slots),
    lambda: own.Remembers(own.SlottedItems),
    lambda: own.Remembers(own.SelfDict),
]
"""Networks that can be computed again, as their containers and their state are restored."""


def blocks_of(model: nn.Module) -> list[str]:
    inside = getattr(model, "blocks", model)
    return [path for path, each in model.named_modules() if each in [*inside]]


def difference(model: nn.Module, rewrites: dict[str, Rewrite], spec: Spec = INPUT) -> str:
    check = GradientCheck(ModelStep(model, "training"), [spec])
    return str(check.difference(rewrites) or "")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", ["checkpoint", "selective"])
@pytest.mark.parametrize("make", RECOMPUTED)
def test_each_block_computed_again_changes_nothing(make, kind):
    model = make()
    assert difference(model, {path: Rewrite(kind) for path in blocks_of(model)}) == ""


@pytest.mark.parametrize("make", RECOMPUTED)
def test_blocks_computed_again_inside_of_the_model_change_nothing(make):
    model = make()
    rewrites = {path: Rewrite("checkpoint") for path in ["", *blocks_of(model)]}
    assert difference(model, rewrites) == ""


def test_comparisons_share_random_numbers_and_take_none_of_the_programs():
    model = own.HostDraws()
    check = GradientCheck(ModelStep(model, "training"), [INPUT])
    rewrites = {path: Rewrite("checkpoint") for path in blocks_of(model)}
    for _ in range(3):  # in single precision; in double, if that differs; with that one again
        before = HostDraws()
        assert check.difference(rewrites) is None
        with before.again():
            expected = random.random(), numpy.random.rand()  # noqa: NPY002
        assert (random.random(), numpy.random.rand()) == expected  # noqa: NPY002


@pytest.mark.parametrize("make", [own.HostDraws, own.Hooks, own.Forces])
def test_steps_that_cannot_run_without_gradients_or_draw_on_the_host_are_reduced(make):
    model, spec = make(), Spec((4, own.N, 96, 96))
    step = ModelStep(model, "training", torch.optim.SGD)
    needed = step.trace([spec], Workspaces.allowance()).needed_bytes
    _, summary = reduce_memory(
        model, spec, int(0.8 * needed) + CONTEXT_BYTES, optimizer="sgd", means=("offload",)
    )
    assert summary.rewrites
    assert not [note for note in summary.notes if "differs" in note]


def test_a_second_backward_pass_restores_the_state_again():
    model = own.Averages()
    apply_rewrites(model, {"blocks.1": Rewrite("checkpoint")})
    total = model(torch.randn(INPUT.shape)).sum()
    grads = []
    for keep in (True, False):
        model.zero_grad()
        total.backward(retain_graph=keep)
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_the_state_of_several_steps_is_that_of_the_unreduced_model():
    # The first call learns what changes; the others rely on it.
    made = []
    for rewrites in ({}, {path: Rewrite("checkpoint") for path in blocks_of(own.Quantizes())}):
        torch.manual_seed(0)
        model = own.Quantizes()
        apply_rewrites(model, rewrites)
        for _ in range(3):
            model(torch.randn(INPUT.shape)).square().sum().backward()
        made.append([*model.state_dict().values(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


class Seldom(nn.Module):
    """Changes a buffer in train mode, or where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.always = own.block(norm=None), False
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if self.training or self.always:
            with torch.no_grad():
                self.mean.add_(y.abs().mean())
        return (y - self.mean).square()


def test_what_changes_in_train_mode_alone_is_restored_there():
    made = []
    for rewrites in ({}, {"": Rewrite("checkpoint")}):
        torch.manual_seed(0)
        model = Seldom()
        apply_rewrites(model, rewrites)
        for training in (False, True, True):
            model.train(training)
            model(torch.randn(INPUT.shape)).sum().backward()
        made.append([model.mean, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_a_buffer_that_never_changed_before_is_an_error_once():
    model, x = Seldom().eval(), torch.randn(INPUT.shape)
    apply_rewrites(model, {"": Rewrite("checkpoint")})
    model(x).sum().backward()
    model.always = True
    with pytest.raises(RewriteError, match="its mean is changed"):
        model(x).sum().backward()
    model.zero_grad()
    model(x).sum().backward()
    other = Seldom().eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.mean.copy_(model.mean - other.body(x).abs().mean())
    other.always = True
    other(x).sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (own.Adds, "modified by an inplace operation"),
        (own.Scales, "its scale is changed"),
        (own.bounded, "weight is changed"),
        (lambda: own.HandsOn(own.Uncopied), "the Uncopied that it was given is changed"),
    ],
)
def test_what_is_changed_after_it_was_used_is_an_error_and_never_a_wrong_gradient(make, reason):
    model = make()
    assert reason in difference(model, {path: Rewrite("checkpoint") for path in blocks_of(model)})


def test_an_object_that_stays_as_it_is_may_be_given_to_a_block():
    model = own.HandsOn(own.Holder)
    model.blocks = model.blocks[:1]
    model.forward = lambda x: model.blocks[0](own.Holder({"x": x * 1, "scale": x.mean()}))
    assert difference(model, {"blocks.0": Rewrite("checkpoint")}) == ""


def test_inside_of_parts_too_an_argument_that_is_changed_in_place_is_an_error():
    # Autograd does not compare the versions of what another checkpoint keeps.
    model = own.Adds()
    rewrites = {"": Rewrite("checkpoint", (), 2)}
    assert difference(model, rewrites) == ""
    rewrites |= {path: Rewrite("checkpoint") for path in blocks_of(model)}
    assert "that it was given is changed in place later" in difference(model, rewrites)


def test_a_kept_result_that_is_changed_in_place_names_the_module():
    model = own.overwrites()
    assert "3 cannot be computed again" in difference(model, {"3": Rewrite("selective")})


@pytest.mark.parametrize("make", [own.Averages, own.spectral, own.Quantizes])
def test_buffers_that_each_part_would_change_are_an_error(make):
    model = make()
    apply_rewrites(model, {"": Rewrite("checkpoint", (), 2)})
    with pytest.raises(RewriteError, match="cannot be run in 2 parts, as its forward pass changes"):
        model(torch.randn(INPUT.shape))


def test_dropout_in_parts_is_the_same_but_for_its_random_numbers():
    check = GradientCheck(ModelStep(own.drops(), "training"), [INPUT])
    whole = {path: Rewrite("checkpoint") for path in "0123"}
    for rewrites, draws_differ in (({"": Rewrite("checkpoint", (), 2)}, True), (whole, False)):
        assert check.difference(rewrites) is None
        assert check.draws_differ(rewrites) == draws_differ


class Mixes(nn.Module):
    """Uses the mean of the batch, so parts of it give other results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(own.N, own.N, 1), nn.Conv2d(own.N, own.N, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x) - self.first(x).mean(0)


def test_the_rewrite_that_changes_gradients_is_found_among_others():
    model = nn.Sequential(own.block(norm=None), Mixes(), own.block(norm=None))
    check = GradientCheck(ModelStep(model, "training"), [INPUT])
    rewrites = {
        "0": Rewrite("checkpoint"),
        "1": Rewrite("split", (), 2),
        "2": Rewrite("selective"),
        "2.0": Rewrite("split", (), 2),
    }
    found = check.culprits(rewrites)
    assert [*found] == ["1"]
    assert found["1"].error > 1e-3


def small_plan(model, part: float, spec=Spec((16, own.N, 64, 64)), **options):  # noqa: B008
    """Reduce a network to a part of what its step needs."""
    step = ModelStep(model, "training", torch.optim.SGD)
    whole = step.trace([spec], Workspaces.allowance()).needed_bytes
    _, summary = reduce_memory(
        model, spec, int(part * whole) + CONTEXT_BYTES, optimizer="sgd", **options
    )
    return summary


class Remembers(nn.Module):
    """Reads a moving average of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 256), nn.Linear(256, 64)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(nn.functional.gelu(self.a(x)))
        with torch.no_grad():
            self.mean.lerp_(y.abs().mean(), 0.1)
        return (y - self.mean).square()


def test_a_plan_that_changes_gradients_is_not_handed_over(monkeypatch):
    # Without the restored state, checkpoints of these blocks are wrong.
    monkeypatch.setattr(BlockState, "restored", lambda *_: nullcontext())
    model = nn.Sequential(*(Remembers() for _ in range(4)))
    summary = small_plan(model, 0.8, Spec((256, 64, 64)), means=("checkpoint", "offload"))
    assert summary.fits
    assert summary.rewrites
    assert any("is not rewritten (checkpoint): " in note for note in summary.notes)
    assert summary.check_s > 0
    assert "gradients and state compared" in str(summary)
    undo_rewrites(model)
    monkeypatch.undo()
    assert difference(model, summary.rewrites, Spec((4, 64, 64))) == ""


def test_the_summary_says_where_dropout_draws_other_numbers():
    layers = [
        nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.3), nn.Linear(256, 64))
        for _ in range(3)
    ]
    spec = Spec((32, 64, 64))
    summary = small_plan(nn.Sequential(*layers), 0.9, spec, means=("split",))
    assert summary.rewrites[""].parts > 1
    assert "draw other random numbers" in "".join(summary.notes)


class Overwrites(nn.Module):
    """Changes the result of a matrix product in place, by a function and not by a module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(nn.functional.gelu(self.norm(nn.functional.relu_(self.a(x)))))


def test_kept_results_that_are_overwritten_do_not_end_the_search():
    model = nn.Sequential(*(Overwrites() for _ in range(3)))
    summary = small_plan(model, 0.85, Spec((32, 64, 64)), means=("selective", "checkpoint"))
    assert summary.fits
    assert all(rewrite.kind == "checkpoint" for rewrite in summary.rewrites.values())
    with pytest.raises(TooLargeError):
        small_plan(model, 0.7, Spec((32, 64, 64)), means=("selective",))
    with pytest.raises(TooLargeError):
        small_plan(own.overwrites(), 0.8, means=("selective",))


def test_levels_leave_out_what_changes_gradients(monkeypatch):
    monkeypatch.setattr(BlockState, "restored", lambda *_: nullcontext())
    model = nn.Sequential(*own.Averages().blocks, *own.drops())
    kinds = type(model[0]), nn.Sequential
    _, summary = reduce_by_level(model, kinds, INPUT, level=1, return_summary=True)
    assert [*summary.rewrites] == ["4", "5", "6", "7"]
    assert sum("is not rewritten" in note for note in summary.notes) == 4


def test_a_network_that_kept_a_result_can_be_compared():
    model = own.Passes()
    model.seen = model(torch.randn(INPUT.shape))
    assert difference(model, {path: Rewrite("checkpoint") for path in blocks_of(model)}) == ""


def test_probing_leaves_attributes_and_buffers_as_they_were():
    model = own.Counts()
    scale = own.Scales()
    probe_binary(model, (INPUT,))
    assert model.blocks[0].n_calls == 0
    assert model.blocks[0].history == []
    probe_binary(scale, (INPUT,))
    assert [float(each.scale) for each in scale.blocks] == [1.0] * 4


def test_the_context_brings_back_the_tensors_and_their_values():
    module = nn.Module()
    module.register_buffer("kept", torch.ones(2))
    module.register_buffer("replaced", torch.ones(2))
    module.seen, kept, replaced = [], module.kept, module.replaced
    with BlockState(module).unchanged():
        module.kept.add_(1)
        module.replaced = torch.zeros(2)
        module.seen.append(1)
        module.more = 3
    assert module.kept is kept
    assert kept.tolist() == [1.0, 1.0]
    assert module.replaced is replaced
    assert module.seen == []
    assert not hasattr(module, "more")
