"""Spiking networks: packed spikes, states that are carried on, layers that refuse."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")

from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

from maxslices.nn.reduce import COMPRESSORS, Rewrite, apply_rewrites
from maxslices.nn.reduce.binary_inputs import probe_binary
from maxslices.nn.reduce.kept_tensors import compressor_named
from maxslices.nn.replay import Spec
from maxslices.nn.step.layer_state import refuses_time_split

from .networks import assert_same

T = 5


def network(kind: str = "LIFNode", norm: bool = True) -> nn.Sequential:
    torch.manual_seed(5)

    def spikes() -> nn.Module:
        return getattr(neuron, kind)(surrogate_function=surrogate.ATan(), detach_reset=True)

    blocks: list[nn.Module] = []
    n_in = 3
    for width in (8, 8, 12):
        blocks.append(layer.Conv2d(n_in, width, 3, padding=1))
        blocks += [layer.BatchNorm2d(width)] if norm else []
        blocks.append(spikes())
        n_in = width
    model = nn.Sequential(*blocks, layer.MaxPool2d(2), layer.Conv2d(n_in, 4, 3))
    functional.set_step_mode(model, "m")
    if not norm:  # larger weights make neurons fire
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(5)
    return model


def final_states(model: nn.Module) -> list[torch.Tensor]:
    return [m.v.detach() for m in model.modules() if isinstance(m, neuron.LIFNode)]


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 5, 8), (1,), (8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_spikes_come_back_as_they_were(name, shape, dtype):
    x = (torch.rand(shape) > 0.6).to(dtype)
    packed = compressor_named(name).pack(x)
    assert torch.equal(packed.unpack(), x)
    assert packed.unpack().dtype == dtype


def test_bits_take_a_thirtysecond():
    x = (torch.rand(16, 64) > 0.5).float()
    (data,) = compressor_named("bit").pack(x).data
    assert data.nbytes * 32 == x.nbytes


def test_layouts_come_back():
    x = (torch.rand(2, 3, 5, 7) > 0.5).float().to(memory_format=torch.channels_last)
    restored = compressor_named("bit").pack(x).unpack()
    assert torch.equal(restored, x)
    assert restored.stride() == x.stride()


@pytest.mark.parametrize("name", ["bit", "boolean", "uint8"])
def test_values_that_cannot_be_restored_are_an_error(name):
    with pytest.raises(RuntimeError, match=name):
        compressor_named(name).pack(torch.tensor([0.0, 1.0, 0.5]))


def test_whole_numbers_are_kept_in_a_byte():
    x = torch.arange(256.0)
    assert torch.equal(compressor_named("Uint8SpikeCompressor").pack(x).unpack(), x)


def test_inputs_that_are_spikes_are_found():
    model = network()
    binary = probe_binary(model, (Spec((T, 2, 3, 9, 9)),))
    assert binary["0"] == (False,)  # the image
    assert binary["3"] == (True,)
    assert binary["10"] == (True,)  # past the pooling
    assert binary["1"] == (False,)
    assert model.training
    assert model[2].v == 0.0


@pytest.mark.parametrize(
    "rewrites",
    [
        {"3": Rewrite("checkpoint", ("bit",)), "5": Rewrite("checkpoint")},
        {"2": Rewrite("checkpoint"), "5": Rewrite("selective"), "8": Rewrite("checkpoint")},
        {"[3:6]": Rewrite("checkpoint", ("bit",)), "5": Rewrite("checkpoint", (), 5)},
        {
            "[0:3]": Rewrite("checkpoint"),
            "[3:6]": Rewrite("checkpoint", ("bit",)),
            "[3:5]": Rewrite("checkpoint", ("bit",)),
            "[8:10]": Rewrite("checkpoint", (), 2),
        },
        {
            "[0:9]": Rewrite("checkpoint"),
            "[3:6]": Rewrite("checkpoint", ("bit",)),
            "[3:5]": Rewrite("checkpoint", ("bit",)),
            "8": Rewrite("checkpoint", (), 5),
        },
    ],
)
def test_gradients_and_states_are_the_same_to_the_bit(rewrites):
    model = network()
    other = copy.deepcopy(model)
    apply_rewrites(other, rewrites)
    x = torch.rand(T, 2, 3, 9, 9)
    for _ in range(2):
        functional.reset_net(model)
        functional.reset_net(other)
        assert_same(model, other, x)
        for a, b in zip(final_states(model), final_states(other), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("path", ["", "1", "3"])
def test_a_split_in_time_carries_the_states(path, parts):
    model = network(norm=False).double()
    other = copy.deepcopy(model)
    apply_rewrites(other, {path: Rewrite("checkpoint", parts=parts)})
    x = torch.rand(T, 2, 3, 9, 9, dtype=torch.float64)
    # Weights' gradients are sums over time in another order.
    assert_same(model, other, x, 1e-12)
    for a, b in zip(final_states(model), final_states(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "layer_of_steps", [neuron.PSN(T=T), neuron.MaskedPSN(k=2, T=T), neuron.SlidingPSN(k=2)]
)
def test_neurons_that_see_all_steps_refuse(layer_of_steps):
    assert type(layer_of_steps).__name__ in refuses_time_split(nn.Sequential(layer_of_steps))


def test_layers_of_single_steps_refuse():
    assert "single" in refuses_time_split(neuron.LIFNode(step_mode="s"))
    assert not refuses_time_split(network())


def test_inputs_of_zeros_alone_do_not_count_as_spikes():
    # What never fires in the trials may fire in training, with other values than 0 and 1.
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(0.0 * x)

    assert probe_binary(Silent(), (Spec((2, 3)),))["layer"] == (False,)


def test_neurons_fire_while_they_are_probed_and_statistics_stay():
    # Of an untrained network in eval mode, nothing fires beyond the first few layers.
    torch.manual_seed(0)
    blocks = [
        (layer.Conv2d(4, 4, 3, padding=1, bias=False), layer.BatchNorm2d(4),
         neuron.LIFNode(surrogate_function=surrogate.ATan()))
        for _ in range(8)
    ]  # fmt: skip
    model = nn.Sequential(*(part for block in blocks for part in block))
    functional.set_step_mode(model, "m")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    binary = probe_binary(model, (Spec((T, 2, 4, 8, 8)),))
    assert binary["21"] == (True,)
    assert binary["22"] == binary["23"] == (False,)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
