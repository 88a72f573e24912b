"""Steps as people write them: random paths, logging, several models, closures, kept state."""

# ruff: noqa: NPY002 - the generators that all share are what is tested
from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from maxslices.nn import max_batch_size, max_patch_shape, memory_report
from maxslices.nn.nn_errors import DataDependentError, ModelArgumentError, TraceError
from maxslices.nn.replay import Spec, Workspaces, replay
from maxslices.nn.replay.replay_step import StepLoop
from maxslices.nn.step.model_step import run_step

from .networks import Calls, Small

NONE = Workspaces.none()


class Dropping(nn.Module):
    """Layers that are left out at random; `keep` draws, and says whether a layer is computed."""

    def __init__(self, keep, n=6):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(n))
        self.keep = keep

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            if self.keep():
                x = torch.tanh(layer(x))
        return x


DRAWS = {
    "torch": lambda: torch.rand(1) < 0.5,
    "torch, dropped": lambda: not torch.rand(()) < 0.5,
    "random": lambda: random.random() < 0.5,
    "numpy": lambda: np.random.rand() > 0.5,
}


@pytest.mark.parametrize("draws", DRAWS)
def test_the_longest_of_random_paths_is_reported(draws):
    whole = memory_report(Dropping(lambda: True), (32, 64), workspaces=NONE)
    for seed in range(3):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        report = memory_report(Dropping(DRAWS[draws]), (32, 64), workspaces=NONE)
        assert report.allocated_bytes == whole.allocated_bytes
        (note,) = report.trace.notes
        assert note.startswith("the step draws random numbers on the host")
    assert "draws random numbers" in str(report)


def test_the_model_s_own_generator_is_noticed():
    class Own(Dropping):
        def __init__(self):
            super().__init__(None)
            self.numbers = random.Random(3)

        def forward(self, x):
            self.keep = lambda: self.numbers.random() < 0.5
            return super().forward(x)

    whole = memory_report(Dropping(lambda: True), (32, 64), workspaces=NONE)
    model = Own()
    report = memory_report(model, (32, 64), workspaces=NONE)
    assert report.allocated_bytes == whole.allocated_bytes
    assert "(numbers)" in report.trace.notes[0]
    assert model.numbers.random() == random.Random(3).random()


def test_numbers_that_decide_nothing_are_not_mentioned():
    model = Calls(
        lambda m, x: m.layer(x) + random.random() * np.random.rand() * float(torch.rand(1)),
        layer=nn.Linear(64, 64),
    )
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
    report = memory_report(model, (32, 64), workspaces=NONE)
    assert report.trace.drawn_from == ("torch", "random", "numpy.random")
    assert report.trace.notes == ()
    after = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
    assert after == before


def test_the_largest_batch_is_that_of_the_longest_path():
    whole = max_batch_size(Dropping(lambda: True), Spec((1, 64)), memory="700MB", mode="training")
    n_samples = max_batch_size(
        Dropping(DRAWS["random"]), Spec((1, 64)), memory="700MB", mode="training"
    )
    assert n_samples == whole


def logging(log):
    """Return a layer whose result is handed to a function."""

    def forward(model, x):
        y = model.layer(x)
        log(model, y)
        return y

    return Calls(forward, layer=nn.Linear(8, 8), total=0.0)


def logged(model, y):
    mean = y.mean().item()
    model.total += (mean - 0.5) / 2
    if not math.isfinite(mean) or math.isnan(mean):
        raise RuntimeError("the mean is not finite")
    return f"{mean:.3f} {mean} {model.total:8.2e} {[mean]} {y * mean}"


def test_a_number_that_is_only_logged_is_no_obstacle():
    report = memory_report(logging(logged), (4, 8), "training", "sgd", workspaces=NONE)
    assert report.allocated_bytes > 0


@pytest.mark.parametrize(
    "guard",
    [
        lambda y: torch.isnan(y).any(),
        lambda y: torch.isinf(y.mean()),
        lambda y: not torch.isfinite(y).all(),
    ],
)
def test_guards_find_all_numbers_finite(guard):
    def stop(_, y):
        if guard(y):
            raise RuntimeError("not finite")

    assert memory_report(logging(stop), (4, 8), workspaces=NONE).allocated_bytes > 0


@pytest.mark.parametrize(
    "decide",
    [
        lambda _, y: 1 if y.mean().item() > 0 else 2,
        lambda _, y: torch.zeros(int(y.mean().item())),
        lambda _, y: range(y.argmax().item()),
        lambda _, y: bool(y.mean().item() - 1),
        lambda _, y: max(y.mean().item(), 0.0),
    ],
)
def test_a_number_that_decides_is_refused_with_its_line(decide):
    with pytest.raises(DataDependentError, match=r"test_ways_of_steps\.py:\d+"):
        memory_report(logging(decide), (4, 8), workspaces=NONE)


def test_values_stay_known_where_an_operator_only_read_them():
    def scatter(model, x, index):
        out = torch.zeros(4, 8, device=x.device).index_add_(0, index, model.layer(x))
        return out[: int(index.max()) + 1]

    index = torch.tensor([0, 1, 2, 2])
    trace = replay(Calls(scatter, layer=nn.Linear(8, 8)), Spec((4, 8)), index, workspaces=NONE)
    assert trace.peak_bytes > 0


DISTRIBUTIONS = {
    "normal": lambda a, b: torch.distributions.Normal(a, b.exp()).rsample(),
    "log": lambda a, b: torch.distributions.Normal(a, b.exp()).log_prob(b),
    "divergence": lambda a, b: torch.distributions.kl_divergence(
        torch.distributions.Normal(a, b.exp()), torch.distributions.Normal(0.0, 1.0)
    ),
    "independent": lambda a, b: torch.distributions.Independent(
        torch.distributions.Laplace(a, b.exp()), 1
    ).log_prob(a),
    "categorical": lambda a, b: torch.distributions.Categorical(logits=a).entropy(),
    "bernoulli": lambda a, b: torch.distributions.Bernoulli(logits=a).log_prob((b > 0).float()),
    "uniform": lambda a, b: torch.distributions.Uniform(a, a + b.exp()).rsample(),
    "several": lambda a, b: torch.distributions.MultivariateNormal(
        a, scale_tril=torch.diag_embed(b.exp())
    ).rsample(),
    "gamma": lambda a, b: torch.distributions.Gamma(a.exp(), b.exp()).rsample(),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_take_their_arguments_for_valid(name):
    model = Calls(
        lambda m, x: DISTRIBUTIONS[name](*m.layer(x).chunk(2, dim=-1)), layer=nn.Linear(8, 16)
    )
    report = memory_report(model, (4, 8), "training", "sgd")
    assert report.allocated_bytes > 0


class Keeping(nn.Module):
    """Keeps its state from one step to the next, with the graph."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(8, 8)
        self.state = None

    def forward(self, x):
        self.state = self.cell(x, self.state)
        return self.state


def test_tensors_that_outlive_a_step_are_named():
    model = nn.Sequential(Keeping())
    with pytest.raises(TraceError, match=r"0\.state outlived the step.*0\.state\.detach\(\)"):
        memory_report(model, (4, 8), "training", "sgd")


def heads():
    return Calls(
        lambda m, x: {"fine": m.first(x), "coarse": m.second(x)},
        first=nn.Conv2d(1, 2, 1), second=nn.Conv2d(1, 3, 3, stride=2),
    )  # fmt: skip


@pytest.mark.parametrize(("key", "channels"), [("fine", 2), ("coarse", 3)])
def test_a_loss_may_pick_one_of_several_outputs(key, channels):
    def loss(output, target):
        return functional.mse_loss(output[key], target)

    report = memory_report(heads(), (2, 1, 9, 9), "training", loss=loss)
    side = {"fine": 9, "coarse": 4}[key]
    expected = -(-2 * 81 * 4 // 512) * 512 + -(-2 * channels * side**2 * 4 // 512) * 512
    assert report.categories["input"] == expected


def test_the_error_for_several_outputs_names_their_keys():
    def loss(output, target):
        return (output["fine"].mean() - output["coarse"].mean() + target.mean()) ** 2

    with pytest.raises(ModelArgumentError, match=r"'fine' \(2x2x9x9\) and 'coarse' \(2x3x4x4\)"):
        memory_report(heads(), (2, 1, 9, 9), "training", loss=loss)


def test_gradients_of_several_batches_are_added():
    one = memory_report(Small(), (4, 1, 32, 32), "training", "adam", workspaces=NONE)
    three = memory_report(
        Small(), (4, 1, 32, 32), "training", "adam", workspaces=NONE, accumulate=3
    )
    gradients = sum(-(-p.nbytes // 512) * 512 for p in Small().parameters())
    assert one.allocated_bytes < three.allocated_bytes <= one.allocated_bytes + 2 * gradients
    forwards = [mark.name for mark in three.trace.marks].count("forward")
    assert forwards == 2 * 3


def test_a_closure_computes_the_loss_and_lbfgs_keeps_its_history():
    def lbfgs(parameters):
        return torch.optim.LBFGS(parameters, history_size=7)

    model = nn.Linear(100, 100)
    n_bytes = sum(p.nbytes for p in model.parameters())
    report = memory_report(model, (4, 100), "training", lbfgs, workspaces=NONE)
    state = report.categories["optimizer state"]
    assert 2 * 7 * n_bytes <= state <= (2 * 7 + 3) * (n_bytes + 512)
    real = lbfgs(model.parameters())
    same = memory_report(model, (4, 100), "training", real, workspaces=NONE)
    assert same.allocated_bytes == report.allocated_bytes
    assert not real.state


def test_an_optimizer_may_be_only_the_size_of_its_state():
    report = memory_report(Small(), (4, 1, 32, 32), "training", optimizer_state_bytes="3MiB")
    assert report.categories["optimizer state"] == 3 * 2**20
    with pytest.raises(ModelArgumentError, match="not both"):
        memory_report(Small(), (4, 1, 32, 32), "training", "adam", optimizer_state_bytes=1)


def pair():
    models = nn.ModuleDict({"maker": nn.Linear(8, 64), "judge": nn.Linear(64, 1)})
    optimizers = {name: torch.optim.Adam(models[name].parameters()) for name in models}
    return models, optimizers


def step(models, optimizers, noise, real):
    generated = models["maker"](noise)
    loss = models["judge"](generated.detach()).mean() - models["judge"](real).mean()
    optimizers["judge"].zero_grad()
    loss.backward()
    optimizers["judge"].step()
    optimizers["maker"].zero_grad()
    (-models["judge"](generated).mean()).backward()
    optimizers["maker"].step()


def test_several_models_are_trained_in_one_step():
    models, optimizers = pair()
    arguments = ((32, 8), (32, 64))
    report = memory_report(models, arguments, "training", optimizers, step=step, workspaces=NONE)
    states = 2 * sum(-(-p.nbytes // 512) * 512 for p in models.parameters())
    assert report.categories["weights"] == states // 2
    assert states <= report.categories["optimizer state"] <= states + 4 * 512
    assert report.categories["gradients"] > 0
    assert all(not optimizer.state for optimizer in optimizers.values())
    n = max_batch_size(
        models, (Spec((1, 8)), Spec((1, 64))), memory="700MB", mode="training",
        optimizer=optimizers, step=step,
    )  # fmt: skip
    assert n > 1000


def test_a_learning_rate_scheduler_may_be_among_the_optimizers():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    rates = []

    def scheduled(model, arguments, x):
        model(x).sum().backward()
        arguments[0].step()
        arguments[1].step()
        rates.append(arguments[0].param_groups[0]["lr"])

    report = memory_report(model, (4, 8), "training", (optimizer, scheduler), step=scheduled)
    assert report.categories["optimizer state"] > 0
    assert rates == pytest.approx([0.05, 0.005])
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert scheduler.last_epoch == 0


def test_a_custom_step_runs_as_it_is_replayed():
    models, optimizers = pair()
    before = [p.detach().clone() for p in models.parameters()]
    arguments = (torch.rand(32, 8), torch.rand(32, 64))
    run_step(models, arguments, StepLoop("training", step=step), optimizers)
    moved = [bool((a != b).any()) for a, b in zip(before, models.parameters(), strict=True)]
    assert moved == [True, True, True, False]  # the judge's bias has no gradient


def test_the_axes_of_patches_follow_from_the_convolutions():
    assert len(max_patch_shape(Small(ndim=3), memory="700MB")) == 3
    with pytest.raises(ModelArgumentError, match="has no convolutions: pass ndim"):
        max_patch_shape(nn.Linear(8, 8), in_channels=0, memory="700MB")


def test_a_report_reaches_its_number_in_seven_calls():
    """memory_report, ModelStep.trace, replay, StepLoop.run and its pass, dispatch mode, log."""
    import maxslices.nn

    own = str(Path(maxslices.nn.__file__).parent)
    chains = []

    class Looking(nn.Linear):
        def forward(self, x):
            frame, chain = sys._getframe(1), 0
            while frame is not None:
                chain += frame.f_code.co_filename.startswith(own)
                frame = frame.f_back
            chains.append(chain)
            return super().forward(x)

    memory_report(Looking(8, 8), (4, 8), workspaces=NONE)
    assert max(chains) <= 5  # and two from an operator to the storage that it allocates


NUMBERS = np.random.default_rng(3)


@pytest.mark.parametrize("where", ["a file", "a closure"])
def test_generators_of_numpy_that_the_code_names_are_set_and_restored(where):
    numbers = np.random.default_rng(3)

    def of_a_closure():
        return numbers.random() < 0.9

    def of_a_file():
        return NUMBERS.random() > 0.9

    used, keep = (NUMBERS, of_a_file) if where == "a file" else (numbers, of_a_closure)
    whole = memory_report(Dropping(lambda: True), (32, 64), workspaces=NONE)
    before = used.bit_generator.state
    report = memory_report(Dropping(keep), (32, 64), workspaces=NONE)
    assert report.allocated_bytes == whole.allocated_bytes
    assert used.bit_generator.state == before
    assert type(used.bit_generator).__name__ == "PCG64"


def test_hooks_of_a_copy_are_those_of_its_own_modules():
    def layers():
        return {"first": nn.Linear(64, 512), "second": nn.Linear(512, 64), "seen": {}}

    def hooked(m, x):
        y = m.second(m.first(x).relu())
        return y + m.seen["first"].mean()

    def plain(m, x):
        m.seen["first"] = m.first(x)
        return m.second(m.seen["first"].relu()) + m.seen["first"].mean()

    model = Calls(hooked, **layers())
    model.first.register_forward_hook(lambda m, i, o: model.seen.update(first=o))
    report = memory_report(model, (32, 64), workspaces=NONE)
    same = memory_report(Calls(plain, **layers()), (32, 64), workspaces=NONE)
    assert report.allocated_bytes == same.allocated_bytes
    assert model.seen == {}


def test_lengths_of_sequences_are_known_on_the_host():
    def reads(model, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(model.layer(packed)[0], batch_first=True)[0]

    model = Calls(reads, layer=nn.GRU(8, 16, batch_first=True))
    lengths = torch.tensor([9, 3, 5, 7])
    report = memory_report(model, (Spec((4, 10, 8)), lengths), workspaces=NONE)
    assert {s.shape for s in report.trace.storages if s.op == "aten::_cudnn_rnn"} >= {(24, 16)}


@pytest.mark.parametrize("lengths", [torch.tensor([4, 6]), torch.tensor([6, 6])])
def test_ctc_is_replayed(lengths):
    def loss(model, x, labels):
        probabilities = model.layer(x).log_softmax(2).transpose(0, 1)
        return functional.ctc_loss(probabilities, labels, torch.tensor([20, 20]), lengths)

    model = Calls(loss, layer=nn.Linear(8, 5))
    report = memory_report(model, ((2, 20, 8), Spec((2, 6), torch.long)))
    kept = [s for s in report.trace.storages if s.op.startswith("aten::_ctc_loss")]
    assert (2, 20, 13) in {s.shape for s in kept}


def test_checks_of_torch_s_own_losses_find_arguments_valid():
    def loss(model, x):
        mean, variance = model.layer(x).chunk(2, -1)
        return functional.gaussian_nll_loss(mean, x[:, :1], variance.exp())

    assert memory_report(Calls(loss, layer=nn.Linear(8, 2)), (4, 8)).allocated_bytes > 0


def test_a_spectrogram_is_inverted():
    def sounds(x):
        window = torch.hann_window(64, device=x.device)
        return torch.istft(torch.stft(x, 64, return_complex=True, window=window), 64, window=window)

    assert replay(sounds, Spec((2, 1000))).peak_bytes > 2 * 1000 * 4
