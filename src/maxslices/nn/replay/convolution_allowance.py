"""Allowance for the workspace of a convolution that was not measured.

cuDNN's heuristics choose a kernel by a model of their own, so simple rules give only bounds. These
rules follow 6,400 calls of 75 networks, 7,500 random calls and 3,900 random calls with groups, all
measured on an H200 with cuDNN 9.19. Where similar calls differ, the larger workspace counts.
"""

from __future__ import annotations

import math

from ...core.units import MIB

TILE_BYTES = 128 * 128 * 4
"""Partial sums of one multiprocessor. A kernel that divides a long sum among multiprocessors keeps
one or two tiles of 128 x 128 numbers for each. On the 132 multiprocessors of an H200, forward
passes took up to 7.5 MiB with 128 channels and 16.5 MiB with 512, in addition to copies."""
WIDE = 96, 512
"""Least channels for which sums are divided into one tile, and into two."""
FEW = (9, 4), (16, 3)
"""Weights per kernel, and most channels of images that such kernels read directly. Other images are
copied with channels last."""
NARROW = 32
"""Channels below which gradients of weights are computed from copies, with channels last too. In
single precision, kernels of more than 16 weights always are (15 of 22)."""
PARTIAL_SUMS = 11 * MIB
"""Partial sums of the gradient of 2D weights: up to 10.9 MiB, and up to a quarter of the copies.
With few channels, or copies of more than 256 MiB, they take less than 4 MiB."""
ALIGNED_BYTES = 16
"""Channels of a copy are padded to multiples of this."""
LONG = 320
"""Least channels for which a 1x1 product was observed to use copies, with few channels on the other
side."""
HUGE = 2**21
"""Least number of 1x1 weights (1024 x 2048) for which it used copies at any number of images."""
IN_PARTS = 4
"""A gradient of weights is computed for each image, and summed, if that takes up to 3.3 times the
memory of copies of the operands. From 6 times on, the operands are copied."""
PART_ROWS = 3000
"""Output channels in all partial sums of the gradient of 3D weights together. 53 random calls had
up to 2,973."""
PART_PRODUCTS = 96_000
"""Numbers in those partial sums for each position in the kernel: up to 95,000."""
DILATED_PARTS = 7
"""Partial sums of the gradient of the weights of dilated convolutions, in units of the gradient."""


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
        Result that is computed.
    shapes : tuple of tuple of int
        Shapes of input, weight and output.
    options : dict
        Texts "stride", "padding" and "dilation", such as "2x2", and "groups" if more than one.
    item : int
        Bytes of a number.
    multiprocessors : int
        Multiprocessors of the device.
    channels_last : bool
        Whether the operands are stored with channels last. Then only operands with several groups
        are copied: 660 of 975 random calls took a workspace, most of them as much as with channels
        first.
    """
    if "transposed" in options:  # the input gradient of a convolution in the other direction
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
    is_few = is_few and (
        item == 4 or kind == "convolution"
    )  # gradients in half precision use copies
    if kind == "weight gradient":
        if is_few and (taps <= 9 or stride[0] < kernel[0]):
            return 0  # so did 80 of 83 calls
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
    """Allow for a depthwise convolution with channels last.

    Only gradients of weights take a workspace (an H200, 2026-11-26). With 7x7 kernels, fewer than
    256 channels and images above 16x16 it was 8.5 to 10.2 times the input in all 11 calls. With
    smaller kernels and small images it was up to 3.7 times the input, and otherwise less than 1.1
    MiB. With channels first none of 425 calls took one.
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
    """Allow for a 1x1 convolution with stride 1, which is a matrix product.

    It copies its operands if the number of pixels is not a multiple of 4, and for long sums.
    """
    x, weight, y = shapes
    n_in, n_out, n_pixels = x[1], y[1], math.prod(y[2:])
    n_weights, is_odd, copies = n_in * n_out, bool(n_pixels % 4), sum(padded)
    if kind == "convolution":
        if is_odd:  # such as 7x7: 100 of 266 calls copied, and 11 of 115 with fewer channels
            return copies if n_in >= 448 else 0
        is_long = LONG <= n_in <= 416 and n_out <= 192 and n_pixels <= 32**2
        return copies if is_long or n_weights >= HUGE else 0
    if kind == "input gradient":
        if is_odd:  # 34 of 70 calls copied, and 2 of 172 with fewer channels
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
    # With few weights, some calls copy: 27 to 162 channels, and 64 to 64.
    is_small = min(n_in, n_out) <= 64 and (max(n_in, n_out) <= 192 or n_pixels > 2**14)
    return max(by_image, copies + MIB) if is_small or len(x) == 5 else by_image


def _copies(shapes: tuple[tuple[int, ...], ...], item: int) -> tuple[int, int, int]:
    """Bytes of copies of the three operands with channels last, as tensor cores need them."""
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

    One kernel computes all groups from copies in which the channels of each group are padded to a
    power of 2, equal for input and output. Other kernels compute one group at a time and need less.
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
    # None of 67 input gradients took more than copies.
    return padded + (tile if widest > 128 and kind == "convolution" and taps > 1 else 0)


def _step(item: int) -> int:
    """Divisor of the number of channels of a copy."""
    return ALIGNED_BYTES // item


def _aligned(n_channels: int, item: int) -> int:
    """Number of channels including padding."""
    return -(-n_channels // _step(item)) * _step(item)
