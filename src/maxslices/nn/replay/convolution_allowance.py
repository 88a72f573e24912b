"""Allowance for the workspace of a convolution where nothing was measured.

cuDNN's heuristics choose a kernel by a model of its own, so no simple rule gives each workspace.
The rules here are those of 6,400 calls of 75 networks and of 7,500 random ones, and for groups of
3,900 random ones more, measured on an H200 with cuDNN 9.19. Where similar calls
differ, the larger workspace counts.
"""

from __future__ import annotations

import math

from ...core.units import MIB

TILE_BYTES = 128 * 128 * 4
"""Partial sums of one multiprocessor: a kernel that divides a long sum among them keeps tiles of
128 x 128 numbers, one or two of each. Beside copies, a forward pass was measured to take up
to 7.5 MiB with 128 channels and 16.5 with 512, on the 132 multiprocessors of an H200."""
WIDE = 96, 512
"""Channels from which on sums are divided into one tile, and into two."""
FEW = (9, 4), (16, 3)
"""Places of a kernel, and most channels of images that are read as they are for these: others are
copied with channels last."""
NARROW = 32
"""Channels below which gradients of weights are computed from copies, with channels last too. Then
all of kernels of more than 16 places are, in single precision: 15 of 22."""
PARTIAL_SUMS = 11 * MIB
"""Partial sums of the gradient of a plane's weights: up to 10.9 MiB beside copies, and to a quarter
of these. Of few channels, and of copies of more than 256 MiB, they are less than 4 MiB."""
ALIGNED_BYTES = 16
"""Channels of a copy are padded to multiples of this."""
LONG = 320
"""Channels from which on a product of 1x1 was seen to work on copies, for few channels on the other
side."""
HUGE = 2**21
"""Weights of 1x1, 1024 x 2048, from which on it was seen to do so for any number of images."""
IN_PARTS = 4
"""A gradient of weights is computed for each image, and summed, if that takes up to 3.3 times what
copies of the operands take; from 6 times on, the copies are made."""
PART_ROWS = 3000
"""Channels of outputs in all partial sums together of the gradient of a volume's weights: as many
as there are parts of them. 53 random ones had up to 2,973."""
PART_PRODUCTS = 96_000
"""Numbers in those partial sums for each weight's place in the kernel: up to 95,000."""
DILATED_PARTS = 7
"""Partial sums beside the gradient itself of the weights of dilated convolutions."""


def convolution_bytes(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    options: dict[str, str],
    item: int,
    multiprocessors: int,
    channels_last: bool = False,
) -> int:
    """Allow for the workspace of a convolution, or of a gradient of one.

    Parameters
    ----------
    kind : {"convolution", "input gradient", "weight gradient"}
        Which of the three is computed.
    shapes : tuple of tuple of int
        Shapes of input, weight and output.
    options : dict
        Texts "stride", "padding" and "dilation", such as "2x2", and "groups" if there are several.
    item : int
        Bytes of a number.
    multiprocessors : int
        Multiprocessors of the device.
    channels_last : bool
        Whether the operands are stored so. Then those of several groups alone are copied: of 975
        random ones 660 took a workspace, most of them as much as with channels first.
    """
    if "transposed" in options:  # the input gradient of the convolution the other way round
        swapped = {"convolution": "input gradient", "input gradient": "convolution"}
        kind, shapes = swapped.get(kind, kind), shapes[::-1]
    x, weight, y = shapes
    n_in, n_out, groups = x[1], y[1], int(options.get("groups", "1"))
    kernel = weight[2:]
    taps = math.prod(kernel)
    stride = [int(part) for part in options["stride"].split("x")]
    is_strided = max(stride) > 1
    is_plane = len(kernel) < 3
    if 1 < groups == n_in:
        return _depthwise_bytes(kind, x, taps, is_strided, item) if channels_last else 0
    padded = _copies(shapes, item)
    summed = {"convolution": n_in, "input gradient": n_out}.get(kind, max(n_in, n_out))
    tiles = sum(summed >= wide for wide in WIDE) * multiprocessors * TILE_BYTES
    copies = sum(padded)
    if channels_last and groups == 1:
        of_weights = kind == "weight gradient"
        is_narrow = of_weights and min(n_in, n_out) < NARROW
        if item == 4 and (taps > 16 or (is_narrow and taps > 1)):
            return copies
        odd = [part for part, n in zip(padded, (n_in, 0, n_out), strict=True) if n % _step(item)]
        if odd:
            return padded[0] + padded[2] if kind == "input gradient" else sum(odd)
        return tiles if of_weights else 0
    if groups > 1:
        return _grouped_bytes(kind, shapes, groups, item, multiprocessors)
    if taps == 1 and not is_strided:
        return _pointwise_bytes(kind, shapes, padded, item)
    is_few = is_plane and any(1 < taps <= most and n_in <= few for most, few in FEW)
    is_few = is_few and (item == 4 or kind == "convolution")  # half precision copies for gradients
    if kind == "weight gradient":
        if is_few and (taps <= 9 or stride[0] < kernel[0]):
            return 0  # 80 of 83
        is_dilated = any(part != "1" for part in options["dilation"].split("x"))
        parts = padded[1] * DILATED_PARTS
        if not is_dilated:
            is_narrow = min(n_in, n_out) < 16 or copies > 256 * MIB
            sums = 4 * MIB if is_narrow else PARTIAL_SUMS
            parts = padded[1] + (sums if tiles or is_narrow else min(sums, copies // 4))
        if not is_plane:
            parts = max(parts, item * taps * min(PART_ROWS * n_in, PART_PRODUCTS))
        return copies + max(parts, tiles)
    if kind == "convolution" and is_plane and n_out >= WIDE[0] and n_in % _step(item):
        return padded[0] + padded[1]
    if is_few or (is_plane and n_in == 1 and n_out <= 32):
        return 0
    if not is_plane and summed >= 64:
        tiles = max(tiles, 2 * MIB)
    return copies if taps == 1 else copies + tiles


def _depthwise_bytes(kind: str, x: tuple[int, ...], taps: int, is_strided: bool, item: int) -> int:
    """Allow for a depthwise convolution with channels last: gradients of weights take some.

    With channels first none of 425 did (an H200, 2026-11-26). Those of 7x7 on fewer than 256
    channels of images above 16x16 took 8.5 to 10.2 times the input, all of 11; of smaller kernels
    and small images up to 3.7 times; all others less than 1.1 MiB.
    """
    if kind != "weight gradient" or len(x) != 4 or is_strided:
        return 0
    n_bytes, pixels = item * math.prod(x), math.prod(x[2:])
    if taps >= 49:
        return int(10.25 * n_bytes) if pixels > 16**2 and x[1] < 256 else 0
    return 4 * n_bytes if pixels <= 14**2 else MIB


def _pointwise_bytes(
    kind: str, shapes: tuple[tuple[int, ...], ...], padded: tuple[int, int, int], item: int
) -> int:
    """Allow for a convolution of 1x1 with stride 1: a product of matrices.

    It needs copies of its operands where the images' sizes are no multiples of 4 numbers, and for
    long sums.
    """
    x, weight, y = shapes
    n_in, n_out, n_pixels = x[1], y[1], math.prod(y[2:])
    n_weights, is_odd, copies = n_in * n_out, bool(n_pixels % 4), sum(padded)
    if kind == "convolution":
        if is_odd:  # such as 7x7: 100 of 266 copied, and 11 of 115 with fewer channels
            return copies if n_in >= 448 else 0
        is_long = LONG <= n_in <= 416 and n_out <= 192 and n_pixels <= 32**2
        return copies if is_long or n_weights >= HUGE else 0
    if kind == "input gradient":
        if is_odd:  # 34 of 70 copied, and 2 of 172 with fewer
            return copies if n_out >= 256 and n_weights >= 2**17 else 0
        return copies if n_out >= 2048 or n_weights > 2**19 else 0
    if n_pixels == 1:
        return copies
    by_image = x[0] * item * math.prod(weight)
    with_parts = copies + 2 * padded[1]
    if by_image > IN_PARTS * copies:
        return with_parts
    if (is_odd and n_weights >= 2**16) or n_weights >= 2**18:
        return max(by_image, with_parts)
    # Of few weights, some work on copies: 27 to 162 channels, 64 to 64.
    is_small = min(n_in, n_out) <= 64 and (max(n_in, n_out) <= 192 or n_pixels > 2**14)
    return max(by_image, copies + MIB) if is_small or len(x) == 5 else by_image


def _copies(shapes: tuple[tuple[int, ...], ...], item: int) -> tuple[int, int, int]:
    """Bytes of copies of the three operands with channels last, which tensor cores need."""
    x, weight, y = shapes
    in_padded, out_padded = _aligned(x[1], item), _aligned(y[1], item)
    return (
        item * math.prod(x) // x[1] * in_padded,
        item * math.prod(weight[2:]) * in_padded * out_padded,
        item * math.prod(y) // y[1] * out_padded,
    )


def _grouped_bytes(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    groups: int,
    item: int,
    multiprocessors: int,
) -> int:
    """Allow for a convolution with several groups of several channels.

    One kernel takes all groups from copies in which each is padded to a power of 2, as wide in as
    out. Others take group by group, from copies that are hardly padded or none, which is less.
    """
    x, weight, y = shapes
    widest, taps = max(x[1], y[1]) // groups, math.prod(weight[2:])
    width = max(_aligned(1, item), 1 << (widest - 1).bit_length())
    pixels = x[0] * math.prod(x[2:]) + y[0] * math.prod(y[2:])
    of_weights = taps * width**2
    padded = groups * item * (pixels * width + of_weights)
    tile = multiprocessors * TILE_BYTES
    if kind == "weight gradient":
        return padded + tile + groups * item * of_weights
    # Of input gradients none of 67 took more than copies.
    return padded + (tile if widest > 128 and kind == "convolution" and taps > 1 else 0)


def _step(item: int) -> int:
    """Channels of which the channels of a copy are a multiple."""
    return ALIGNED_BYTES // item


def _aligned(n_channels: int, item: int) -> int:
    """Channels with padding."""
    return -(-n_channels // _step(item)) * _step(item)
