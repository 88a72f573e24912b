"""Rewritten modules have the gradients and the state of the original ones.

Each model has one idiom that once made recomputation wrong.
"""

from __future__ import annotations

import random
from collections import UserDict
from contextlib import nullcontext
from functools import partial

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import RewriteError, TooLargeError
from maxslices.nn.reduce import (
    Rewrite,
    apply_rewrites,
    memory_optimization,
    reduce_memory,
    undo_rewrites,
)
from maxslices.nn.reduce.binary_inputs import probe_binary
from maxslices.nn.reduce.gradient_check import GradientCheck
from maxslices.nn.reduce.recomputation import BlockState
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep
from maxslices.system.process_state import HostDraws

from . import gradient_idioms as own
from .networks import Calls

INPUT = Spec((4, own.N, 16, 16))
KINDS = (UserDict, own.Holder, own.Slots, own.SelfDict)
RECOMPUTED = [
    own.dense,
    own.passes,
    own.nested,
    own.averages,
    own.counts,
    own.quantizes,
    own.renormalizes,
    own.spectral,
    own.spectral_by_hooks,
    own.host_draws,
    *(partial(own.hands_on, kind) for kind in KINDS),
    *(partial(own.remembers, kind) for kind in (dict, *KINDS)),
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
def test_recomputing_each_block_changes_nothing(make, kind):
    model = make()
    assert difference(model, {path: Rewrite(kind) for path in blocks_of(model)}) == ""


@pytest.mark.parametrize("make", RECOMPUTED)
def test_recomputing_blocks_inside_a_checkpoint_changes_nothing(make):
    model = make()
    rewrites = {path: Rewrite("checkpoint") for path in ["", *blocks_of(model)]}
    assert difference(model, rewrites) == ""


def test_comparisons_share_random_numbers_and_leave_the_generators_unchanged():
    model = own.host_draws()
    check = GradientCheck(ModelStep(model, "training"), [INPUT])
    rewrites = {path: Rewrite("checkpoint") for path in blocks_of(model)}
    for _ in range(3):  # in single precision, in double precision, and again
        before = HostDraws()
        assert check.difference(rewrites) is None
        with before.again():
            expected = random.random(), numpy.random.rand()  # noqa: NPY002
        assert (random.random(), numpy.random.rand()) == expected  # noqa: NPY002


def penalty() -> nn.Module:
    """Return a critic with a gradient by its input, computed where gradients are on anyway."""

    def forward(model, x):
        y = model.critic(torch.where(x > 0, x, 0.1 * x).requires_grad_())
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model.critic(x).sum(), x, create_graph=True)
        return y + slope

    return Calls(forward, critic=nn.Sequential(*(own.block(norm=None) for _ in range(3))))


def adapts() -> nn.Module:
    """Return a module that differentiates a part of itself by torch.func, and uses another part."""
    return Calls(
        lambda m, x: m.outer(x) + torch.func.grad(lambda y: m.inner(y).square().sum())(x),
        inner=own.block(norm=None), outer=nn.Sequential(own.block(), own.block()),
    )  # fmt: skip


@pytest.mark.parametrize("make", [own.host_draws, own.Hooks, own.Forces, penalty, adapts])
def test_steps_that_cannot_run_without_gradients_or_draw_on_the_host_are_reduced(make):
    model, spec = make(), Spec((4, own.N, 96, 96))
    step = ModelStep(model, "training", torch.optim.SGD)
    needed = step.trace([spec], Workspaces.allowance()).needed_bytes
    _, summary = reduce_memory(
        model, spec, int(0.8 * needed) + CONTEXT_BYTES, optimizer="sgd",
        means=("offload", "split"),
    )  # fmt: skip
    assert summary.rewrites
    assert not [note for note in summary.notes if "differs" in note]


def test_a_second_backward_pass_restores_the_state_again():
    model = own.averages()
    apply_rewrites(model, {"1": Rewrite("checkpoint")})
    total = model(torch.randn(INPUT.shape)).sum()
    grads = []
    for keep in (True, False):
        model.zero_grad()
        total.backward(retain_graph=keep)
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def gradients_by(step, rewrites) -> list[torch.Tensor]:
    """Gradients that a function of a model and its input returns, in double precision."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(n, 16), nn.Softplus(), nn.LayerNorm(16)) for n in (8, 16)]
    model = nn.Sequential(*layers, nn.Linear(16, 4)).double()
    apply_rewrites(model, rewrites)
    return step(model, torch.randn(6, 8, dtype=torch.float64))


def sharpness(model, x):
    loss = model(x).square().sum()
    slopes = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    (loss + sum(slope.square().sum() for slope in slopes)).backward()
    return [p.grad for p in model.parameters()]


def called_with_others(model, x):
    replaced = {name: (p * 0.9).detach().requires_grad_() for name, p in model.named_parameters()}
    torch.func.functional_call(model, replaced, (x,)).square().sum().backward()
    return [p.grad for p in replaced.values()]


def by_torch_func(model, x):
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(some):
        return torch.func.functional_call(model, some, (x,)).square().sum()

    return [*torch.func.grad(loss)(parameters).values()]


AGAIN = {"[0:2]": Rewrite("checkpoint"), "0": Rewrite("checkpoint"), "1": Rewrite("offload")}


@pytest.mark.parametrize("step", [sharpness, called_with_others])
@pytest.mark.parametrize("rewrites", [AGAIN, {"": Rewrite("checkpoint", (), 2)}])
def test_gradients_of_gradients_and_other_parameters_are_those_of_the_unreduced(step, rewrites):
    pairs = zip(gradients_by(step, {}), gradients_by(step, rewrites), strict=True)
    for whole, reduced in pairs:
        torch.testing.assert_close(reduced, whole, rtol=0, atol=1e-12 * float(whole.abs().max()))


def test_kept_results_serve_one_backward_pass_and_an_error_says_so():
    with pytest.raises(RewriteError, match=r"1 cannot .* one backward pass.*without 'selective'"):
        gradients_by(sharpness, {"1": Rewrite("selective")})


@pytest.mark.parametrize("rewrites", [AGAIN, {"": Rewrite("checkpoint", (), 2)}])
def test_torch_func_of_a_reduced_model_is_an_error_with_advice(rewrites):
    assert gradients_by(by_torch_func, {})
    with pytest.raises(RewriteError, match=r"inside of torch\.func.*`restore`"):
        gradients_by(by_torch_func, rewrites)


def test_the_state_of_several_steps_is_that_of_the_unreduced_model():
    # The first call records the changes, and later calls rely on it.
    states = []
    for rewrites in ({}, {path: Rewrite("checkpoint") for path in blocks_of(own.quantizes())}):
        torch.manual_seed(0)
        model = own.quantizes()
        apply_rewrites(model, rewrites)
        for _ in range(3):
            model(torch.randn(INPUT.shape)).square().sum().backward()
        states.append([*model.state_dict().values(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


class Seldom(nn.Module):
    """Changes a buffer in train mode, or always."""

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


def test_buffers_that_change_only_in_train_mode_are_restored():
    states = []
    for rewrites in ({}, {"": Rewrite("checkpoint")}):
        torch.manual_seed(0)
        model = Seldom()
        apply_rewrites(model, rewrites)
        for training in (False, True, True):
            model.train(training)
            model(torch.randn(INPUT.shape)).sum().backward()
        states.append([model.mean, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


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
        (own.adds, "modified by an inplace operation"),
        (own.scales, "its scale is changed"),
        (own.bounded, "weight is changed"),
        (lambda: own.hands_on(own.Uncopied), "the Uncopied that it was given is changed"),
    ],
)
def test_changes_after_the_first_pass_are_errors_and_never_wrong_gradients(make, reason):
    model = make()
    assert reason in difference(model, {path: Rewrite("checkpoint") for path in blocks_of(model)})


def test_an_unchanged_object_may_be_an_argument_of_a_block():
    model = own.hands_on(own.Holder)
    model.blocks = model.blocks[:1]
    model.forward = lambda x: model.blocks[0](own.Holder({"x": x * 1, "scale": x.mean()}))
    assert difference(model, {"blocks.0": Rewrite("checkpoint")}) == ""


def test_an_argument_changed_in_place_is_an_error_inside_parts_too():
    # Autograd does not compare the versions of what another checkpoint keeps.
    model = own.adds()
    rewrites = {"": Rewrite("checkpoint", (), 2)}
    assert difference(model, rewrites) == ""
    rewrites |= {path: Rewrite("checkpoint") for path in blocks_of(model)}
    assert "that it was given is changed in place later" in difference(model, rewrites)


def test_a_kept_result_that_is_changed_in_place_names_the_module():
    model = own.overwrites()
    assert "3 cannot be computed again" in difference(model, {"3": Rewrite("selective")})


@pytest.mark.parametrize("make", [own.averages, own.spectral, own.quantizes])
def test_buffers_that_each_part_would_change_are_an_error(make):
    model = make()
    apply_rewrites(model, {"": Rewrite("checkpoint", (), 2)})
    with pytest.raises(RewriteError, match="cannot be run in 2 parts, as its forward pass changes"):
        model(torch.randn(INPUT.shape))


class FromTheThirdStep(nn.Module):
    """Starts to change something after it has been used twice."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.body, self.what, self.n, self.is_on = own.block(norm=None), what, 0.0, False
        self.register_buffer("mean", torch.zeros(1))
        self.norm = nn.BatchNorm2d(own.N).eval()
        self.tracked = nn.InstanceNorm2d(own.N, track_running_stats=True).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tracked(self.norm(self.body(x)))
        if self.is_on and self.what == "buffer":
            with torch.no_grad():
                self.mean.add_(y.mean())
        if self.is_on and self.what == "parameter":
            with torch.no_grad():
                self.body[0].weight.mul_(0.99)
        if self.is_on and self.what == "attribute":
            self.n += 1
        return y * (1 + self.n)


@pytest.mark.parametrize("kind", ["checkpoint", "split"])
@pytest.mark.parametrize(
    ("what", "named"),
    [("buffer", "mean"), ("parameter", "body.0.weight"), ("attribute", "n"),
     ("norm", "the statistics of norm"), ("tracked", "the statistics of tracked")],
)  # fmt: skip
def test_state_that_changes_only_at_a_later_step_is_an_error_in_parts(kind, what, named):
    model = FromTheThirdStep(what)
    apply_rewrites(model, {"": Rewrite(kind, (), 2)})
    for _ in range(2):
        model(torch.randn(INPUT.shape)).sum().backward()
    model.is_on = True
    if what in ("norm", "tracked"):
        getattr(model, what).train()
    with pytest.raises(RewriteError, match=f"cannot be run in 2 parts, as .* changes {named},"):
        model(torch.randn(INPUT.shape))


class Table(nn.Module):
    """Makes a constant when it is used first."""

    table = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[-1], dtype=x.dtype)
        return (x * self.table).sin()


def test_a_constant_that_the_first_part_computes_is_allowed():
    model, x = Table(), torch.randn(INPUT.shape, requires_grad=True)
    apply_rewrites(model, {"": Rewrite("checkpoint", (), 2)})
    assert torch.equal(model(x), Table()(x))


def reader() -> nn.Module:
    """Return a module that reads sequences of given lengths."""

    def forward(model, x, lengths):
        packed = rnn.pack_padded_sequence(
            x, [int(n) for n in lengths], batch_first=True, enforce_sorted=False
        )
        return model.last(rnn.pad_packed_sequence(model.cells(packed)[0], batch_first=True)[0])

    blocks = [nn.Sequential(nn.Linear(32, 1024), nn.Tanh(), nn.Linear(1024, 32)) for _ in range(8)]
    cells = nn.LSTM(32, 32, batch_first=True)
    return Calls(forward, cells=cells, last=nn.Sequential(*blocks))


LENGTHS = torch.tensor([64, 12, 40, 7] * 8)


def test_values_of_lengths_are_used_in_the_whole_search():
    model, inputs = reader(), (Spec((32, 64, 32)), LENGTHS)
    step = ModelStep(model, "training", torch.optim.SGD)
    needed = step.trace(inputs, Workspaces.allowance()).needed_bytes
    memory = int(0.8 * needed) + CONTEXT_BYTES
    _, summary = reduce_memory(model, inputs, memory, optimizer="sgd", means=("checkpoint",))
    assert summary.rewrites
    assert summary.needed_before_bytes == needed


def mixes() -> nn.Module:
    """Return a module that uses the mean of the batch, so parts of it give other results."""
    return Calls(
        lambda m, x: m.second(x) - m.first(x).mean(0),
        first=nn.Conv2d(own.N, own.N, 1), second=nn.Conv2d(own.N, own.N, 1),
    )  # fmt: skip


def test_the_rewrite_that_changes_gradients_is_found_among_others():
    model = nn.Sequential(own.block(norm=None), mixes(), own.block(norm=None))
    check = GradientCheck(ModelStep(model, "training"), [INPUT])
    rewrites = {
        "0": Rewrite("checkpoint"),
        "1": Rewrite("split", (), 2),
        "2": Rewrite("selective"),
        "2.0": Rewrite("split", (), 2),
    }
    culprits = check.culprits(rewrites)
    assert [*culprits] == ["1"]
    assert culprits["1"].error > 1e-3


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
        y = self.b(functional.gelu(self.a(x)))
        with torch.no_grad():
            self.mean.lerp_(y.abs().mean(), 0.1)
        return (y - self.mean).square()


def test_a_plan_that_changes_gradients_is_not_returned(monkeypatch):
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


def overwrites() -> nn.Module:
    """Return a module that changes a matrix product in place, by a function and not by a module."""
    return Calls(
        lambda m, x: m.b(functional.gelu(m.norm(functional.relu_(m.a(x))))),
        a=nn.Linear(64, 256), norm=nn.LayerNorm(256), b=nn.Linear(256, 64),
    )  # fmt: skip


def test_kept_results_that_are_overwritten_do_not_end_the_search():
    model = nn.Sequential(*(overwrites() for _ in range(3)))
    summary = small_plan(model, 0.85, Spec((32, 64, 64)), means=("selective", "checkpoint"))
    assert summary.fits
    assert all(rewrite.kind == "checkpoint" for rewrite in summary.rewrites.values())
    with pytest.raises(TooLargeError):
        small_plan(model, 0.7, Spec((32, 64, 64)), means=("selective",))
    with pytest.raises(TooLargeError):
        small_plan(own.overwrites(), 0.8, means=("selective",))


def test_levels_omit_rewrites_that_change_gradients(monkeypatch):
    monkeypatch.setattr(BlockState, "restored", lambda *_: nullcontext())
    model = nn.Sequential(*own.averages(), *own.drops())
    kinds = type(model[0]), nn.Sequential
    _, summary = memory_optimization(model, kinds, INPUT, level=1, return_summary=True)
    assert [*summary.rewrites] == ["4", "5", "6", "7"]
    assert sum("is not rewritten" in note for note in summary.notes) == 4


def test_a_network_that_kept_a_result_can_be_compared():
    model = own.passes()
    model.seen = model(torch.randn(INPUT.shape))
    assert difference(model, {path: Rewrite("checkpoint") for path in blocks_of(model)}) == ""


def test_probing_leaves_attributes_and_buffers_as_they_were():
    model = own.counts()
    scale = own.scales()
    probe_binary(model, (INPUT,))
    assert model[0].n_calls == 0
    assert model[0].history == []
    probe_binary(scale, (INPUT,))
    assert [float(each.scale) for each in scale.blocks] == [1.0] * 4
