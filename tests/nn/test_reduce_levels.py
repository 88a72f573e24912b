"""Levels, profiles and budgets of the former memopt pipeline."""

from __future__ import annotations

import copy
import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import ModelArgumentError, NoDeviceError, TooLargeError
from maxslices.nn.reduce import (
    Rewrite,
    apply_rewrites,
    memory_optimization,
    resolve_device,
    run_on_device,
)
from maxslices.nn.reduce.memopt import how_many, options_of
from maxslices.nn.replay import Spec

SPEC = Spec((4, 3, 64, 64))
NOTHING = (None, None, None, None)


class Block(nn.Sequential):
    def __init__(self, n_in: int, n: int) -> None:
        super().__init__(
            nn.Conv2d(n_in, n, 3, padding=1), nn.GELU(), nn.Conv2d(n, n, 3, padding=1), nn.GELU()
        )


def model() -> nn.Sequential:
    torch.manual_seed(2)
    widths = (3, 8, 64, 8, 8)
    return nn.Sequential(*(Block(a, b) for a, b in itertools.pairwise(widths)))


@pytest.mark.parametrize(
    ("profile", "explicit", "expected"),
    [
        ("safe", NOTHING, (1, 0, 0)),
        ("balanced", NOTHING, (2, 1, 1)),
        ("memory", NOTHING, (3, 2, 2)),
        ("exhaustive", NOTHING, (4, None, None)),
        ("memory", (2, 7, None, None), (2, 7, 2)),
        ("exhaustive", (None, None, None, False), (4, 1, 1)),
    ],
)
def test_profiles_set_levels_and_rounds_unless_they_are_explicit(profile, explicit, expected):
    assert options_of(profile, explicit, True, [])[:3] == expected


@pytest.mark.parametrize(
    ("prefer", "profile"), [("speed", "safe"), ("balanced", "balanced"), ("memory", "memory")]
)
def test_preferences_set_profiles_and_budgets(prefer, profile):
    _, summary = memory_optimization(
        model(), Block, SPEC, prefer=prefer, memory="20GB", return_summary=True
    )
    assert (summary.profile, summary.checkpoint_budget) == (profile, prefer)
    assert f"prefer:profile={profile}" in summary.notes


def test_without_inputs_a_profile_falls_back_to_checkpoints_and_a_level_is_refused():
    assert options_of("memory", NOTHING, False, []).level == 1
    with pytest.raises(ModelArgumentError, match="inputs"):
        options_of(None, (2, None, None, None), False, [])


@pytest.mark.parametrize("option", ["profile", "prefer", "checkpoint_budget"])
def test_unknown_names_are_refused_with_the_valid_ones(option):
    with pytest.raises(ModelArgumentError, match="balanced"):
        memory_optimization(model(), Block, SPEC, **{option: "fast"})


@pytest.mark.parametrize(
    ("budget", "most", "ratio", "expected"),
    [("speed", None, None, 4), ("balanced", None, None, 6), ("memory", None, None, 7),
     ("speed", 5, None, 5), (None, 5, 0.3, 3), (None, None, 0.01, 1), (None, 0, None, 0)],
)  # fmt: skip
def test_budgets_bound_how_many_are_checkpointed(budget, most, ratio, expected):
    assert how_many(7, budget, most, ratio) == expected


def test_modules_that_save_most_are_checkpointed_first():
    _, summary = memory_optimization(
        model(), Block, SPEC, level=1, max_gc_wrapped_modules=1, return_summary=True
    )
    assert summary.gc_selected_modules == ["1"]  # 64 channels inside, 8 at its input
    assert summary.gc_selection_policy == "most_saved_at_peak"


def test_each_level_lowers_the_peak_and_keeps_gradients():
    peaks = []
    x = torch.randn(2, 3, 16, 16)
    plain = model()
    plain(x).square().sum().backward()
    for level in range(5):
        reduced, summary = memory_optimization(
            copy.deepcopy(model()), Block, SPEC, level=level, return_summary=True
        )
        peaks.append(summary.peak_after_bytes)
        reduced(x).square().sum().backward()
        for a, b in zip(plain.parameters(), reduced.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        assert summary.applied_level == level
        assert "reduce_memory" in summary.recommendation
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[1] < peaks[0]


def test_a_target_ends_the_search_or_is_an_error():
    with pytest.raises(TooLargeError, match="held by"):
        memory_optimization(model(), Block, SPEC, level=2, memory=CONTEXT_BYTES + 2**20)
    _, summary = memory_optimization(
        model(), Block, SPEC, level=2, memory="20GB", return_summary=True
    )
    assert summary.spatial_split_count == 0
    assert summary.fits


@pytest.mark.parametrize(
    "name", ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK",
             "MV2_COMM_WORLD_LOCAL_RANK"],
)  # fmt: skip
def test_the_launcher_chooses_the_device(monkeypatch, name):
    for other in run_on_device.RANK_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv(name, "3")
    assert resolve_device() == torch.device("cuda", 3)
    monkeypatch.setenv(name, "4")
    with pytest.raises(NoDeviceError, match=f"{name} is '4'.*0 to 3"):
        resolve_device()


def test_modules_with_batch_statistics_are_not_split_in_time():
    pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
    from spikingjelly.activation_based import functional, layer, neuron

    class Spikes(nn.Sequential):
        pass

    net = nn.Sequential(
        Spikes(layer.Conv2d(3, 16, 3, padding=1), layer.BatchNorm2d(16), neuron.LIFNode()),
        Spikes(layer.Conv2d(16, 4, 3, padding=1), neuron.LIFNode()),
    )
    functional.set_step_mode(net, "m")
    _, summary = memory_optimization(
        net, Spikes, Spec((4, 2, 3, 48, 48)), level=3, max_split_rounds=3, return_summary=True
    )
    assert summary.rewrites["0"].parts == 1
    assert any("0 is not split in time: 1 layers take" in note for note in summary.notes)


class Weighted(nn.Module):
    """A sequence, and a tensor that happens to be as long."""

    n_seq_inputs = 1

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return (x * table.sum(0)).sin()


@pytest.mark.parametrize("kind", ["checkpoint", "split"])
def test_arguments_other_than_sequences_are_not_split(kind):
    x, table = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    model = Weighted()
    expected = model(x, table)
    apply_rewrites(model, {"": Rewrite(kind, (), 2)})
    assert torch.equal(model(x, table), expected)
