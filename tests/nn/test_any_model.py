"""Models with several arguments or results, or called by keyword or by another method."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass, fields

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.errors import EstimatorError
from maxslices.nn import (
    ModelArgumentError,
    Spec,
    TooLargeError,
    max_batch_size,
    memory_report,
    reduce_memory,
)
from maxslices.nn.reduce import Rewrite, apply_rewrites, restore
from maxslices.nn.replay import Workspaces, replay
from maxslices.nn.replay.nested import concat_outputs, default_loss, leaves, map_leaves
from maxslices.nn.replay.replay_step import StepLoop
from maxslices.nn.step.model_step import run_step

from .networks import Calls

NONE = Workspaces.none()
WIDTH = 64


@dataclass(frozen=True)
class Features:
    """A dataclass that torch does not know as a container."""

    tokens: torch.Tensor
    mask: torch.Tensor | None = None
    n: int = 1


class Output(OrderedDict):
    """A mapping whose items are attributes too, as transformers return them."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Block(nn.Module):
    """Takes and returns a dataclass."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, features):
        x = features.tokens + self.outer(functional.gelu(self.inner(self.norm(features.tokens))))
        return Features(x, features.mask)


class Transformer(nn.Module):
    """Called by keywords. Returns a mapping with logits, features and, with labels, a loss."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, input_ids, attention_mask=None, labels=None):
        if attention_mask is not None and attention_mask.all():
            attention_mask = None
        features = Features(self.embed(input_ids), attention_mask)
        for block in self.blocks:
            features = block(features)
        x = features.tokens
        if features.mask is not None:
            x = x * features.mask[..., None].to(x.dtype)
        output = Output(logits=self.head(x), features=x)
        if labels is not None:
            output["loss"] = functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
        return output

    def score(self, input_ids):
        """Return a tensor: a method of its own."""
        return self.forward(input_ids).logits.mean(-1)


class OnlyMethods(nn.Module):
    """Has no forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x, scale):
        return self.layer(x) * scale


class Segments(nn.Module):
    """Returns maps by name, as torchvision's segmentation models do."""

    in_channels = 3

    def __init__(self, auxiliary=False):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU())
        self.heads = nn.ModuleDict({"out": nn.Conv2d(16, 5, 1)})
        if auxiliary:
            self.heads["aux"] = nn.Conv2d(16, 5, 1)

    def forward(self, x):
        x = self.body(x)
        return OrderedDict((name, head(x)) for name, head in self.heads.items())


TOKENS = Spec((16, 128), torch.long)


def test_containers_are_traversed_and_rebuilt():
    value = Output(a=Features(1, (2, UserDict(b=3))), c=[4])
    assert list(leaves(value)) == [1, 2, 3, 1, 4]
    output = map_leaves(lambda n: n + 1, value)
    assert list(leaves(output)) == [2, 3, 4, 2, 5]
    assert [type(each) for each in (output, output.a, output.a.mask[1])] == [
        Output,
        Features,
        UserDict,
    ]
    assert list(leaves(value)) == [1, 2, 3, 1, 4]  # the given one is as it was
    assert [field.name for field in fields(output.a)] == ["tokens", "mask", "n"]


def test_results_of_parts_are_concatenated():
    output = concat_outputs(
        [Output(a=Features(torch.full((2, 3), part), None)) for part in (1.0, 2.0)]
    )
    assert output.a.tokens.tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
    for part in (torch.tensor(1.0), object()):
        with pytest.raises(RuntimeError):
            concat_outputs([(part,), (part,)])
    with pytest.raises(RuntimeError, match="parts return different values"):
        concat_outputs([(1,), (2,)])


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_inputs_by_keyword_need_the_same_memory_as_by_position(kind):
    model = Transformer()
    mask = torch.ones(16, 128, dtype=torch.bool)
    named = memory_report(
        model, kind(input_ids=TOKENS, attention_mask=mask), "training", workspaces=NONE
    )
    placed = memory_report(model, (TOKENS, mask), "training", workspaces=NONE)
    assert named.allocated_bytes == placed.allocated_bytes
    assert named.inputs == ("16x128 int64", "16x128 bool")
    assert [part.path for part in named.parts] == [part.path for part in placed.parts]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_step_does_not_see_changes_of_its_batch_by_the_step_before(mode):
    class Fills(nn.Linear):
        def forward(self, batch):
            assert batch.keys() == {"x"}
            batch["y"] = super().forward(batch["x"])
            return batch["y"].relu()

    trace = replay(Fills(64, 64), {"x": Spec((64, 64))}, mode=mode, steps=2, workspaces=NONE)
    first, second = (s for s in trace.storages if s.op == "aten::addmm")
    assert first.died < second.born  # with its batch, which the next replaces
    run_step(Fills(64, 64), [{"x": torch.ones(64, 64)}], StepLoop(mode))


def test_a_mask_known_by_its_shape_counts_and_is_noted():
    model = Transformer()
    shape = memory_report(model, {"input_ids": TOKENS, "attention_mask": TOKENS}, "forward")
    ones = torch.ones(16, 128, dtype=torch.long)
    full = memory_report(model, {"input_ids": TOKENS, "attention_mask": ones}, "forward")
    half = ones.clone()
    half[0, 3:] = 0
    masked = memory_report(model, {"input_ids": TOKENS, "attention_mask": half}, "forward")
    assert shape.allocated_bytes == masked.allocated_bytes > full.allocated_bytes
    assert "only the shape is given" in " ".join(str(shape).split())
    assert not masked.trace.notes


def test_sizes_never_come_from_unknown_values():
    def cut(x, lengths):
        return x[:, : int(lengths.max())] * 2

    x, lengths = Spec((4, 100)), torch.tensor([3, 50, 7])
    trace = replay(cut, x, lengths, workspaces=NONE)
    assert trace.peak_bytes == 2048 + 512 + 1024  # the input, the lengths, 4 x 50 numbers
    with pytest.raises(EstimatorError, match="Pass inputs of integers as tensors"):
        replay(cut, x, Spec((3,), torch.long), workspaces=NONE)

    def changed(x, lengths):
        lengths.add_(x.sum().long())
        return cut(x, lengths)

    with pytest.raises(EstimatorError, match="needs the value of a tensor"):
        replay(changed, x, lengths, workspaces=NONE)


def test_a_mask_of_ones_that_a_model_makes_itself_masks_nothing():
    def attends(x):
        mask = torch.ones(4, 128, device=x.device)  # as OPT and BART make it, of floats
        return x * 2 if torch.all(mask == 1) else (x[:, None] * mask[0] - x[:, None]).exp()

    def drops(x):
        mask = torch.ones(4, 128, device=x.device).bernoulli_(0.5)
        return x * 2 if torch.all(mask == 1) else x

    trace = replay(attends, Spec((4, 128)), workspaces=NONE)
    assert trace.peak_bytes == 3 * 4 * 128 * 4  # input, mask and result
    with pytest.raises(EstimatorError, match="needs the value of a tensor"):
        replay(drops, Spec((4, 128)), workspaces=NONE)


def test_tokens_are_looked_up_by_a_list_of_places():
    def padded(tokens):
        return tokens * 2 if 7 in tokens[:, [-1, 0]] else tokens.float()

    trace = replay(padded, Spec((4, 128), torch.long), workspaces=NONE)
    assert "only the shape is given" in " ".join(trace.notes)
    same = torch.full((4, 128), 7)
    assert not replay(padded, same, workspaces=NONE).notes
    with pytest.raises(EstimatorError, match="needs the value of a tensor"):
        replay(padded, torch.arange(512).view(4, 128), workspaces=NONE)


class Anneals(nn.Module):
    """Decides by buffers of one number, as a masked parallel spiking neuron and a warm-up do."""

    def __init__(self, masked):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("masked", torch.as_tensor(masked))
        self.register_buffer("n_calls", torch.tensor(0))

    def forward(self, x):
        self.n_calls += 1
        x = self.layer(x)
        if self.n_calls >= 2:  # from the second step on
            x = torch.cat([x, x], 1)
        return x * 2 if self.masked >= 1.0 else x.repeat(1, 4)


def test_a_buffer_of_one_number_decides_as_in_the_model():
    def first(masked, steps):
        trace = replay(Anneals(masked), Spec((256, 64)), mode="training", steps=steps)
        return max(s.n_bytes for s in trace.storages if s.module == "")

    x = 256 * 64 * 4
    assert [first(1.0, 1), first(0.0, 1), first(0.0, 2)] == [x, 4 * x, 8 * x]
    model = Anneals(0.0)
    memory_report(model, (256, 64))
    assert model.n_calls == 0


def test_a_loss_that_the_model_computed_is_the_loss():
    output = Transformer()(torch.zeros(2, 3, dtype=torch.long), labels=torch.zeros(2, 3).long())
    assert default_loss(output) is output.loss
    output.pop("loss")
    torch.testing.assert_close(default_loss(output), output.logits.sum() + output.features.sum())


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy])
def test_a_loss_of_torch_takes_the_maps_that_are_returned_by_name(loss):
    model = Segments()

    def by_hand(output, target):
        return loss(output["out"], target)

    actual = memory_report(model, (4, 3, 32, 32), loss=loss, workspaces=NONE)
    same = memory_report(
        model, (4, 3, 32, 32), loss=by_hand, targets=Spec((4, 32, 32), torch.long), workspaces=NONE
    )
    assert actual.allocated_bytes == same.allocated_bytes
    two = memory_report(Segments(True), (4, 3, 32, 32), loss=loss, workspaces=NONE)
    assert two.allocated_bytes > actual.allocated_bytes
    picked = memory_report(Segments(True), (4, 3, 32, 32), loss=by_hand, workspaces=NONE)
    assert actual.allocated_bytes < picked.allocated_bytes < two.allocated_bytes * 2


def test_a_loss_without_a_tensor_is_an_error_with_advice():
    model = Calls(lambda m, x: {"nested": {"x": m.layer(x)}}, layer=nn.Linear(4, 4))
    with pytest.raises(
        ModelArgumentError, match=r"returns 'nested' \(4x4\).*a loss that picks one"
    ):
        memory_report(model, (4, 4), loss=nn.MSELoss())


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (torch.optim.Adafactor, "a step of Adafactor needs values of tensors"),
        (torch.optim.lr_scheduler.StepLR, "optimizer cannot be made from a list .*'step_size'"),
    ],
)
def test_an_optimizer_that_cannot_be_replayed_is_named(optimizer, message):
    with pytest.raises(EstimatorError, match=message):
        memory_report(nn.Linear(4, 4), (4, 4), optimizer=optimizer)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, target: 1.0, "not a float"),
        (lambda output, target: None, "not nothing"),
        (lambda output, target: output, "not a tensor of .*: average it"),
        (lambda output, target: output.detach().mean(), "does not depend on a trainable parameter"),
    ],
)
def test_an_invalid_loss_is_described(loss, message):
    net = nn.Sequential(nn.Conv2d(2, 3, 3))  # whose channels are looked for
    with pytest.raises(EstimatorError, match=message):
        memory_report(nn.Linear(5, 3), (4, 5), "training", loss=loss)
    with pytest.raises(ModelArgumentError, match=message):
        max_batch_size(net, (9, 9), memory="1GB", mode="training", loss=loss)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused(kind):
    with pytest.raises(EstimatorError, match="Omit sparse=True"):
        memory_report(kind(9, 4, sparse=True), Spec((2, 3), torch.long), "training", "sgd")


def test_a_method_is_called_in_place_of_forward():
    model = OnlyMethods()
    report = memory_report(
        model, ((4, 8), 2.0), "training", prediction_function="encode", workspaces=NONE
    )
    assert [part.path for part in report.parts] == ["", "layer"]
    same = memory_report(
        model, ((4, 8), 2.0), "training", workspaces=NONE,
        prediction_function=lambda output, x, scale: output.encode(x, scale),
    )  # fmt: skip
    assert report.allocated_bytes == same.allocated_bytes
    with pytest.raises(ModelArgumentError, match="has no forward; its own methods are encode"):
        memory_report(model, (4, 8))
    with pytest.raises(ModelArgumentError, match="no method 'encod'; its own methods are encode"):
        memory_report(model, (4, 8), prediction_function="encod")


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()])
def test_a_model_of_mappings_and_dataclasses_is_reduced_and_its_gradients_stay(loss):
    torch.manual_seed(0)
    model = Transformer().double()
    ids = torch.randint(0, 50, (8, 512))
    mask = torch.ones(8, 512, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": mask}
    report = memory_report(model, inputs, "training", "sgd", loss=loss)
    budget = CONTEXT_BYTES + int(0.8 * report.needed_bytes)
    targets = torch.zeros(8, 50, dtype=torch.long)

    def gradients():
        model.zero_grad()
        output = model(**{**inputs, "input_ids": ids[:, :50], "attention_mask": mask[:, :50]})
        value = default_loss(output) if loss is None else loss(output["logits"], targets)
        value.backward()
        return [p.grad.clone() for p in model.parameters()]

    wanted = gradients()
    _, summary = reduce_memory(model, inputs, budget, loss=loss, optimizer="sgd")
    assert summary.fits
    assert summary.rewrites
    for actual, grad in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(actual, grad, rtol=1e-10, atol=1e-12)
    restore(model, summary)


def test_a_whole_model_called_by_keyword_runs_in_parts_of_its_batch():
    torch.manual_seed(0)
    model = Transformer().double()
    ids = torch.randint(0, 50, (6, 9))
    mask = torch.ones(6, 9, dtype=torch.long)
    mask[5, 4:] = 0

    def run():
        model.zero_grad()
        output = model(input_ids=ids, attention_mask=mask)
        default_loss(output).backward()
        return [output.logits, *(p.grad.clone() for p in model.parameters())]

    wanted = run()
    apply_rewrites(model, {"": Rewrite("checkpoint", (), 2)})
    for actual, each in zip(run(), wanted, strict=True):
        torch.testing.assert_close(actual, each, rtol=1e-10, atol=1e-12)


def test_a_batch_is_found_for_a_method_and_for_maps_by_name():
    assert max_batch_size(Segments(), (64, 64), memory="800MB", mode="training",
                          loss=nn.CrossEntropyLoss(), optimizer="adagrad") > 1  # fmt: skip
    named = max_batch_size(Segments(), (64, 64), memory="800MB", prediction_function="forward")
    assert named == max_batch_size(Segments(), (64, 64), memory="800MB")


@pytest.mark.parametrize("less_mib", [1, 6, 40])
def test_a_budget_that_nothing_reaches_is_a_clear_error(less_mib):
    model, x = nn.Linear(3000, 3000), (4, 3000)  # weights alone: nothing to compute again
    needed = memory_report(model, x, "training", "adam").needed_bytes
    with pytest.raises(TooLargeError, match="a card of"):
        reduce_memory(model, x, needed + CONTEXT_BYTES - (less_mib << 20))
