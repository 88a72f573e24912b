"""Allowances for workspaces without a device, compared with measurements on an H200."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from maxslices.nn.replay import OperatorCall, Workspaces

MIB = 2**20


def record():
    """Calls that were measured on an H200 with cuDNN 9.19, by docs/scripts."""
    packed = (Path(__file__).parent / "h200_workspaces.json.gz").read_bytes()
    return json.loads(gzip.decompress(packed))


def call(kind, x, weight, y, stride=1, padding=0, dilation=1, more=""):
    numbers = ["x".join([str(each)] * (len(x) - 2)) for each in (stride, padding, dilation)]
    options = "stride {} padding {} dilation {}".format(*numbers) + more
    return OperatorCall(kind, "aten.convolution", (x, weight, y), "float32", options)


def allowed_bytes(*operands, **named):
    return Workspaces.allowance().for_op(call(*operands, **named))


@pytest.mark.parametrize(
    ("operands", "named", "mib"),
    [
        # Copies of input, weight and output, the input's 3 channels padded to 4.
        (("convolution", (32, 3, 224, 224), (64, 3, 7, 7), (32, 64, 112, 112)),
         {"stride": 2, "padding": 3}, 122.55),
        (("convolution", (16, 512, 40, 40), (512, 512, 3, 3), (16, 512, 40, 40)),
         {"padding": 4, "dilation": 4}, 123.50),
        (("convolution", (16, 1024, 40, 40), (2048, 1024, 1, 1), (16, 2048, 40, 40)), {}, 300.0),
        (("convolution", (16, 2048, 40, 40), (512, 2048, 1, 1), (16, 512, 40, 40)), {}, 0.0),
        (("input gradient", (8, 2048, 40, 40), (512, 2048, 1, 1), (8, 512, 40, 40)), {}, 125.0),
        # Channels of a group are padded from 24 to 32.
        (("convolution", (32, 120, 28, 28), (120, 24, 3, 3), (32, 120, 28, 28)),
         {"padding": 1, "more": " groups 5"}, 30.80),
        # Groups are narrow, so that there are no tiles: of ResNeXt.
        (("convolution", (16, 1024, 28, 28), (1024, 32, 3, 3), (16, 1024, 14, 14)),
         {"stride": 2, "padding": 1, "more": " groups 32"}, 62.36),
        (("convolution", (16, 160, 28, 28), (640, 20, 3, 3), (16, 640, 28, 28)),
         {"padding": 1, "more": " groups 8"}, 102.5),
        # Partial sums of the gradient of a volume's weights.
        (("weight gradient", (2, 16, 48, 48, 48), (32, 16, 5, 5, 5), (2, 32, 48, 48, 48)),
         {"padding": 2}, 58.7),
        (("convolution", (16, 64, 56, 56), (96, 64, 3, 3), (16, 96, 56, 56)),
         {"padding": 1}, 30.84),
        (("convolution", (8, 256, 56, 56), (512, 256, 1, 1), (8, 512, 28, 28)),
         {"stride": 2}, 36.75),
        (("convolution", (64, 1024, 14, 14), (2048, 1024, 1, 1), (64, 2048, 7, 7)),
         {"stride": 2}, 73.5),
        (("input gradient", (16, 192, 56, 56), (128, 192, 1, 1), (16, 128, 28, 28)),
         {"stride": 2}, 42.88),
        (("weight gradient", (32, 256, 56, 56), (512, 256, 1, 1), (32, 512, 28, 28)),
         {"stride": 2}, 155.0),
        # A gradient for each image.
        (("weight gradient", (32, 256, 56, 56), (64, 256, 1, 1), (32, 64, 56, 56)), {}, 2.0),
        (("weight gradient", (8, 2048, 40, 40), (256, 2048, 3, 3), (8, 256, 40, 40)),
         {"padding": 12, "dilation": 12}, 256.5),
        # Volumes of few channels are copied.
        (("convolution", (4, 4, 96, 96, 96), (4, 4, 3, 3, 3), (4, 4, 96, 96, 96)),
         {"padding": 1}, 108.0),
        (("convolution", (16, 768, 32, 32), (768, 1, 7, 7), (16, 768, 32, 32)),
         {"padding": 3, "more": " groups 768"}, 0.0),
        (("weight gradient", (16, 768, 7, 7), (768, 1, 3, 3), (16, 768, 7, 7)),
         {"padding": 1, "more": " groups 768"}, 0.0),
    ],
)  # fmt: skip
def test_allowances_are_at_least_the_measured_workspaces(operands, named, mib):
    predicted = allowed_bytes(*operands, **named) / MIB
    assert mib - 1 <= predicted <= 1.1 * mib + 1


@pytest.mark.parametrize(
    ("kind", "kernel", "dtype", "mib"),
    [
        ("convolution", 1, "float16", 64),
        ("convolution", 3, "float32", 128),
        ("input gradient", 3, "float32", 128),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_groups_are_copied_with_channels_last_too(kind, kernel, dtype, mib, last):
    """Groups of 48 channels, padded to 64. Weights take less than 1 MiB."""
    x, weight = (32, 384, 32, 32), (384, 48, kernel, kernel)
    one = call(kind, x, weight, x, padding=kernel // 2, more=" groups 8")
    predicted = Workspaces.allowance().for_op(one._replace(dtype=dtype, channels_last=last))
    assert mib <= predicted / MIB <= mib + 1.2
    alone = call(kind, x, (384, 384, kernel, kernel), x, padding=kernel // 2)
    assert Workspaces.allowance().for_op(alone._replace(channels_last=True)) == 0


@pytest.mark.parametrize(
    ("x", "kernel", "mib"),
    [
        ((16, 2048, 7, 7), 3, 16.59),  # PVTv2's
        ((8, 768, 7, 7), 5, 4.2),
        ((16, 192, 28, 28), 7, 92.46),  # ConvNeXtV2's
        ((8, 232, 28, 28), 7, 56.59),
        ((8, 296, 14, 14), 7, 0.0),
        ((16, 256, 28, 28), 7, 0.0),
        ((16, 512, 56, 56), 3, 0.52),
    ],
)
def test_gradients_of_depthwise_weights_take_some_with_channels_last_alone(x, kernel, mib):
    weight, more = (x[1], 1, kernel, kernel), f" groups {x[1]}"
    one = call("weight gradient", x, weight, x, padding=kernel // 2, more=more)
    assert Workspaces.allowance().for_op(one) == 0
    predicted = Workspaces.allowance().for_op(one._replace(channels_last=True)) / MIB
    assert mib <= predicted <= 1.5 * mib + 1


def test_a_transposed_convolution_is_the_input_gradient_of_one():
    small, weight, large = (4, 512, 20, 20), (512, 256, 2, 2), (4, 256, 40, 40)
    one = allowed_bytes("convolution", small, weight, large, stride=2, more=" transposed 0x0")
    assert one == allowed_bytes("input gradient", large, weight, small, stride=2)
    assert one > 0


def test_groups_of_a_convolution_keep_their_numbers():
    # Distinct primes: a swapped factor shows.
    x, weight, y = (7, 2 * 11, 13, 17), (2 * 5, 11, 3, 3), (7, 2 * 5, 19, 23)
    expected = 4 * (7 * 32 * 13 * 17 + 32 * 16 * 9 + 7 * 32 * 19 * 23)
    assert allowed_bytes("convolution", x, weight, y, more=" groups 2") == expected


def calls_of_networks():
    for source, kind, dtype, x, weight, y, options, last, n_bytes in record()["rows"]:
        if source == "network":
            shapes = (tuple(x), tuple(weight), tuple(y))
            yield OperatorCall(kind, "aten.convolution", shapes, dtype, options, last), n_bytes


def test_few_calls_of_networks_took_more_than_the_rules_allow_for():
    rows = list(calls_of_networks())
    assert len(rows) > 1900
    low, least, most = 0, 0, 0
    for like, n_bytes in rows:
        predicted = Workspaces.allowance().for_op(like)
        low += predicted < 0.98 * n_bytes - MIB
        assert predicted >= n_bytes - 34 * MIB
        least, most = least + n_bytes, most + predicted
    assert low <= 0.05 * len(rows)
    assert most <= 1.4 * least


def test_an_unknown_kernel_never_counts_below_zero():
    assert allowed_bytes("convolution", (1, 1, 1), (1, 1, 1), (1, 1, 1)) == 0
    assert math.isfinite(allowed_bytes("weight gradient", (0, 8, 4, 4), (8, 8, 3, 3), (0, 8, 4, 4)))
