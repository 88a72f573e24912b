"""Predicted peaks of layers, compared with those measured on an H100 (torch 2.11, 2026-11-28)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.replay import Spec, Workspaces, replay
from maxslices.nn.step.model_step import ModelStep

MIB = 2**20


class Filter(nn.Module):
    """Rows filtered by a product with their spectrum."""

    def __init__(self, columns, padded):
        super().__init__()
        self.columns, self.padded = columns, padded
        self.weight = nn.Parameter(torch.ones(padded // 2 + 1))

    def forward(self, x):
        f = torch.fft.rfft(x, self.padded)
        return torch.fft.irfft(f * self.weight, self.padded)[..., : self.columns]


class Product(nn.Module):
    """Images filtered in two dimensions, as complex or as real numbers."""

    def __init__(self, side, is_real=False):
        super().__init__()
        self.is_real = is_real
        columns = side // 2 + 1 if is_real else side
        self.weight = nn.Parameter(torch.ones(side, columns, dtype=torch.complex64))

    def forward(self, x):
        if self.is_real:
            return torch.fft.irfft2(torch.fft.rfft2(x) * self.weight, s=x.shape[-2:])
        return torch.fft.ifft2(torch.fft.fft2(x) * self.weight)


class Along(nn.Module):
    """Axes of volumes that do not come last are copied."""

    def __init__(self, dims):
        super().__init__()
        self.dims = dims
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        f = torch.fft.fftn(x * self.scale, dim=self.dims)
        return torch.fft.ifftn(f * self.scale, dim=self.dims).abs()


def encoder(width, heads, n, **options):
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, **options)
    return nn.TransformerEncoder(layer, n, enable_nested_tensor=False)


REAL, COMPLEX = torch.float32, torch.complex64
MEASURED = [
    ("cuFFT in place", lambda: Filter(2560, 4096), (4, 1801, 2560), REAL, 633.3, 633.4),
    ("odd length", lambda: Filter(1500, 2999), (3, 901, 1500), REAL, 232.8, 232.8),
    ("half a length", lambda: Filter(1500, 3000), (3, 901, 1500), REAL, 201.7, 201.7),
    ("a large prime", lambda: Filter(5003, 10006), (3, 301, 5003), REAL, 364.4, 364.4),
    ("complex images", lambda: Product(512), (16, 2, 512, 512), COMPLEX, 258.0, 390.0),
    ("real images", lambda: Product(512, True), (16, 2, 512, 512), REAL, 161.3, 195.5),
    ("sides of 600", lambda: Product(600, True), (16, 2, 600, 600), REAL, 221.5, 268.5),
    ("one axis", lambda: Along((1,)), (8, 128, 96, 80), REAL, 270.0, 300.0),
    ("two axes", lambda: Along((1, 2)), (8, 128, 96, 80), REAL, 270.0, 300.0),
    ("three axes", lambda: Along((1, 2, 3)), (8, 128, 96, 80), REAL, 270.0, 300.0),
    ("encoder", lambda: encoder(256, 8, 4, activation="gelu"), (32, 512, 256), REAL, 189.1, 1429.0),
    ("norms", lambda: encoder(256, 8, 4, norm_first=True), (32, 512, 256), REAL, 205.1, 1413.2),
    ("odd heads", lambda: encoder(240, 5, 3), (32, 500, 240), REAL, 216.8, 1033.4),
]  # fmt: skip


def total(output):
    value = output.sum()
    return value.abs() if value.is_complex() else value


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row[0])
def test_a_layer_takes_what_was_measured(row, mode):
    _, make, shape, dtype, inference, training = row
    options = {"optimizer": torch.optim.Adam, "loss": total, "targets": lambda *_: ()}
    step = ModelStep(make(), mode, **(options if mode == "training" else {}))
    trace = step.trace([Spec(shape, dtype)], Workspaces.allowance())
    measured = training if mode == "training" else inference
    assert trace.allocated_bytes / MIB == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(("slices", "memory"), [(21, 2_000_000_000), (79, 7_300_000_000)])
def test_many_rows_take_two_arrays_for_their_transform(slices, memory):
    """On a GPU both ran out of memory, when torch requested twice the spectrum (2026-11-28)."""

    def halved(x):
        return torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=2560)

    trace = replay(halved, Spec((1801, slices, 2560)), workspaces=Workspaces.allowance())
    assert trace.needed_bytes > memory


def inverted(x):
    return torch.linalg.inv(x + torch.eye(256, device=x.device) * 99)


OPERATORS = [
    ("matrix_exp", lambda x: torch.matrix_exp(x * 0.01), [(16, 256, 256)], 92.0),
    ("cdist", torch.cdist, [(2048, 128), (1024, 128)], 52.52),
    ("inverse", inverted, [(8, 256, 256)], 46.04),
    ("logits", nn.functional.binary_cross_entropy_with_logits, [(32, 32, 64, 64)] * 2, 96.0),
    ("two axes rolled", lambda x: x.roll((3, 3), (2, 3)), [(32, 32, 64, 64)], 80.0),
]  # fmt: skip


class Scaled(nn.Module):
    """Operator on operands that are products."""

    def __init__(self, function):
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(1))

    def forward(self, *given):
        return self.function(*[x * self.scale for x in given])


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row[0])
def test_an_operator_takes_what_was_measured(row):
    _, function, shapes, measured = row
    step = ModelStep(Scaled(function))
    trace = step.trace([Spec(shape) for shape in shapes], Workspaces.allowance())
    assert trace.allocated_bytes / MIB == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("options", "reserve"), [({"num_layers": 2}, 108.0), ({"bidirectional": True}, 100.0)]
)
def test_a_projection_keeps_states_before_and_after_it(options, reserve):
    layer = nn.LSTM(128, 256, batch_first=True, proj_size=64, **options)

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x)[0]

    trace = ModelStep(First(), "training").trace([Spec((32, 256, 128))], Workspaces.allowance())
    assert reserve in {storage.n_bytes / MIB for storage in trace.storages}
