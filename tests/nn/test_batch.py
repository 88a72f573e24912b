"""The largest batch: its prediction, bounds, verification by a step, and wrong arguments."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.errors import MaxslicesError
from maxslices.nn import (
    ModelArgumentError,
    NoDeviceError,
    TooLargeError,
    max_batch_size,
    max_patch_shape,
    memory_report,
    reduce_memory,
)
from maxslices.nn.fit import largest, size_search
from maxslices.nn.fit.real_step import StepPeak
from maxslices.nn.memory_budget import MemoryBudget
from maxslices.nn.replay import Spec, Workspaces, replay
from maxslices.nn.replay.workspaces import CONVOLUTIONS

from .networks import Small, Two, half

MEMORY = CONTEXT_BYTES + 200 * 10**6
LIMIT = 200 * 10**6


def fits(model, n, mode="inference", **options):
    model = model.eval() if mode == "inference" else model
    trace = replay(model, Spec((n, 1, 64, 64)), mode=mode, steps=2, **options)
    return trace.fits(LIMIT)


@pytest.mark.parametrize(
    ("mode", "optimizer"), [("inference", None), ("training", None), ("training", "adam")]
)
def test_the_largest_fits_and_a_twentieth_more_does_not(mode, optimizer):
    size = max_batch_size(
        Small(), (64, 64), memory=MEMORY, safety_factor=1, mode=mode, optimizer=optimizer
    )
    optimizer_class = {"adam": torch.optim.Adam, None: None}[optimizer]
    assert fits(Small(), int(size), mode, optimizer=optimizer_class)
    assert not fits(Small(), int(1.05 * size) + 1, mode, optimizer=optimizer_class)
    assert size.result.predicted == size
    assert size.result.limit_bytes == LIMIT
    assert not size.result.is_verified


def test_a_safety_factor_leaves_memory_and_never_less_than_its_part_of_the_batch():
    size = max_batch_size(Small(), (64, 64), memory=MEMORY)
    assert int(0.9 * size.result.predicted) <= size <= size.result.predicted
    less = max_batch_size(Small(), (64, 64), memory=MEMORY, safety_factor=0.5)
    assert less < 0.7 * size
    large = max_batch_size(Small(), (512, 512), memory=MEMORY)
    assert large >= max(1, int(0.9 * large.result.predicted))


def test_the_bound_is_returned_with_a_warning():
    with pytest.warns(UserWarning, match="max_batch_size=7"):
        size = max_batch_size(Small(), (64, 64), memory=MEMORY, max_batch_size=7)
    assert size == 7
    assert size.result.at_bound


@pytest.mark.parametrize("most", [1, 3, 4, 40])
def test_no_batch_beyond_the_bound_is_replayed(most):
    class Refuses(torch.nn.Conv2d):
        def forward(self, x):
            if len(x) > most:
                raise RuntimeError("too many")
            return super().forward(x)

    model = Refuses(1, 1, 3)
    with pytest.warns(UserWarning, match="reached its bound"):
        assert max_batch_size(model, (64, 64), 1, memory=MEMORY, max_batch_size=most) == most
    with pytest.raises(MaxslicesError, match=": too many"):
        max_batch_size(model, (64, 64), 1, memory=MEMORY)


def test_a_batch_of_one_that_does_not_fit_is_an_error():
    with pytest.raises(TooLargeError, match="a batch of 1 of") as caught:
        max_batch_size(Small(), (4096, 4096), memory=MEMORY)
    assert isinstance(caught.value, RuntimeError)


def test_the_stated_need_exceeds_the_stated_memory():
    model = torch.nn.Conv2d(1, 1, 1)  # a few kB, for which the allocator reserves 2 MiB
    for find, size in ((max_batch_size, (8, 8)), (max_patch_shape, 2)):
        with pytest.raises(TooLargeError, match=r"it needs 2\.10 MB, and there are 1\.00 MB"):
            find(model, size, in_channels=1, memory=CONTEXT_BYTES + 10**6)


def test_a_batch_that_fits_with_less_workspace_is_explained():
    result = max_batch_size(Small(), (64, 64), memory=MEMORY).result
    assert "if there is room" not in str(result)
    squeezed = replace(result, limit_bytes=result.allocated_bytes - 1)
    assert "convolutions use less workspace" in str(squeezed)


def test_a_prediction_function_is_replayed():
    plain = max_batch_size(Small(), (64, 64), memory=MEMORY, safety_factor=1)
    halves = max_batch_size(
        Small(), (64, 64), memory=MEMORY, safety_factor=1, prediction_function=half
    )
    assert halves > plain


def test_the_model_is_left_alone():
    model = Small()
    model.train()
    model.inner.eval()
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    max_batch_size(model, (64, 64), memory=MEMORY)
    max_batch_size(model, (64, 64), memory=MEMORY, mode="training", optimizer="sgd")
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_answer_is_an_int_that_survives_pickling():
    size = max_batch_size(Small(), (64, 64), memory=MEMORY)
    again = pickle.loads(pickle.dumps(size))
    assert (again, again.result) == (size, size.result)
    assert list(range(100))[: min(size, 3)] == [0, 1, 2]
    assert f"Batch size {size} for inference" in str(size.result)


@pytest.mark.parametrize(
    ("model", "patch", "options", "message"),
    [
        (torch.nn.Conv2d(3, 3, 1), (512, 512), {}, None),
        (torch.nn.LayerNorm(7), (64, 64), {}, "64x64 with 1, 3, 4, 2 channels: .*or in_channels"),
        (Small(), (64, 64), {"in_channels": 3}, "cannot take 2x3x64x64"),
        (Small(), (63, 64), {}, "2x1x63x64: Sizes of tensors must match"),
        (Small(), (64,), {}, "2x1x64"),
        (Small(), 64, {}, r"such as \(256, 256\)"),
        (Small(), (64, 0), {}, "at least 1, not 0"),
        (Small(), (64, 64), {"safety_factor": 1.5}, "at most 1, not 1.5"),
        (Small(), (64, 64), {"max_batch_size": 0}, "at least 1, not 0"),
        (Small(), (64, 64), {"mode": "train"}, "'training', not 'train'"),
        (Small(), (64, 64), {"optimizer": "adam"}, "goes with mode='training'"),
        (Small(), (64, 64), {"mode": "training", "optimizer": "lion"}, "sgd, momentum, adam"),
        (
            Small(),
            (64, 64),
            {"mode": "training", "optimizer": 5},
            "5 is not the name of an optimizer",
        ),
        (Small(), (64, 64), {"mode": "training", "optimizer": lambda p: 5}, "It returned a int"),
        (
            Small(),
            (64, 64),
            {"mode": "training", "loss": "mse"},
            r"such as nn.MSELoss\(\), not 'mse'",
        ),
        (Small(), (64, 64), {"mode": "training", "loss": torch.nn.MSELoss}, "the class MSELoss"),
        (Two(), (64, 64), {}, "'y'"),
    ],
)
def test_wrong_arguments_are_named(model, patch, options, message):
    if message is None:
        assert max_batch_size(model, patch, memory=MEMORY) > 1
        return
    with pytest.raises(MaxslicesError, match=message) as caught:
        max_batch_size(model, patch, memory=MEMORY, **options)
    assert "\n" not in str(caught.value)


def test_without_memory_a_device_is_needed():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(NoDeviceError, match=r"memory='RTX 4090' \(--memory") as caught:
        max_batch_size(Small(), (64, 64))
    assert isinstance(caught.value, RuntimeError)


@pytest.fixture
def device(monkeypatch):
    """A card on which nothing above a number of images runs."""
    tried = []

    class Card:
        most = 10**9
        error = None

    def run(step, inputs, device, limit_bytes):
        tried.append(inputs[0].shape[0])
        if Card.error is not None:
            raise Card.error
        return StepPeak(limit_bytes, limit_bytes) if tried[-1] <= Card.most else None

    place = torch.device("cuda", 0)
    monkeypatch.setattr(size_search, "run_within", run)
    monkeypatch.setattr(largest, "device_of", lambda *_: place)
    monkeypatch.setattr(largest, "budget_of", lambda *_: MemoryBudget(LIMIT, "a card", place))
    monkeypatch.setattr(size_search, "measured_workspaces", lambda *_: (Workspaces.none(), 0.0))
    Card.tried = tried
    return Card


def test_one_real_step_verifies_the_answer(device):
    size = max_batch_size(Small(), (64, 64))
    assert device.tried == [size]
    assert size.result.is_verified
    assert size.result.measured.size == size


@pytest.mark.parametrize("part", [0.8, 0.97, 0.99, 1, 1.01, 1.04])
def test_without_a_factor_the_largest_that_runs_is_found_to_within_one(device, part):
    device.most = int(part * max_batch_size(Small(), (64, 64)).result.predicted)
    del device.tried[:]
    size = max_batch_size(Small(), (64, 64), safety_factor=1)
    assert device.most - 1 <= size <= device.most
    assert size == size.result.measured.size
    assert size == max(t.size for t in size.result.tried if t.fits)
    assert len(device.tried) == len(set(device.tried)) < 16


def test_a_step_that_fails_is_followed_by_smaller_ones(device):
    device.most = 0.97 * max_batch_size(Small(), (64, 64))
    size = max_batch_size(Small(), (64, 64))
    assert device.most - 2 <= size <= device.most
    assert size == max(t.size for t in size.result.tried if t.fits)
    device.most = 0
    with pytest.raises(TooLargeError):
        max_batch_size(Small(), (64, 64))


@pytest.mark.parametrize("model", [None, 5, torch.nn.ReLU], ids=str)
@pytest.mark.parametrize(
    "find",
    [
        lambda model: max_batch_size(model, (8, 8), in_channels=1, memory="1GB"),
        lambda model: max_patch_shape(model, 2, in_channels=1, memory="1GB"),
        lambda model: memory_report(model, (2, 3)),
        lambda model: reduce_memory(model, (2, 3), "2GB"),
    ],
)
def test_an_argument_other_than_a_model_is_named(find, model):
    with pytest.raises(ModelArgumentError, match=r"not a (NoneType|int|type)") as caught:
        find(model)
    assert isinstance(caught.value, ValueError)


def test_errors_of_the_model_are_raised(device):
    device.error = KeyError("of the model")
    with pytest.raises(KeyError, match="of the model"):
        max_batch_size(Small(), (64, 64))


def test_a_batch_beyond_a_gap_says_so():
    class Gap:
        is_linear = True

        def fits(self, n, limit_bytes):
            return n <= 26 or n == 29

    (note,) = size_search.gap_notes(Gap(), 29, 0)
    assert "29 fit" in note
    assert "28 do not" in note
    assert size_search.gap_notes(Gap(), 26, 0) == ()


def test_workspaces_are_measured_at_the_number_that_is_predicted(device, monkeypatch):
    """Of more than 40 images, another kernel takes 1/2 MiB an image, not 1/16."""
    measured = []

    def measured_workspaces(calls, _device):
        calls = [call for call in calls if call.kind in CONVOLUTIONS]
        measured.append(calls[0].batch)
        at = {n: n * (2**19 if n > 40 else 2**16) for n in measured}
        table = {call.signature: tuple(sorted(at.items())) for call in calls}
        return Workspaces("a card", table=table), 0.1

    monkeypatch.setattr(size_search, "measured_workspaces", measured_workspaces)
    size = max_batch_size(Small(), (64, 64), keep_output=False)
    assert size.result.predicted == measured[-1] > 40
    assert len(set(measured)) == len(measured) > 1
    assert size.result.calibration_s == pytest.approx(0.1 * len(measured))
    assert size.result.workspaces == "a card"


class WideFromNine(torch.nn.Module):
    """Takes another way from nine images on, as code that works in chunks may."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(1, 4, 3)

    def forward(self, x):
        y = self.layer(x)
        return torch.cat([y] * 8, 1) if len(x) > 8 else y


def test_the_largest_batch_is_replayed_itself():
    n = max_batch_size(WideFromNine(), (256, 256), memory="8GB")
    image_bytes = 254 * 254 * 4 * 4
    assert 8 < n < 8 * 10**9 / (8 * image_bytes)
    assert n.result.predicted >= n


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_input_has_the_dtype_of_the_model(dtype):
    """With an input of float32, a model in float64 was predicted to fit 1.9 times as many."""
    model = torch.nn.Conv2d(2, 8, 3).to(dtype)
    arguments = {"memory": "1GB", "max_batch_size": 20_000}
    assert max_batch_size(model, (64, 64), **arguments) == max_batch_size(
        model, (64, 64), dtype=dtype, **arguments
    )


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (torch.nn.Conv2d(2, 8, 3, bias=False), (1, 2, 9, 9)),
        (torch.nn.Linear(9, 4), (1, 9)),
        (torch.nn.Linear(9, 4), (1, 3, 9)),
    ],
)
def test_an_input_of_another_dtype_than_the_weights_is_an_error(model, shape):
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(MaxslicesError, match="Pass inputs with the dtype of the weights"):
            max_batch_size(model, Spec(shape, dtype), memory="1GB")
