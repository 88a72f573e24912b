"""Calls and tables that users of other tools bring: torch_em, torchinfo, spikingjelly's memopt."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from maxslices import nn as fits
from maxslices.errors import EstimatorError
from maxslices.nn import ModelArgumentError, Spec, layer_table
from maxslices.nn.cards import CARDS, card_named
from maxslices.nn.reduce import memory_optimization
from maxslices.nn.reduce.memopt import layers_of

from .networks import Small


class Branches(nn.Module):
    """Says itself into which of its modules it is split."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        self.second = nn.Sequential(nn.Linear(64, 64), nn.GELU())

    def forward(self, x):
        return self.second(self.first(x))

    def __spatial_split__(self):
        return self.first[0], self.first[1], self.second


def test_torch_em_s_names_are_the_same_functions():
    assert fits.compute_max_batch_size is fits.max_batch_size
    assert fits.compute_max_patch_shape is fits.max_patch_shape
    size = fits.compute_max_batch_size(Small(), (64, 64), memory="700MB")
    assert size == fits.max_batch_size(Small(), (64, 64), memory="700MB")


@pytest.mark.parametrize(
    ("search", "arguments"),
    [
        (
            fits.max_batch_size,
            "model patch_shape in_channels device dtype safety_factor max_batch_size "
            "prediction_function",
        ),
        (
            fits.max_patch_shape,
            "model ndim batch_size min_divisible in_channels device dtype safety_factor "
            "max_scale_factor prediction_function",
        ),
    ],
)
def test_torch_em_s_arguments_are_the_first_and_without_a_bound_memory_decides(search, arguments):
    parameters = inspect.signature(search).parameters
    assert [*parameters][: len(arguments.split())] == arguments.split()
    assert (parameters["safety_factor"].default, parameters["dtype"].default) == (0.9, None)
    assert all(parameters[name].default is None for name in parameters if name.startswith("max_"))


def test_a_table_agrees_with_counts_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    rows = {row.path: row for row in layer_table(model, (2, 3, 16, 16)).rows}
    assert list(rows) == ["", "0", "1", "1.0", "1.1"]
    first = rows["0"]
    assert (first.kind, first.depth, first.kernel) == ("Conv2d", 1, (3, 3))
    assert (first.input_shape, first.output_shape) == ((2, 3, 16, 16), (2, 8, 16, 16))
    assert first.n_parameters == rows[""].n_parameters == 8 * 3 * 9 + 8
    assert first.mult_adds == rows[""].mult_adds == 2 * 16 * 16 * 8 * 3 * 9
    assert first.output_bytes == 2 * 8 * 16 * 16 * 4
    assert rows["1.1"].output_shape == (2, 8, 8, 8)
    assert rows["1.1"].kernel == (2,)
    assert [row.path for row in layer_table(model, (2, 3, 16, 16), depth=1).rows] == ["", "0", "1"]


def test_a_table_is_printed_with_its_columns_aligned():
    lines = str(layer_table(Small(), Spec((4, 1, 64, 64)))).splitlines()
    assert lines[0].split() == [
        "layer", "input", "output", "kernel", "parameters", "mult-adds", "output", "MiB",
    ]  # fmt: skip
    assert lines[2].startswith("Small ")
    assert any(line.startswith("    Conv2d (0)") for line in lines)
    end = lines.index(lines[1], 2)  # the rule before the totals
    assert {len(line) for line in lines[2:end]} == {len(lines[0])}
    with pytest.raises(EstimatorError, match="cannot take 4x64"):
        layer_table(Small(), (4, 64))


def test_totals_are_those_that_torchinfo_prints():
    """Of torchinfo 1.8.0, but for its multiply-adds of norms."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    model[0].weight.requires_grad_(False)
    table = layer_table(model, (4, 3, 8, 8), depth=0)
    assert str(table).splitlines()[4:] == [
        "Total params: 5,370",
        "Trainable params: 5,154",
        "Non-trainable params: 216",
        "Total mult-adds (M): 0.08",
        "Input size (MB): 0.00",
        "Forward/backward pass size (MB): 0.03",
        "Params size (MB): 0.02",
        "Estimated Total Size (MB): 0.06",
    ]
    assert (table.output_bytes, table.parameter_bytes) == (33_088, 21_480)


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090"])
def test_a_card_is_found_by_its_name(name):
    assert card_named(name).memory_bytes == int(23.52 * 2**30)


def test_every_card_has_a_source_and_less_than_is_sold():
    names = [card.name for card in CARDS]
    assert len(set(names)) == len(names)
    for card in CARDS:
        assert card.source.startswith(("https://github.com/", "measured:"))
        assert (5, 0) <= card.capability <= (12, 0)
        sold = [int(word[:-2]) for word in card.name.split() if word.endswith("GB")]
        assert all(0.97 * size < card.memory_bytes / 2**30 <= size for size in sold)


def test_an_unknown_card_is_an_error_with_similar_names():
    with pytest.raises(ModelArgumentError, match=r"RTX 4090.*or pass an amount"):
        card_named("RTX 4095")
    with pytest.raises(ModelArgumentError, match="V100 32GB or V100 16GB"):
        card_named("v100")


def test_memopt_is_called_as_its_users_write_it(capsys):
    def network():
        torch.manual_seed(0)
        return nn.Sequential(*(Branches() for _ in range(4)), nn.Linear(64, 2))

    x = torch.rand(2048, 64)
    net, summary = memory_optimization(
        network(), (Branches,), dummy_input=(x,), compress_x=True, level=2, return_summary=True
    )
    assert isinstance(net, nn.Sequential)
    assert summary.gc_wrap_count == 4
    same = memory_optimization(network(), (Branches,), (x,), False, 1, True, 3)
    assert isinstance(same, nn.Module)
    assert capsys.readouterr().out.startswith("Peak ")


def test_a_module_names_the_parts_into_which_it_is_split():
    assert layers_of(Branches()) == ["first.0", "first.1", "second"]
    assert layers_of(nn.Sequential(nn.ReLU(), nn.GELU())) == ["0", "1"]
