"""Tiles give the untiled result; the halo is what the layers say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.fit.inference_tiles import best_tiles, receptive_field
from maxslices.nn.nn_errors import ModelArgumentError, TooLargeError
from maxslices.nn.replay import Spec


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.norm, self.up = nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 6, 2, 2)
        self.last = nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x).relu()
        b = self.norm(self.b(nn.functional.max_pool2d(a, 2))).relu()
        return self.last(torch.cat([a, self.up(b)], dim=1))


@pytest.mark.parametrize(
    ("model", "ndim", "before", "after", "stride"),
    [
        (nn.Conv2d(2, 1, 5, padding=2), 2, (2, 2), (2, 2), 1),
        (nn.Conv2d(2, 1, 3, padding=(2, 4), dilation=(2, 4)), 2, (2, 4), (2, 4), 1),
        (nn.Sequential(nn.ConstantPad2d((2, 0, 0, 0), 0), nn.Conv2d(2, 1, (1, 3))), 2, (0, 2),
         (0, 0), 1),
        (nn.Sequential(nn.AvgPool1d(4), nn.Upsample(scale_factor=4)), 1, (3,), (3,), 4),
        (nn.Sequential(nn.Conv3d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv3d(2, 1, 3, padding=1)), 3,
         (2, 2, 2), (2, 2, 2), 1),
    ],
)  # fmt: skip
def test_the_receptive_field_is_that_of_the_layers(model, ndim, before, after, stride):
    found = receptive_field(model, 2, ndim)
    assert (found.before, found.after, found.stride) == (before, after, stride)


def test_what_sees_all_of_the_image_has_no_tiles():
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.InstanceNorm2d(3))
    with pytest.raises(ModelArgumentError, match="no exact tiles"):
        receptive_field(model, 1, 2)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Spec((1, 64, 16)), "receptive field is looked for.*images .* of any size"),
        (Spec((64, 16)), "batch, channels and axes"),
        ((1, 64, 16), "batch, channels and axes"),
        (Spec((1, 2, 3, 3, 3, 16)), "1, 2 or 3 axes, not 4"),
    ],
)
def test_what_is_no_image_is_told(image, message):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with pytest.raises(ModelArgumentError, match=message):
        best_tiles(layer, image, memory="1GB")


@pytest.mark.parametrize("channels", [1, 2])
def test_an_image_without_its_batch_axis_is_not_taken_for_a_line_of_channels(channels):
    layer = nn.Conv2d(channels, channels, 3, padding=1)
    with pytest.raises(ModelArgumentError, match=r"images \(batch, channels, axes\)"):
        best_tiles(layer, Spec((channels, 64, 64)), memory="1GB")


def test_results_of_other_sizes_are_refused():
    with pytest.raises(ModelArgumentError, match="sizes of the input"):
        receptive_field(nn.Conv2d(1, 1, 3), 1, 2)


@pytest.mark.parametrize("shape", [(96, 134), (54, 250)])
def test_tiles_give_the_untiled_result(shape):
    model = UNet().double().eval()
    image = torch.rand(2, 1, *shape, dtype=torch.float64)
    whole = best_tiles(model, image, "40GB")
    assert whole.parts == (1, 1)
    assert whole.overhead == 0
    tiling = best_tiles(
        model, image, CONTEXT_BYTES + whole.needed_bytes * 2 // 3, may_channels_last=False
    )
    assert max(tiling.parts) > 1
    assert tiling.needed_bytes <= tiling.limit_bytes
    with torch.no_grad():
        # The bound: kernels chosen for other sizes add up in another order.
        torch.testing.assert_close(tiling.run(model, image), model(image), rtol=0, atol=1e-12)


def test_with_less_halo_the_result_differs():
    model = UNet().double().eval()
    image = torch.rand(1, 1, 64, 128, dtype=torch.float64)
    whole = best_tiles(model, image, "40GB")
    field = receptive_field(model, 1, 2)
    short = type(field)((field.before[0], 0), field.after, field.stride)
    tiling = best_tiles(
        model, image, CONTEXT_BYTES + whole.needed_bytes * 2 // 3, may_channels_last=False,
        field=short,
    )  # fmt: skip
    assert tiling.parts[1] > 1
    with torch.no_grad():
        assert not torch.allclose(tiling.run(model, image), model(image), atol=1e-9)


def test_channels_last_or_half_precision_are_taken_where_tiles_grow():
    model = UNet().eval()
    spec = Spec((1, 1, 1024, 1024))
    full = best_tiles(model, spec, CONTEXT_BYTES + 60 * 2**20, may_channels_last=False)
    half = best_tiles(model, spec, CONTEXT_BYTES + 60 * 2**20, amp=torch.bfloat16)
    assert half.overhead < full.overhead
    assert half.amp is torch.bfloat16 or half.channels_last


def test_a_card_that_is_too_small_is_said():
    with pytest.raises(TooLargeError, match="halo"):
        best_tiles(UNet().eval(), Spec((1, 1, 64, 64)), CONTEXT_BYTES + 2**12)


def test_blending_is_monais():
    pytest.importorskip("monai", reason="MONAI is not installed")
    tiling = best_tiles(UNet().eval(), Spec((1, 1, 64, 64)), "40GB")
    assert tiling.monai_inferer().roi_size == [64, 64]
