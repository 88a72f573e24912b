"""Bands of an image with a halo, in training: the results and gradients of the whole."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import TooLargeError
from maxslices.nn.reduce import Rewrite, apply_rewrites, reduce_memory, restore
from maxslices.nn.reduce.band_candidates import band_candidates
from maxslices.nn.reduce.knapsack import Knapsack
from maxslices.nn.reduce.locality import find_band_window
from maxslices.nn.reduce.module_ranges import ModuleOrder
from maxslices.nn.reduce.module_study import study_step
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

ROUNDING = 1e-13
"""Of the largest item, in double precision: sums in another order."""


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x).relu()
        b = self.b(nn.functional.max_pool2d(a, 2)).relu()
        return self.last(torch.cat([a, self.up(b)], dim=1))


def seq(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


# Module, argument, axis, items before and behind.
LOCAL = {
    "2D": (lambda: seq(nn.Conv2d(2, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 2, 5, padding=2)),
           (2, 2, 97, 45), -2, (3, 3)),
    "not padded": (lambda: seq(nn.Conv2d(2, 4, 5), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1)),
                   (1, 2, 83, 70), -2, (1, 5)),
    "stride": (lambda: seq(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(),
                           nn.Conv2d(4, 3, 3, stride=2)), (2, 2, 101, 60), -2, (4, 4)),
    "dilation": (lambda: seq(nn.Conv2d(2, 4, 3, padding=4, dilation=4), nn.SiLU(),
                             nn.Conv2d(4, 3, 3, padding=(2, 0), dilation=2)),
                 (1, 2, 71, 99), -1, (4, 8)),
    "pooling": (lambda: seq(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.ReLU(True),
                            nn.AvgPool2d(2)), (2, 2, 93, 61), -2, (4, 4)),
    "upsampling": (lambda: seq(nn.Conv2d(2, 8, 3, padding=1), nn.PixelShuffle(2), nn.ReLU(),
                               nn.Upsample(scale_factor=2, mode="bilinear")),
                   (1, 2, 67, 40), -2, (2, 2)),
    "reflected": (lambda: nn.Conv2d(2, 3, 5, padding=2, padding_mode="reflect"),
                  (1, 2, 65, 66), -1, (2, 2)),
    "U-Net": (UNet, (1, 2, 90, 34), -2, (6, 6)),
    "3D": (lambda: seq(nn.Conv3d(2, 4, 3, padding=1), nn.ELU(), nn.Conv3d(4, 2, 3, padding=1)),
           (1, 2, 41, 19, 18), -3, (2, 2)),
    "3D pooled": (lambda: seq(nn.Conv3d(2, 3, 3, padding=1), nn.MaxPool3d(2),
                              nn.Conv3d(3, 2, 3, padding=(1, 1, 0), stride=(1, 1, 2))),
                  (2, 2, 39, 22, 35), -3, (4, 4)),
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(5)
    return LOCAL[name][0]().double()


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = model(x)
    torch.manual_seed(6)
    out.backward(torch.randn_like(out))
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor], bound: float) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=bound * float(a.abs().max()))


@pytest.mark.parametrize("name", LOCAL)
def test_bands_give_the_results_and_gradients_of_the_whole(name):
    model = made(name)
    _, shape, axis, halo = LOCAL[name]
    window = find_band_window(model, shape, axis)
    assert window is not None
    assert window.halo == halo
    x = torch.randn(shape, dtype=torch.float64)
    whole = gradients(model, x)
    most = window.most(shape[axis])
    assert most >= 5
    for parts in (2, 3, 5, most):
        other = copy.deepcopy(model)
        apply_rewrites(other, {"": Rewrite("checkpoint", (), parts, window)})
        assert_same(whole, gradients(other, x), 20 * ROUNDING)


def test_less_around_a_band_gives_another_result():
    from dataclasses import replace

    model = made("2D")
    shape = LOCAL["2D"][1]
    window = find_band_window(model, shape, -2)
    x = torch.randn(shape, dtype=torch.float64)
    apply_rewrites(
        model, {"": Rewrite("checkpoint", (), 2, replace(window, before=window.before - 1))}
    )
    with torch.no_grad():
        whole = model(x)
    assert not torch.allclose(model(x), whole, atol=1e-9)


NOT_LOCAL = {
    "batch norm": lambda: seq(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)),
    "group norm": lambda: seq(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
    "instance norm": lambda: nn.InstanceNorm2d(2),
    "dropout": lambda: seq(nn.Conv2d(2, 4, 3), nn.Dropout(0.01)),
    "all of the image": lambda: seq(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1)),
    "around the border": lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
    "another grid": lambda: seq(
        nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    ),
    "padded in between": lambda: seq(
        nn.ZeroPad2d((0, 0, -1, 0)), nn.ZeroPad2d((0, 0, 1, 0)), nn.Conv2d(2, 2, (2, 1))
    ),
    "a linear layer": lambda: nn.Linear(96, 96),
    "not a tensor": lambda: nn.MaxPool2d(2, return_indices=True),
}


@pytest.mark.parametrize("name", NOT_LOCAL)
def test_what_is_not_local_is_not_run_in_bands(name):
    axis = -1 if name == "a linear layer" else -2
    assert find_band_window(NOT_LOCAL[name](), (2, 2, 128, 96), axis) is None


def test_norms_and_dropout_in_eval_mode_are_local_as_long_as_they_are():
    model = seq(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.5)).double().eval()
    shape = (2, 2, 96, 20)
    assert find_band_window(model, shape, -2, train=True) is None
    window = find_band_window(model, shape, -2)
    other = copy.deepcopy(model)
    apply_rewrites(other, {"": Rewrite("checkpoint", (), 3, window)})
    x = torch.randn(shape, dtype=torch.float64)
    assert_same(gradients(model, x), gradients(other, x), 20 * ROUNDING)
    for each in (model, other):
        each[1].train()
    # Bands would have statistics of their own: so it is run as a whole.
    assert_same(gradients(model, x), gradients(other, x), 0.0)
    assert torch.equal(model[1].running_var, other[1].running_var)


def test_bands_thinner_than_their_halo_are_refused():
    window = find_band_window(made("2D"), (1, 2, 64, 64), -2)
    assert window.most(64) == 21
    with pytest.raises(ValueError, match="up to 21"):
        window.cut(64, 22)
    # A smaller image is run in fewer bands, and one on another grid as a whole.
    for name, shape in (("2D", (1, 2, 7, 9)), ("stride", (1, 2, 99, 60))):
        model = made(name)
        window = find_band_window(model, LOCAL[name][1], -2)
        other = copy.deepcopy(model)
        apply_rewrites(other, {"": Rewrite("checkpoint", (), 8, window)})
        x = torch.randn(shape, dtype=torch.float64)
        assert_same(gradients(model, x), gradients(other, x), 20 * ROUNDING)


class BackToSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = nn.functional.max_pool2d(self.conv(x), 2)
        return nn.functional.interpolate(small, size=x.shape[-2:], mode="bilinear")


def test_sizes_on_another_grid_are_run_as_a_whole():
    torch.manual_seed(0)
    model = BackToSize().double()
    assert find_band_window(model, (1, 2, 95, 32), -2) is None  # scaled by 95 / 47
    window = find_band_window(model, (1, 2, 96, 32), -2)
    assert window.stride == 2
    rewritten = copy.deepcopy(model)
    apply_rewrites(rewritten, {"": Rewrite("checkpoint", (), 4, window)})
    for n, bound in ((128, 20 * ROUNDING), (95, 0.0)):
        x = torch.randn(1, 2, n, 32, dtype=torch.float64)
        assert_same(gradients(model, x), gradients(rewritten, x), bound)


def test_bands_in_what_is_computed_again_and_beside_other_rewrites():
    torch.manual_seed(0)
    model = seq(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(6))).double()
    model[0].weight.requires_grad_(False)
    window = find_band_window(model[1:4], (1, 2, 80, 20), -2)
    other = copy.deepcopy(model)
    apply_rewrites(other, {
        "": Rewrite("checkpoint"), "[1:4]": Rewrite("checkpoint", (), 4, window),
        "5": Rewrite("offload"),
    })  # fmt: skip
    x = torch.randn(1, 2, 80, 20, dtype=torch.float64, requires_grad=True)
    for each in (model, other):
        each(x).square().sum().backward()
    assert other[0].weight.grad is None
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        if a.requires_grad:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-11, atol=1e-11)


def whole_and_banded(n: int, width: int) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Return a model, the same in four bands, and an image of `n` channels for both."""
    torch.manual_seed(0)
    model = seq(nn.Conv2d(n, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, n, 3, padding=1))
    window = find_band_window(model, (1, n, 64, 32), -2)
    other = copy.deepcopy(model)
    apply_rewrites(other, {"": Rewrite("checkpoint", (), 4, window)})
    return model, other, torch.randn(1, n, 64, 32)


def test_bands_are_cast_as_the_whole_is():
    model, other, x = whole_and_banded(2, 8)
    outs = []
    for each in (model, other):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outs.append(each(x))
        outs[-1].float().square().sum().backward()
    assert outs[0].dtype == outs[1].dtype == torch.bfloat16
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        # Sums of each band are rounded to eight bits.
        torch.testing.assert_close(b.grad, a.grad, rtol=0, atol=0.02 * float(a.grad.abs().max()))


def test_a_backward_pass_that_begins_where_something_is_cast_does_not_cast():
    model, other, x = whole_and_banded(1, 4)
    for each in (model, other):
        total = each(x).square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total.backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=0, atol=1e-5 * float(a.grad.abs().max()))


def denoiser() -> nn.Sequential:
    torch.manual_seed(0)
    middle = [each for _ in range(6) for each in (nn.Conv2d(24, 24, 3, padding=1), nn.GELU())]
    return seq(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), *middle, nn.Conv2d(24, 1, 3, padding=1))


IMAGE = Spec((1, 1, 1024, 768))


def test_expected_peaks_of_bands_are_those_of_replays():
    model = denoiser()
    step = ModelStep(model, "training")
    seen = study_step(step, [IMAGE], Workspaces.allowance())
    found = band_candidates(seen, model, {})
    knapsack = Knapsack.of(seen.usage, found, ModuleOrder(model))

    def replayed(rewrites: dict[str, Rewrite]) -> int:
        return step.trace(
            [IMAGE],
            Workspaces.allowance(),
            steps=1,
            change=lambda copy: apply_rewrites(copy, rewrites),
        ).peak_bytes

    whole = replayed({})
    assert len({c.path for c in found}) <= 5
    for row, candidate in enumerate(found):
        peak = replayed({candidate.path: candidate.rewrite})
        assert peak < whole
        # Of what is saved, no more than a tenth may be wrong.
        assert abs(knapsack.peak([row]) - peak) <= 0.1 * (whole - peak)


def test_bands_fit_where_nothing_else_but_the_host_does():
    model = denoiser()
    step = ModelStep(model, "training", torch.optim.Adam)
    whole = step.trace([IMAGE], Workspaces.allowance()).peak_bytes
    budget = int(0.25 * whole) + CONTEXT_BYTES
    others = ("in-place", "pack", "selective", "checkpoint")
    with pytest.raises(TooLargeError):
        reduce_memory(model, IMAGE, budget, means=others)
    _, summary = reduce_memory(model, IMAGE, budget, means=(*others, "split"))
    assert summary.fits
    assert summary.spatial_split_count >= 1
    assert summary.temporal_split_count == 0
    assert summary.predicted_added_s > 0
    assert "bands of axis -2" in str(summary)
    again = step.trace([IMAGE], Workspaces.allowance()).peak_bytes  # as it was returned
    assert again <= budget - CONTEXT_BYTES
    other = copy.deepcopy(model)
    restore(other, summary)
    x = torch.randn(1, 1, 256, 40)
    assert_same(gradients(other, x), gradients(model, x), 1e-5)


def test_networks_with_batch_norms_are_offered_no_bands():
    model = seq(*(seq(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(4)))
    seen = study_step(
        ModelStep(model, "training"), [Spec((2, 8, 256, 256))], Workspaces.allowance()
    )
    assert all(isinstance(model.get_submodule(c.path), nn.Conv2d)
               for c in band_candidates(seen, model, {}))  # fmt: skip
