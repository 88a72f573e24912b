"""Replays of models: stage numbers printed on real cards, and what real models keep."""

from __future__ import annotations

import copy
import re

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from maxslices.nn.replay import DataDependentError, Replay, Spec, TraceError, Workspaces, replay
from maxslices.nn.replay.workspaces import CUBLAS_BYTES

from .models import Encoder, UNet

MIB = 2**20
NONE = Workspaces.none()


def forward(model, *specs, **options):
    return replay(model, *specs, mode="forward", workspaces=NONE, **options)


def test_stages_of_an_encoder_are_those_that_a_user_printed_on_a_card():
    trace = forward(Encoder(), Spec((4, 1, 256, 256)))
    printed = [trace.bytes_at("model"), trace.bytes_at("input")]
    printed += [trace.bytes_after(call) for call in trace.modules if call.module in tuple("abcd")]
    assert [round(b / MIB, 2) for b in printed[:2]] == [17.9, 18.9]
    assert [round(b / MIB, 2) for b in printed[2:]] == [274.91, 450.91, 538.91, 582.92]


def test_a_unet_after_its_forward_pass_is_what_a_user_printed_on_a_card():
    """1787 MB; with ReLU, which keeps its result in place of its input, it is less."""
    model = UNet(nn.LeakyReLU(0.1))
    assert sum(p.numel() for p in model.parameters()) == 7_787_393
    assert forward(model, Spec((4, 1, 256, 256))).bytes_at("forward") // MIB == 1787
    assert forward(UNet(), Spec((4, 1, 256, 256))).bytes_at("forward") // MIB == 1379


def test_views_and_in_place_operators_take_nothing():
    def function(x):
        return x.view(-1).add_(1).reshape(8, 8).t()[::2]

    trace = replay(function, Spec((64,)), workspaces=NONE)
    assert [s.category for s in trace.storages] == ["input"]


def test_every_storage_is_rounded_up_to_512_bytes():
    trace = replay(lambda x: x + 1, Spec((3, 7)), workspaces=NONE)
    assert [s.n_bytes for s in trace.storages] == [84, 84]
    assert trace.peak_bytes == 1024


def test_the_real_model_is_left_alone():
    model = UNet()
    model.train()
    seen = []
    model.a.register_forward_hook(lambda *_: seen.append("hook"))
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    hooks = len(model.a._forward_hooks), len(model.b._forward_hooks)
    replay(
        model,
        torch.zeros(2, 1, 64, 64),
        mode="training",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    )
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert (len(model.a._forward_hooks), len(model.b._forward_hooks)) == hooks
    assert model.training
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())


def test_tied_weights_are_counted_once():
    first, second = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
    apart = forward(nn.Sequential(first, second), Spec((1, 256))).bytes_at("model")
    second.weight = first.weight
    tied = forward(nn.Sequential(first, second), Spec((1, 256))).bytes_at("model")
    assert (apart, tied) == (2 * 256 * 256 * 4, 256 * 256 * 4)


def test_a_training_step_ends_with_weights_gradients_and_state():
    model = nn.Linear(1024, 1024, bias=False)
    trace = replay(
        model,
        Spec((2, 1024)),
        mode="training",
        optimizer=torch.optim.Adam,
        workspaces=NONE,
    )
    weights = 4 * 1024 * 1024
    moment = trace.moment(len(trace.events) - 1).by_category()
    assert moment["weights"] == moment["gradients"] == weights
    assert moment["optimizer state"] == 2 * weights
    # Adam's foreach implementation takes a temporary of the size of the weights, and the
    # second step has the state from the beginning.
    assert trace.peak.stage == "step"
    assert trace.peak.by_category()["temporary"] >= weights


def test_gradients_are_added_in_place_where_autograd_does_so():
    """x reaches the sum by three ways: its gradient is added up in the memory of the first."""

    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x):
            x = x * self.layer.weight
            return x.sin() + x.cos() + x.tanh()

    trace = replay(Three(), Spec((1024, 1024)), mode="training", steps=1, workspaces=NONE)
    backward = [s for s in trace.storages if s.stage == "backward" and s.n_bytes == 4 * MIB]
    assert not [s for s in backward if s.op == "aten::add.Tensor"]


def test_sums_of_a_models_own_backward_pass_are_new_tensors():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            first, second = x * 2, x * 3
            return first + second

    class Model(nn.Linear):
        def forward(self, x):
            return Sum.apply(x * self.weight)

    trace = replay(Model(1, 1), Spec((64, 64)), mode="training", steps=1, workspaces=NONE)
    assert [s.op for s in trace.storages].count("aten::add.Tensor") == 1


def test_checkpointed_parts_are_computed_again():
    class Checkpointed(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    def block():
        return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(256, 256), nn.Sigmoid())])

    plain = nn.Sequential(block(), block())
    wrapped = nn.Sequential(Checkpointed(block()), Checkpointed(block()))
    spec = Spec((4096, 256))
    kept = {
        name: replay(model, spec, mode="training", steps=1, workspaces=NONE)
        for name, model in (("plain", plain), ("wrapped", wrapped))
    }
    image = 4096 * 256 * 4
    after = {name: trace.bytes_at("forward") for name, trace in kept.items()}
    assert after["plain"] - after["wrapped"] == 6 * image
    assert kept["wrapped"].peak_bytes < kept["plain"].peak_bytes - 2 * image
    again = [c for c in kept["wrapped"].modules if c.stage == "backward"]
    assert {c.module for c in again} >= {"0.inner.0", "1.inner.7"}


def test_allocations_know_module_line_and_stage():
    trace = replay(UNet(), Spec((1, 1, 64, 64)), mode="training", steps=1, workspaces=NONE)
    joined = next(s for s in trace.storages if s.op == "aten::cat")
    assert (joined.module, joined.stage) == ("", "forward")
    assert "models.py:" in joined.line
    gradient = next(s for s in trace.storages if s.category == "gradients")
    assert gradient.module == "last"
    of_relu = next(s for s in trace.storages if s.op == "aten::threshold_backward")
    assert of_relu.module == "up_a.5"


def test_values_asked_for_are_named_by_line():
    def function(x):
        if x.sum().item() > 0:
            return x
        return -x

    with pytest.raises(DataDependentError, match=r"test_replay\.py:\d+: this line needs"):
        replay(function, Spec((3,)))


@pytest.mark.parametrize(
    "take",
    [lambda x: x[x > 0], lambda x: x.masked_select(x > 0), lambda x: x.flatten()[x.view(-1) > 0]],
)
def test_all_items_are_counted_where_a_mask_takes_some(take):
    trace = replay(take, Spec((256, 4)), workspaces=Workspaces.none())
    assert trace.storages[-1].n_bytes == 4 * 1024
    assert re.search(r"test_replay\.py:\d+ selects items by a mask", trace.notes[0])


def test_a_module_that_cannot_take_its_input_is_named_with_the_shape():
    model = nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1))
    with pytest.raises(TraceError, match=r"^1: Conv2d\(3, 4, .*\) cannot take 1x1x8x8: Inv"):
        replay(model, Spec((1, 1, 8, 8)))


def test_compiled_modules_are_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0]._compiled_call_impl = model[0]._call_impl  # what model[0].compile() sets
    with pytest.raises(TraceError, match=r"the module 0 was compiled by torch\.compile"):
        replay(model, Spec((1, 2)))


def test_lazy_modules_are_refused_by_name():
    with pytest.raises(TraceError, match=r"weight.*Call the model once"):
        replay(nn.LazyLinear(3), Spec((1, 2)))


def test_marks_are_found_by_name():
    with Replay(workspaces=NONE) as record:
        x = record.input(Spec((128,)))
        record.mark("one")
        y = x + 1
        record.mark("two")
        del y
    trace = record.trace()
    assert (trace.bytes_at("one"), trace.bytes_at("two")) == (512, 1024)
    with pytest.raises(KeyError, match="The marks are: one, two"):
        trace.bytes_at("three")


def test_output_and_loss_are_alive_until_those_of_the_next_step_are_there():
    model = nn.Conv2d(1, 8, 1)
    trace = replay(model, Spec((1, 1, 64, 64)), mode="training", steps=3, workspaces=NONE)
    outputs = [s for s in trace.storages if s.op == "aten::convolution"]
    assert len(outputs) == 3
    marks = [m.event for m in trace.marks if m.name in ("forward", "backward")]
    alive = [
        sum(s.born <= event and (s.died is None or s.died > event) for s in outputs)
        for event in marks
    ]
    assert alive == [1] * 6
    # The first is there while the second is made.
    assert outputs[0].died > outputs[1].born


@pytest.mark.parametrize("loss", [nn.BCELoss, nn.MSELoss, nn.SmoothL1Loss])
def test_the_sum_of_a_loss_has_the_storage_of_its_items(loss):
    target = Spec((4, 1, 64, 64))
    trace = replay(
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sigmoid()), target, mode="training",
        loss=loss(), targets=[target], workspaces=NONE,
    )  # fmt: skip
    (first, _) = (s for s in trace.storages if s.op.endswith(("_loss", "_entropy")))
    assert (first.n_bytes, first.shape) == (4 * 4 * 64 * 64, ())


class Joined(nn.Module):
    """An image made larger, joined to another: the gradient of the first is a part."""

    def __init__(self, ndim: int, mode: str) -> None:
        super().__init__()
        self.first = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[ndim - 1](1, 4, 1)
        self.larger = nn.Upsample(scale_factor=2, mode=mode)

    def forward(self, x):
        enlarged = self.larger(self.first(x))
        return torch.cat([enlarged, enlarged.detach()], 1)


@pytest.mark.parametrize(
    ("ndim", "mode"),
    [(1, "nearest"), (2, "nearest"), (3, "nearest"), (2, "bilinear"), (3, "trilinear"),
     (2, "nearest-exact")],
)  # fmt: skip
def test_a_part_of_a_gradient_is_copied_where_it_is_made_smaller(ndim, mode):
    def copies(model, **options):
        spec = Spec((2, 1, *[16] * ndim))
        trace = replay(model, spec, mode="training", workspaces=NONE, **options)
        own = [s for s in trace.storages if s.category == "workspace" and "upsample" in s.op]
        return [storage.n_bytes for storage in own]

    joined = Joined(ndim, mode)
    assert copies(joined) == 2 * [4 * 2 * 4 * 32**ndim]
    # One that is all of it is not.
    alone = nn.Sequential(joined.first, nn.Upsample(scale_factor=2, mode=mode))
    assert not copies(alone, loss=lambda enlarged: (enlarged * enlarged).sum())


class Tenfold(nn.Module):
    """An output ten times as large as the input, from a matrix product."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 5120, bias=False)

    def forward(self, x):
        return self.layer(x)


def test_a_loop_keeps_its_last_output_beside_the_next():
    output = 4 * 4096 * 5120

    def peak(**options):
        return replay(Tenfold(), Spec((4096, 512)), **options).peak_bytes

    once = peak()
    assert peak(steps=2) == peak(steps=3) == once + output
    assert peak(steps=2, keep_output=False) == once


def test_a_second_pass_has_the_workspace_that_the_first_has_left():
    """A first layer that is large before any matrix product, as in EfficientNet."""
    model = nn.Sequential(nn.Conv2d(3, 64, 1), nn.MaxPool2d(128), nn.Flatten())
    model.append(nn.Linear(64, 2, bias=False))
    spec = Spec((16, 3, 128, 128))
    one, two = (replay(model, spec, steps=n, keep_output=False) for n in (1, 2))
    assert two.peak_bytes == one.peak_bytes + CUBLAS_BYTES
    assert replay(model, spec, steps=3, keep_output=False).peak_bytes == two.peak_bytes


def test_a_training_loop_may_drop_its_output_before_the_backward_pass():
    def peak(keep):
        model, spec = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5120)), Spec((4096, 8))
        return replay(model, spec, mode="training", keep_output=keep, workspaces=NONE).peak_bytes

    assert peak(True) > peak(False)
