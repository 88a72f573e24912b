"""Recurrent layers as one operator of cuDNN: results, reserve, gradients, time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from maxslices.errors import EstimatorError
from maxslices.nn import Spec, max_batch_size, memory_report
from maxslices.nn.replay import Workspaces, replay
from maxslices.nn.replay.recurrent import CELLS, Sizes, flops

NONE = Workspaces.none()
KINDS = {"rnn_tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Labels(nn.Module):
    """Labels sequences of features, as speech recognition does."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.layers = kind(20, 32, batch_first=True, **options)
        self.head = nn.Linear(32 * (2 if self.layers.bidirectional else 1), 5)

    def forward(self, x):
        return self.head(self.layers(x)[0])


class Packed(nn.Module):
    """Runs sequences of several lengths."""

    def __init__(self):
        super().__init__()
        self.layers = nn.GRU(20, 32, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return pad_packed_sequence(self.layers(packed)[0])[0]


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 3}])
@pytest.mark.parametrize("name", KINDS)
def test_results_have_the_shapes_that_torch_returns(name, options):
    model = KINDS[name](20, 32, **options)
    wanted = model(torch.zeros(7, 4, 20))
    seen = []

    def run(x):
        seen.append(made_layers(x))

    from maxslices.nn.replay import Replay

    with Replay(workspaces=NONE) as record:
        made_layers = record.model(model)
        run(record.input(Spec((7, 4, 20))))
    flat = torch.utils._pytree.tree_leaves
    assert [t.shape for t in flat(seen[0])] == [t.shape for t in flat(wanted)]


def sizes_of(kind, layers, directions, batch, steps, hidden, width, dtype, weights, **options):
    cell = CELLS[f"rnn_{kind}" if kind in ("relu", "tanh") else kind]
    return Sizes(cell, batch * steps, batch, hidden, width, layers, directions, dtype, weights,
                 **options)  # fmt: skip


@pytest.mark.parametrize(("name", "kept"), [("gru", 864_000_000), ("lstm", 736_000_000)])
def test_what_is_kept_is_what_was_published(name, kept):
    """Bytes of https://github.com/pytorch/pytorch/issues/2895: 4 layers of 320 units."""
    assert sizes_of(name, 4, 1, 25, 1000, 320, 123, torch.float32, 1).reserve_bytes() == kept


def answers_of_cudnn():
    """Yield sizes with cuDNN's workspaces in inference, training and backward, and its reserve."""
    file = Path(__file__).parent / "h100_recurrent.json"
    for row in json.loads(file.read_text())["rows"]:
        *sizes, dtype, is_packed, has_dropout, weight_bytes = row[:11]
        kind, layers, directions, _, _, hidden, _ = sizes
        dtype = getattr(torch, dtype)
        gates = {"gru": 3, "lstm": 4}.get(kind, 1)
        # Those of cuDNN have two biases for each gate.
        weights = weight_bytes // dtype.itemsize - 2 * layers * directions * gates * hidden
        layer_sizes = sizes_of(*sizes, dtype, weights, is_packed=is_packed, has_dropout=has_dropout)
        yield layer_sizes, row[11:]


def test_workspaces_are_those_that_cudnn_asks_for():
    rows = list(answers_of_cudnn())
    assert len(rows) == 400
    near = 0
    for sizes, (inference, training, backward, kept) in rows:
        predicted = (sizes.forward_bytes(False), sizes.forward_bytes(True), sizes.backward_bytes())
        expected = (inference, training, backward)
        for ours, theirs in zip(predicted, expected, strict=True):
            assert 0.9999 * theirs <= ours <= 1.3 * theirs
            near += ours <= 1.03 * theirs
        assert kept - 512 <= sizes.reserve_bytes() <= kept
    assert near >= 0.97 * 3 * len(rows)


@pytest.mark.parametrize("train", [False, True])
def test_a_step_takes_what_was_measured(train):
    """Measured peak on an H100 without the model and its input, in MB."""
    layers = nn.LSTM(128, 256, 2, batch_first=True).train(train)
    mode = "training" if train else "inference"
    trace = replay(layers, Spec((32, 200, 128)), mode=mode, workspaces=NONE, steps=1)
    measured = 149.293 if train else 67.241
    assert measured <= (trace.peak_bytes - trace.bytes_at("input")) / 1e6 <= 1.001 * measured


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_state_of_dropout_is_made_once_in_training_and_kept(dropout):
    """6,488,064 bytes on an H200: the one request of a tagger that was not replayed."""
    layers = nn.LSTM(7, 5, 2, dropout=dropout)

    def kept(mode):
        trace = replay(layers, Spec((3, 11, 7)), mode=mode, workspaces=Workspaces.allowance())
        return [w.n_bytes for w in trace.kept_workspaces() if "dropout" in w.kept_as]

    assert kept("training") == ([6_488_064] if dropout else [])
    layers.eval()
    assert kept("inference") == []


def test_the_gradient_of_the_output_is_gone_when_those_of_weights_are_made():
    # Distinct primes: a swapped factor shows. Weights are larger than the gradient of the output.
    layers = nn.GRU(7, 131, batch_first=True)
    trace = replay(layers, Spec((3, 5, 7)), mode="training", workspaces=NONE, steps=1)
    passing = [s.n_bytes for s in trace.storages if s.op.endswith("cudnn_rnn_backward")]
    assert 3 * 5 * 7 * 4 in passing  # the input, with time steps first
    assert 3 * 5 * 131 * 4 not in passing


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_step_keeps_the_reserve_until_its_backward_pass(kind):
    model = Labels(kind, num_layers=2)
    trace = replay(model, Spec((16, 50, 20)), mode="training", workspaces=NONE)
    kept = [s for s in trace.storages if "cudnn_rnn" in s.op and s.dtype == "uint8"]
    sizes = sorted({s.n_bytes for s in kept if s.category == "activations"})
    per_unit = 11 if kind is nn.LSTM else 13
    assert sizes == [16 * 50 * 32 * per_unit * 4]
    gradients = [s for s in trace.storages if s.category == "gradients"]
    weights = sum(p.nbytes for p in model.layers.parameters())
    assert weights in {s.n_bytes for s in gradients}  # one buffer for the gradients of all weights


def test_the_length_costs_no_time_and_the_batch_is_found():
    short = memory_report(Labels(), (8, 64, 20), "training", "adam", workspaces=NONE)
    long = memory_report(Labels(), (8, 4096, 20), "training", "adam", workspaces=NONE)
    # One operator each, however many time steps: 4096 were 60,000 operators in a loop.
    assert len(long.trace.events) == len(short.trace.events) < 200

    def labels(model, x):
        return model(x[:, 0])

    predicted = max_batch_size(Labels(), (512, 20), 1, memory="1GB", mode="training",
                           optimizer="adam", prediction_function=labels)  # fmt: skip
    assert predicted > 64


def test_sequences_of_several_lengths_are_replayed():
    lengths = torch.tensor([5, 9, 2])
    trace = replay(Packed(), Spec((9, 3, 20)), lengths, mode="training", workspaces=NONE)
    kept = [s for s in trace.storages if s.dtype == "uint8" and s.category == "activations"]
    assert {s.n_bytes for s in kept} == {16 * 32 * 2 * 6 * 4}  # 9 + 5 + 2 time steps
    with pytest.raises(EstimatorError, match="Pass inputs of integers as tensors"):
        replay(Packed(), Spec((9, 3, 20)), Spec((3,), torch.long), workspaces=NONE)


def test_half_precision_keeps_half():
    def kept(amp):
        trace = replay(Labels(), Spec((16, 50, 20)), mode="training", amp=amp, workspaces=NONE)
        whole = [s for s in trace.storages if s.dtype == "uint8" and s.category == "activations"]
        return max(s.n_bytes for s in whole)

    assert kept(torch.bfloat16) * 2 == kept(None)


def test_eval_mode_keeps_nothing_and_has_no_gradients():
    model = Labels().eval()
    trace = replay(model, Spec((16, 50, 20)), workspaces=NONE)
    whole = {s.n_bytes for s in trace.storages if s.dtype == "uint8" and s.category != "workspace"}
    assert whole <= {0}


def test_the_work_of_a_recurrent_layer_counts():
    x, weights = (50, 16, 20), [(128, 20), (128, 32), (128,), (128,)]
    assert flops(x, weights) == 2 * 50 * 16 * 128 * (20 + 32)
