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
to 8.25 MiB with 256 channels and 16.5 with 512, on the 132 multiprocessors of an H200."""
TILE = 128
"""Channels of an output that was written as it is stored: from up to 64, with a kernel of up to 3x3
and 2**15 pixels in the batch, none of 77 copied it."""
WIDE = 256
"""Channels from which on sums are divided so; from twice as many on, there are two tiles."""
ALIGNED_BYTES = 16
"""Channels of a copy are padded to multiples of this."""
LONG = 320
"""Channels from which on a product of 1x1 was seen to work on copies, for few channels on the other
side."""
MANY_PIXELS = 12_544
"""Pixels of a batch from which on outputs of 448 to 768 channels of a 1x1 with strides, such as
ResNet's second, were written as they are stored: all of 26. None of 29 with up to 8,192 was."""
HUGE = 2**21
"""Weights of 1x1, 1024 x 2048, from which on it was seen to do so for any number of images."""
FEW_PIXELS = 256
"""Pixels of a batch's output up to which sums are hardly divided, for kernels to 3x3 that are not
dilated: none of 104 random calls took more than `FEW_BYTES` beside copies. With 280 to 600 pixels 9
of 39 did."""
FEW_BYTES = 5 * MIB // 4
"""What those calls took at most, 1.13 MiB."""
IN_PARTS = 4
"""A gradient of weights is computed for each image, and summed, if that takes up to 3.3 times what
copies of the operands take; from 6 times on, the copies are made."""
PART_ROWS = 3000
"""Channels of outputs in all partial sums together of the gradient of a volume's weights: as many
as there are parts of them. 53 random ones had up to 2,973."""
PART_PRODUCTS = 96_000
"""Numbers in those partial sums for each weight's place in the kernel: up to 95,000."""
IDLE = 8
"""Products of a padded group for each one that counts, from which on groups are not padded if all
take long."""
IDLE_PRODUCTS = 20 * 10**9
"""Products of all padded groups from which on that is so: of 9 forward calls and of 9 input
gradients none was padded, while one with 17e9 was."""
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
    n_weights = n_in * n_out
    is_plane = len(kernel) < 3
    if 1 < groups == n_in:
        return _depthwise_bytes(kind, x, taps, is_strided, item) if channels_last else 0
    if channels_last and groups == 1:
        return _tiles(n_in, n_out, multiprocessors) if kind == "weight gradient" else 0
    if groups > 1:
        return _grouped_bytes(kind, shapes, groups, is_strided, item, multiprocessors)
    padded = _copies(shapes, item)
    if taps == 1 and not is_strided:
        return _pointwise_bytes(kind, shapes, padded, item)
    if taps == 1 and is_plane and n_in > 4:
        return _sampled_bytes(kind, shapes, max(stride), padded, item, multiprocessors)
    copies = sum(padded)
    is_dilated = any(part != "1" for part in options["dilation"].split("x"))
    is_common = is_plane and not is_dilated and 1 < taps <= 9 and n_in > 4 and item == 4
    if is_common and y[0] * math.prod(y[2:]) <= FEW_PIXELS:
        return copies + FEW_BYTES
    if kind == "weight gradient":
        if n_in <= 4 and is_plane and 1 < taps <= 9:
            return 0  # 76 of 78; volumes copy
        parts = padded[1] * DILATED_PARTS if is_dilated else padded[1] + 4 * MIB
        if not is_plane:
            parts = max(parts, item * taps * min(PART_ROWS * n_in, PART_PRODUCTS))
        return copies + max(parts, _tiles(n_in, n_out, multiprocessors))
    if n_in <= 4:
        # Of up to 4 channels 101 of 105 small kernels made no copies, nor 28 of 30 others to 32.
        # Volumes did: MONAI's UNet and VNet, and 12 of 19 random ones.
        if is_plane and kind == "input gradient" and taps <= 9:
            return 0
        if all(step >= size for step, size in zip(stride, kernel, strict=True)):
            return padded[0]  # patches that do not overlap
        if is_plane:
            return 0 if taps <= 9 or n_out <= 32 else copies
    # Such as 16 to 32 channels; from 224x224 to 112x112 it did copy.
    is_small = n_weights <= 512 and math.prod(y[2:]) <= 64**2
    if kind == "convolution" and is_small and is_strided:
        return 0
    is_tile = n_in <= 64 and n_out == TILE and taps <= 9 and y[0] * math.prod(y[2:]) >= 2**15
    if kind == "convolution" and is_plane and is_tile:
        return padded[0] + padded[1]
    return copies if taps == 1 else copies + _tiles(n_in, n_out, multiprocessors)


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
        times = 0 if pixels <= 16**2 or x[1] >= 256 else 9.1 if pixels >= 56**2 else 10.25
        return int(times * n_bytes)
    return 4 * n_bytes if pixels <= 14**2 else MIB


def _sampled_bytes(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    stride: int,
    padded: tuple[int, int, int],
    item: int,
    multiprocessors: int,
) -> int:
    """Allow for a convolution of 1x1 with strides, such as those beside a block of ResNet.

    Weights of 1x1 lie alike with channels first and last, so they are copied only if they are
    padded. All 262 gradients of weights took at most one tile a multiprocessor beside the copies.
    """
    x, weight, y = shapes
    n_in, n_out = x[1], y[1]
    is_alike = padded[1] == item * math.prod(weight)
    copies = padded[0] + padded[2] + (0 if is_alike else padded[1])
    if kind == "weight gradient":
        return copies + multiprocessors * TILE_BYTES
    if kind == "input gradient":
        # Of fewer channels none of 36 copied; of more, 158 of 173 did.
        if n_in < 192 and n_out < 640:
            return 0
        return copies + (padded[1] if stride > 2 else 0)
    if n_in <= 64 or n_in * n_out < 2**14:
        return 0
    is_wide = 160 <= n_in <= 320 and 448 <= n_out <= 768
    if is_wide and y[0] * math.prod(y[2:]) >= MANY_PIXELS:
        return padded[0] + padded[1]
    return copies


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
    is_small = min(n_in, n_out) <= 64 and max(n_in, n_out) <= 192
    return max(by_image, copies) if is_small or len(x) == 5 else by_image


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
    is_strided: bool,
    item: int,
    multiprocessors: int,
) -> int:
    """Allow for a convolution with several groups of several channels.

    One kernel takes all groups from copies in which each is padded to a power of 2, as wide in as
    out; others take group by group, from copies that are hardly padded, or none. Numbers are those
    of the half of 7,800 random calls that the rules were chosen on.
    """
    x, weight, y = shapes
    n_in, n_out = x[1] // groups, y[1] // groups
    widest, taps = max(n_in, n_out), math.prod(weight[2:])
    is_pointwise, is_weights = taps == 1, kind == "weight gradient"
    pixels = y[0] * math.prod(y[2:])
    width = max(_aligned(1, item), 1 << (widest - 1).bit_length())

    def copies(n_in: int, n_out: int) -> int:
        of_one = x[0] * math.prod(x[2:]) * n_in + pixels * n_out + taps * n_in * n_out
        return groups * item * of_one

    plain = copies(_aligned(n_in, item), _aligned(n_out, item))
    padded = copies(width, width)
    tile = multiprocessors * TILE_BYTES
    if item == 4 and len(weight) < 5:
        if is_pointwise and kind == "convolution":
            # Up to 64 channels took none in 104 of 114 calls.
            return 0 if widest <= 64 else padded if widest <= 128 else plain
        if is_pointwise and kind == "input gradient":
            return plain  # 156 of 161
        if is_pointwise and is_strided and widest <= 64:
            return 0  # 22 of 30
        # Multiplying zeros takes time. Of two small groups with more out than in, one of 14 forward
        # calls was padded, 14 to 104 channels.
        is_slow = groups * width**2 * taps * pixels >= IDLE_PRODUCTS
        is_small = kind == "convolution" and groups == 2 and n_in < n_out and width <= 128
        if width**2 >= IDLE * n_in * n_out and (is_slow or is_small):
            padded = plain
        # RegNets' first: all five such calls of two groups, and then both of three.
        is_few = groups <= 3 and n_in == n_out and width <= 32
        if kind == "convolution" and is_few and is_strided:
            padded = plain
        if width > (256 if kind == "convolution" or is_weights else 128):
            padded = plain  # 77 of 78 input gradients; all of six forward calls
    if is_weights:
        return padded + tile + groups * item * taps * width**2
    # Of input gradients none of 67 took more than copies.
    has_tile = widest > 128 and kind == "convolution" and not is_pointwise
    return padded + (tile if has_tile else 0)


def _aligned(n_channels: int, item: int) -> int:
    """Channels with padding."""
    step = ALIGNED_BYTES // item
    return -(-n_channels // step) * step


def _tiles(n_in: int, n_out: int, multiprocessors: int) -> int:
    return min(2, max(n_in, n_out) // WIDE) * multiprocessors * TILE_BYTES
