"""Networks as users of torch write them, none of which the rules of prediction were tuned to.

Nothing here knows how memory is predicted. ``NETWORKS`` lists the cases. A step takes some hundred
MB to a few GB on a GPU::

    case = NETWORKS[0]
    with torch.device("cuda"):
        parts = case.make()
        inputs = parts.inputs(case.batch)
    output = call(parts, inputs)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

try:
    import torch
except ImportError:  # pytest imports this file to look for doctests
    import pytest

    pytest.skip("torch is not installed", allow_module_level=True)

from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

BOTH = ("training", "inference")
TRAINING = ("training",)


class Parts(NamedTuple):
    """Model, data, loss and optimizer of a training loop."""

    model: nn.Module
    inputs: Callable[[int], Any]
    """Function of the batch size that returns positional arguments, or a mapping of keywords."""
    loss: Callable[..., torch.Tensor] | None = None
    """``loss(output[, targets])``; None if the model returns its loss."""
    targets: Callable[[int], Any] | None = None
    """Function of the batch size that returns the targets."""
    optimizer: type = torch.optim.Adam
    modes: tuple[str, ...] = BOTH
    step: Callable[..., Any] | None = None
    """``step(model, optimizer, inputs, targets)``, in place of the usual training step."""
    make_optimizer: Callable[[nn.Module], Any] | None = None
    """Function of the model that makes the optimizers, unless one optimizes all parameters."""
    n_steps: int = 1
    """Steps after which memory no longer grows."""


class Case(NamedTuple):
    """A model and its training step, with the batch that suits its size."""

    name: str
    make: Callable[..., Parts]
    """Builds the model on torch's default device. Its keyword arguments are sizes."""
    batch: int


def case(listing: list[Case], batch: int):
    """Append the decorated function to a list of cases."""

    def append(make):
        listing.append(Case(make.__name__, make, batch))
        return make

    return append


def optimizer_of(parts: Parts):
    """Make an optimizer of the trainable parameters, or the optimizers of the case's own step."""
    if parts.make_optimizer is not None:
        return parts.make_optimizer(parts.model)
    return parts.optimizer([p for p in parts.model.parameters() if p.requires_grad])


def call(parts: Parts, inputs):
    """Call the model."""
    return parts.model(**inputs) if isinstance(inputs, Mapping) else parts.model(*inputs)


def training_step(parts: Parts, optimizer, inputs, targets=None):
    """Run a usual training step, or the case's own step."""
    if parts.step is not None:
        return parts.step(parts.model, optimizer, inputs, targets)
    optimizer.zero_grad()
    output = call(parts, inputs)
    if parts.loss is None:
        loss = output
    else:
        loss = parts.loss(output) if targets is None else parts.loss(output, targets)
    loss.backward()
    optimizer.step()
    return loss


NETWORKS: list[Case] = []


class Net(nn.Module):
    """Layers by name, and a function of the model and its inputs that is its forward."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def repeated(n, make):
    """A list of n modules."""
    return nn.ModuleList(make() for _ in range(n))


def convs(*widths, norm=None, act=nn.ReLU, ends=False, bias=True, dim=2):
    """3x3 convolutions with norms and activations, which follow the last only with `ends`."""
    conv = (nn.Conv2d, nn.Conv3d)[dim - 2]
    layers = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers.append(conv(a, b, 3, padding=1, bias=bias))
        if ends or i < len(widths) - 2:
            layers += [*([norm(b)] if norm else []), act()]
    return nn.Sequential(*layers)


def mlp(*widths, act=nn.ReLU):
    """Linear layers with activations between them."""
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def images(channels: int, *sides: int):
    """A maker of batches of random images."""
    return lambda n: (torch.randn(n, channels, *sides),)


def like(channels: int, *sides: int):
    """A maker of batches of random targets."""
    return lambda n: torch.randn(n, channels, *sides)


def labels(n_classes: int, *sides: int):
    """A maker of batches of random classes."""
    return lambda n: torch.randint(0, n_classes, (n, *sides))


def tokens(n_tokens: int, length: int):
    """A maker of batches of random tokens."""
    return lambda n: (torch.randint(0, n_tokens, (n, length)),)


def token_loss(output, target):
    """Cross entropy of each token."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def classifies(model, n_classes, *image, optimizer=torch.optim.Adam, **options):
    """Parts of a classifier of images."""
    return Parts(
        model, images(*image), nn.CrossEntropyLoss(), labels(n_classes), optimizer, **options
    )


def pooled(n_in, n_classes):
    """The mean over the image, and a linear layer."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, n_classes)


# --- U-Nets and volumes ---------------------------------------------------------------------------


@case(NETWORKS, 8)
def unet_2d(width=32, depth=4, side=256):
    """Segmentation of images by a 2D U-Net."""

    def double(n_in, n_out):
        act = partial(nn.ReLU, inplace=True)
        return convs(n_in, n_out, n_out, norm=nn.BatchNorm2d, act=act, ends=True, bias=False)

    def forward(m, x):
        skips = [m.first(x)]
        for down in m.down:
            skips.append(down(functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(m.up, m.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return m.last(x)

    widths = [width * 2**i for i in range(depth + 1)]
    pairs = list(itertools.pairwise(widths))
    model = Net(
        forward,
        first=double(3, width),
        down=nn.ModuleList(double(a, b) for a, b in pairs),
        up=nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs)),
        merge=nn.ModuleList(double(2 * a, a) for a in reversed(widths[:-1])),
        last=nn.Conv2d(width, 5, 1),
    )
    return Parts(model, images(3, side, side), nn.CrossEntropyLoss(), labels(5, side, side))


def dice_and_entropy(output, target):
    """Soft Dice loss plus cross entropy."""
    chance = output.softmax(dim=1)
    truth = functional.one_hot(target, output.shape[1]).movedim(-1, 1).to(chance.dtype)
    axes = tuple(range(2, output.ndim))
    overlap = (chance * truth).sum(axes)
    dice = (2 * overlap + 1) / (chance.sum(axes) + truth.sum(axes) + 1)
    return 1 - dice.mean() + functional.cross_entropy(output, target)


@case(NETWORKS, 2)
def unet_3d(width=16, side=80):
    """Segmentation of volumes by a residual 3D U-Net, with Dice loss."""
    block = partial(
        convs, norm=partial(nn.InstanceNorm3d, affine=True), act=partial(nn.LeakyReLU, 0.01),
        ends=True, dim=3,
    )  # fmt: skip
    larger = partial(functional.interpolate, scale_factor=2, mode="trilinear", align_corners=False)

    def forward(m, x):
        a = m.stem(x)
        a = a + m.a(a)
        b = m.down_a(a)
        b = b + m.b(b)
        c = m.down_b(b)
        c = c + m.c(c)
        b = m.up_b(torch.cat([b, larger(c)], dim=1))
        return m.last(m.up_a(torch.cat([a, larger(b)], dim=1)))

    model = Net(
        forward,
        stem=nn.Conv3d(1, width, 3, padding=1),
        a=block(width, width), b=block(2 * width, 2 * width), c=block(4 * width, 4 * width),
        down_a=nn.Conv3d(width, 2 * width, 2, stride=2),
        down_b=nn.Conv3d(2 * width, 4 * width, 2, stride=2),
        up_b=block(6 * width, 2 * width), up_a=block(3 * width, width),
        last=nn.Conv3d(width, 2, 1),
    )  # fmt: skip
    volume = (side, side, side)
    return Parts(model, images(1, *volume), dice_and_entropy, labels(2, *volume), torch.optim.AdamW)


@case(NETWORKS, 1)
def dilated_3d(n_layers=12, growth=2, side=96):
    """Denoising of volumes by dilated convolutions on the results of all earlier ones."""

    def forward(m, x):
        earlier = x
        for layer in m.layers:
            earlier = torch.cat([earlier, layer(earlier).relu()], dim=1)
        return x + m.last(earlier)

    layers = [
        nn.Conv3d(1 + i * growth, growth, 3, padding=1 + i % 4, dilation=1 + i % 4)
        for i in range(n_layers)
    ]
    last = nn.Conv3d(1 + n_layers * growth, 1, 1)
    volume = (1, side, side, side)
    model = Net(forward, layers=nn.ModuleList(layers), last=last)
    return Parts(model, images(*volume), nn.L1Loss(), like(*volume))


# --- Fourier transforms ---------------------------------------------------------------------------


class SpectralConv1d(nn.Module):
    """Multiplies the lowest frequencies by complex weights."""

    def __init__(self, width, n_modes):
        super().__init__()
        scale = 1 / width**2
        self.n_modes = n_modes
        self.weight = nn.Parameter(scale * torch.rand(width, width, n_modes, dtype=torch.cfloat))

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        low = spectrum[:, :, : self.n_modes]
        out[:, :, : self.n_modes] = torch.einsum("bix,iox->box", low, self.weight)
        return torch.fft.irfft(out, n=x.shape[-1])


@case(NETWORKS, 16)
def fno_1d(width=64, n_modes=16, n_layers=4, length=8192):
    """Fourier neural operator on a line, with the coordinate as a second channel."""

    def forward(m, x):
        grid = torch.linspace(0, 1, x.shape[1], device=x.device).view(1, -1, 1)
        x = m.lift(torch.cat([x, grid.expand(x.shape[0], -1, 1)], dim=-1)).permute(0, 2, 1)
        for spectral, local in zip(m.spectral, m.local, strict=True):
            x = functional.gelu(spectral(x) + local(x))
        return m.project(x.permute(0, 2, 1))

    model = Net(
        forward,
        lift=nn.Linear(2, width),
        spectral=repeated(n_layers, lambda: SpectralConv1d(width, n_modes)),
        local=repeated(n_layers, lambda: nn.Conv1d(width, width, 1)),
        project=mlp(width, 128, 1, act=nn.GELU),
    )
    return Parts(model, images(length, 1), nn.MSELoss(), like(length, 1))


class SpectralConv2d(nn.Module):
    """Multiplies two corners of the half spectrum by complex weights."""

    def __init__(self, width, n_modes):
        super().__init__()
        shape = (width, width, n_modes, n_modes)
        self.n_modes = n_modes
        self.positive = nn.Parameter(torch.randn(*shape, dtype=torch.cfloat) / width**2)
        self.negative = nn.Parameter(torch.randn(*shape, dtype=torch.cfloat) / width**2)

    def forward(self, x):
        m = self.n_modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(spectrum.shape, dtype=torch.cfloat, device=x.device)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.positive)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.negative)
        return torch.fft.irfft2(out, s=x.shape[-2:])


def relative_error(output, target):
    """Mean of the relative L2 errors of a batch's items."""
    difference = torch.linalg.vector_norm((output - target).flatten(1), dim=1)
    return (difference / torch.linalg.vector_norm(target.flatten(1), dim=1)).mean()


@case(NETWORKS, 8)
def fno_2d(width=32, n_modes=12, n_layers=4, side=192):
    """Fourier neural operator in the plane, with complex weights."""
    pad = 8  # as the domain is not periodic

    def forward(m, x):
        x = functional.pad(m.lift(x), (0, pad, 0, pad))
        for i, (spectral, local) in enumerate(zip(m.spectral, m.local, strict=True)):
            x = spectral(x) + local(x)
            if i < n_layers - 1:
                x = functional.gelu(x)
        return m.project(x[..., :-pad, :-pad])

    model = Net(
        forward,
        lift=nn.Conv2d(3, width, 1),
        spectral=repeated(n_layers, lambda: SpectralConv2d(width, n_modes)),
        local=repeated(n_layers, lambda: nn.Conv2d(width, width, 1)),
        project=nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1)),
    )
    return Parts(model, images(3, side, side), relative_error, like(1, side, side))


@case(NETWORKS, 2)
def sinogram_filter(n_angles=1801, n_columns=2560, n_filters=3):
    """Learned filtering of padded sinograms: rfft, multiply, irfft, crop."""
    n_padded = 2 ** math.ceil(math.log2(2 * n_columns))
    before = (n_padded - n_columns) // 2

    def forward(m, sinogram):
        sides = (before, n_padded - n_columns - before)
        padded = functional.pad(sinogram.squeeze(1), sides, mode="replicate")
        spectrum = torch.fft.rfft(padded, dim=-1).unsqueeze(1)
        filtered = torch.fft.irfft(spectrum * m.filters[:, None], n=n_padded, dim=-1)
        return m.mix(filtered[..., before : before + n_columns])

    ramp = torch.linspace(0, 1, n_padded // 2 + 1)
    model = Net(
        forward, filters=nn.Parameter(ramp.repeat(n_filters, 1)),
        mix=nn.Conv2d(n_filters, 1, (3, 1), padding=(1, 0)),
    )  # fmt: skip
    shape = (1, n_angles, n_columns)
    return Parts(model, images(*shape), nn.MSELoss(), like(*shape), torch.optim.SGD)


class PhaseRetrieval(nn.Module):
    """Propagates a complex wave through layers of learned phase, and measures its intensity."""

    def __init__(self, n_layers, side):
        super().__init__()
        self.phase = nn.Parameter(0.1 * torch.randn(n_layers, side, side))
        f = torch.fft.fftfreq(side)
        self.register_buffer("propagator", torch.exp(-1j * math.pi * (f[:, None] ** 2 + f**2)))

    def forward(self, wave):
        for phase in self.phase:
            wave = wave * torch.polar(torch.ones_like(phase), phase)
            wave = torch.fft.ifft2(torch.fft.fft2(wave, norm="ortho") * self.propagator)
        return wave.abs().square()


@case(NETWORKS, 8)
def complex_propagation(n_layers=6, side=1024):
    """Complex waves through phase layers, by complex FFTs to and fro."""
    return Parts(
        PhaseRetrieval(n_layers, side),
        lambda n: (torch.randn(n, side, side, dtype=torch.complex64),),
        nn.MSELoss(),
        lambda n: torch.rand(n, side, side),
    )


class LearnedPrimalDual(nn.Module):
    """Learned primal-dual reconstruction from some frequencies of an image."""

    def __init__(self, n_iterations, n_memory, width, side):
        super().__init__()
        self.n_memory = n_memory
        self.dual, self.primal = (
            repeated(n_iterations, lambda n=n: small_net(2 * n_memory + n, 2 * n_memory, width))
            for n in (4, 2)
        )
        self.register_buffer("mask", (torch.rand(side, side) < 0.3).float())

    def measure(self, image):
        spectrum = torch.fft.fft2(torch.complex(image[:, :1], image[:, 1:2]), norm="ortho")
        return torch.view_as_real(spectrum * self.mask).squeeze(1).permute(0, 3, 1, 2)

    def adjoint(self, data):
        spectrum = torch.view_as_complex(data.permute(0, 2, 3, 1).contiguous()) * self.mask
        return torch.view_as_real(torch.fft.ifft2(spectrum, norm="ortho")).permute(0, 3, 1, 2)

    def forward(self, data):
        n, _, height, width = data.shape
        primal = data.new_zeros(n, 2 * self.n_memory, height, width)
        dual = torch.zeros_like(primal)
        for update_dual, update_primal in zip(self.dual, self.primal, strict=True):
            seen = self.measure(primal[:, 2:4] if self.n_memory > 1 else primal)
            dual = dual + update_dual(torch.cat([dual, seen, data], dim=1))
            back = self.adjoint(dual[:, :2])
            primal = primal + update_primal(torch.cat([primal, back], dim=1))
        return primal[:, :2]


def small_net(n_in, n_out, width):
    """Three convolutions with PReLU."""
    return convs(n_in, width, width, n_out, act=lambda: nn.PReLU(width))


@case(NETWORKS, 4)
def learned_primal_dual(n_iterations=6, n_memory=5, width=32, side=256):
    """Learned primal-dual reconstruction with a Fourier operator."""
    model = LearnedPrimalDual(n_iterations, n_memory, width, side)
    return Parts(model, images(2, side, side), nn.MSELoss(), like(2, side, side))


class UnrolledDescent(nn.Module):
    """Gradient descent on a deconvolution, unrolled, with a learned proximal step."""

    def __init__(self, n_iterations, width):
        super().__init__()
        self.register_buffer("kernel", torch.ones(1, 1, 9, 9) / 81)
        self.steps = nn.Parameter(torch.full((n_iterations,), 0.5))
        self.prior = convs(1, width, width, 1)  # the same in each iteration

    def forward(self, blurred):
        x = blurred
        for step in self.steps:
            rest = functional.conv2d(x, self.kernel, padding=4) - blurred
            x = x - step * functional.conv_transpose2d(rest, self.kernel, padding=4)
            x = x - self.prior(x)
        return x


@case(NETWORKS, 4)
def unrolled_descent(n_iterations=8, width=32, side=256):
    """Unrolled gradient descent with a shared prior."""
    model = UnrolledDescent(n_iterations, width)
    return Parts(model, images(1, side, side), nn.MSELoss(), like(1, side, side))


# --- Transformers and sequences -------------------------------------------------------------------


@case(NETWORKS, 16)
def transformer_encoder(n_tokens=30000, width=512, n_heads=8, n_layers=6, length=256):
    """Classification of texts by nn.TransformerEncoder, with padding."""

    def forward(m, tokens):
        padded = tokens == 0
        x = m.embed(tokens) + m.position[: tokens.shape[1]]
        x = m.encoder(x, src_key_padding_mask=padded)
        kept = (~padded).unsqueeze(-1).to(x.dtype)
        return m.head((x * kept).sum(1) / kept.sum(1).clamp(min=1))

    embed = nn.Embedding(n_tokens, width, padding_idx=0)
    position = nn.Parameter(0.02 * torch.randn(length, width))
    layer = nn.TransformerEncoderLayer(width, n_heads, 4 * width, batch_first=True)
    encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
    head = nn.Linear(width, 4)
    model = Net(forward, embed=embed, position=position, encoder=encoder, head=head)

    def padded(n):
        sequences = torch.randint(1, n_tokens, (n, length))
        sequences[0, length // 2 :] = 0
        return (sequences,)

    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Parts(model, padded, loss, labels(4), torch.optim.AdamW)


class DecoderBlock(nn.Module):
    """Attention to what came before, and a gated feed-forward part."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cache=None):
        n, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(n, length, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        causal = length > 1
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), (k, v)


class Decoder(nn.Module):
    """Language model that returns logits in training, and new tokens in inference."""

    def __init__(self, n_tokens, width, n_heads, n_layers, max_length, n_new):
        super().__init__()
        self.n_new = n_new
        self.embed = nn.Embedding(n_tokens, width)
        self.position = nn.Embedding(max_length, width)
        self.blocks = repeated(n_layers, lambda: DecoderBlock(width, n_heads))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, n_tokens, bias=False)

    def logits(self, tokens, caches=None, start=0):
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.position(places)
        kept = []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[i])
            kept.append(cache)
        return self.head(self.norm(x)), kept

    def forward(self, tokens):
        logits, caches = self.logits(tokens)
        if self.training:
            return logits
        start = tokens.shape[1]
        out = [logits[:, -1:].argmax(-1)]
        for i in range(self.n_new - 1):
            logits, caches = self.logits(out[-1], caches, start + i)
            out.append(logits[:, -1:].argmax(-1))
        return torch.cat(out, dim=1)


@case(NETWORKS, 8)
def decoder_with_cache(n_tokens=16000, width=512, n_heads=8, n_layers=8, length=256, n_new=32):
    """Language model: teacher forcing in training, greedy decoding with a cache in inference."""
    model = Decoder(n_tokens, width, n_heads, n_layers, length + n_new, n_new)
    return Parts(
        model, tokens(n_tokens, length), lambda out, target: token_loss(out[:, :-1], target[:, 1:]),
        labels(n_tokens, length), torch.optim.AdamW,
    )  # fmt: skip


@case(NETWORKS, 16)
def vision_transformer(side=224, patch=16, width=384, n_heads=6, n_layers=12):
    """Classification of images by a vision transformer with nn.MultiheadAttention."""

    def block(m, x):
        y = m.norm_1(x)
        x = x + m.attention(y, y, y, need_weights=False)[0]
        return x + m.mlp(m.norm_2(x))

    def forward(m, x):
        x = m.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], dim=1) + m.position
        for layer in m.layers:
            x = layer(x)
        return m.head(m.norm(x[:, 0]))

    def layer():
        return Net(
            block, norm_1=nn.LayerNorm(width), norm_2=nn.LayerNorm(width),
            attention=nn.MultiheadAttention(width, n_heads, dropout=0.1, batch_first=True),
            mlp=nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
            ),
        )  # fmt: skip

    model = Net(
        forward,
        patches=nn.Conv2d(3, width, patch, stride=patch),
        token=nn.Parameter(torch.zeros(1, 1, width)),
        position=nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width)),
        layers=repeated(n_layers, layer),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, 100),
    )
    return classifies(model, 100, 3, side, side)


@case(NETWORKS, 32)
def mlp_mixer(side=224, patch=16, width=512, n_layers=8):
    """Classification of images by an MLP-Mixer."""

    def forward(m, x):
        x = m.embed(m.unfold(x).transpose(1, 2))
        for i, (tokens, channels) in enumerate(zip(m.tokens, m.channels, strict=True)):
            x = x + tokens(m.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(m.norms[2 * i + 1](x))
        return m.head(x.mean(dim=1))

    n = (side // patch) ** 2
    model = Net(
        forward,
        unfold=nn.Unfold(patch, stride=patch),
        embed=nn.Linear(3 * patch**2, width),
        norms=repeated(2 * n_layers, lambda: nn.LayerNorm(width)),
        tokens=repeated(n_layers, lambda: mlp(n, 2 * n, n, act=nn.GELU)),
        channels=repeated(n_layers, lambda: mlp(width, 4 * width, width, act=nn.GELU)),
        head=nn.Linear(width, 10),
    )
    return classifies(model, 10, 3, side, side)


@case(NETWORKS, 8)
def perceiver(n_in=32, width=256, n_latents=128, n_heads=8, n_layers=4, length=16384):
    """Cross attention of few latents to many inputs, with averaged weights."""

    def forward(m, x):
        key, value = m.key(x), m.value(x)
        latents = m.latents.expand(x.shape[0], -1, -1)
        for _ in range(2):
            latents = latents + m.cross(latents, key, value)[0]
            latents = m.inner(latents)
        return m.head(latents.mean(1))

    latents = nn.Parameter(torch.randn(n_latents, width))
    key, value = nn.Linear(n_in, width), nn.Linear(n_in, width)
    cross = nn.MultiheadAttention(width, n_heads, batch_first=True)
    layer = nn.TransformerEncoderLayer(
        width, n_heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    inner = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
    model = Net(
        forward, latents=latents, key=key, value=value, cross=cross, inner=inner,
        head=nn.Linear(width, 10),
    )  # fmt: skip
    return classifies(model, 10, length, n_in)


@case(NETWORKS, 32)
def lstm_with_projection(n_tokens=10000, width=256, n_hidden=1024, n_layers=2, length=128):
    """Language model by an LSTM with projections, time first."""
    model = Net(
        lambda m, tokens: m.head(m.lstm(m.embed(tokens))[0]),
        embed=nn.Embedding(n_tokens, width),
        lstm=nn.LSTM(width, n_hidden, n_layers, proj_size=width, dropout=0.2),
        head=nn.Linear(width, n_tokens),
    )
    return Parts(
        model, lambda n: (torch.randint(0, n_tokens, (length, n)),), token_loss,
        lambda n: torch.randint(0, n_tokens, (length, n)), torch.optim.RMSprop,
    )  # fmt: skip


@case(NETWORKS, 32)
def gru_translator(n_tokens=8000, width=512, length=48):
    """Translation by a GRU and a loop of GRU cells with attention, with named inputs."""

    def forward(m, source, target):
        read, state = m.reader(m.embed(source))
        state = state[0]
        logits = []
        for word in m.embed(target).unbind(1):
            weights = torch.bmm(read, state.unsqueeze(2)).softmax(dim=1)
            context = (weights * read).sum(dim=1)
            state = m.writer(torch.cat([word, context], dim=1), state)
            logits.append(m.head(state))
        return torch.stack(logits, dim=1)

    model = Net(
        forward,
        embed=nn.Embedding(n_tokens, width),
        reader=nn.GRU(width, width, batch_first=True),
        writer=nn.GRUCell(2 * width, width),
        head=nn.Linear(width, n_tokens),
    )
    words = labels(n_tokens, length)
    return Parts(model, lambda n: {"source": words(n), "target": words(n)}, token_loss, words)


@case(NETWORKS, 16)
def bidirectional_ctc(n_in=80, n_hidden=320, length=800):
    """Speech recognition by a bidirectional LSTM with CTC loss."""

    def loss(output, target):
        n = output.shape[0]
        lengths = torch.full((n,), output.shape[1], dtype=torch.long)
        n_tags = torch.full((n,), target.shape[1], dtype=torch.long)
        return functional.ctc_loss(output.transpose(0, 1), target, lengths, n_tags)

    model = Net(
        lambda m, x: m.head(m.norm(m.lstm(x)[0])).log_softmax(-1),
        lstm=nn.LSTM(n_in, n_hidden, 3, batch_first=True, bidirectional=True),
        norm=nn.LayerNorm(2 * n_hidden),
        head=nn.Linear(2 * n_hidden, 29),
    )
    return Parts(
        model, images(length, n_in), loss, lambda n: torch.randint(1, 29, (n, length // 8))
    )


@case(NETWORKS, 4)
def wavenet(width=32, n_layers=10, length=16000):
    """Audio, sample by sample, by gated causal convolutions whose dilation doubles."""

    def forward(m, levels):
        x = m.embed(levels).transpose(1, 2)
        total = 0
        for gates, residual, skip in zip(m.gates, m.residual, m.skip, strict=True):
            padded = functional.pad(x, (gates.dilation[0], 0))
            filtered, gate = gates(padded).chunk(2, dim=1)
            y = torch.tanh(filtered) * torch.sigmoid(gate)
            total = total + skip(y)
            x = x + residual(y)
        return m.head(total)

    model = Net(
        forward,
        embed=nn.Embedding(64, width),
        gates=nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(n_layers)),
        residual=repeated(n_layers, lambda: nn.Conv1d(width, width, 1)),
        skip=repeated(n_layers, lambda: nn.Conv1d(width, 2 * width, 1)),
        head=nn.Sequential(nn.ReLU(), nn.Conv1d(2 * width, 64, 1), nn.ReLU(), nn.Conv1d(64, 64, 1)),
    )
    return Parts(model, tokens(64, length), nn.CrossEntropyLoss(), labels(64, length))


# --- Convolutional classifiers --------------------------------------------------------------------


class ConvNextBlock(nn.Module):
    """A depthwise convolution, and an MLP with channels last and a layer scale."""

    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.shrink(functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


@case(NETWORKS, 16)
def convnext(widths=(96, 192, 384), depths=(3, 3, 6), side=224):
    """Classification by depthwise convolutions and MLPs with channels last."""
    n_in, stages = 3, []
    for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        stride = 4 if i == 0 else 2
        stages.append(nn.Conv2d(n_in, width, stride, stride=stride))
        stages += [ConvNextBlock(width) for _ in range(depth)]
        n_in = width
    model = Net(
        lambda m, x: m.head(m.norm(m.stages(x).mean((2, 3)))),
        stages=nn.Sequential(*stages), norm=nn.LayerNorm(n_in), head=nn.Linear(n_in, 10),
    )  # fmt: skip
    return classifies(model, 10, 3, side, side, optimizer=torch.optim.AdamW)


class Bottleneck(nn.Module):
    """A residual bottleneck with group norm."""

    def __init__(self, n_in, width, stride):
        super().__init__()
        n_out = 4 * width
        self.conv_1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.conv_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv_3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.norm_1, self.norm_2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.norm_3 = nn.GroupNorm(4, n_out)
        self.shortcut = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.GroupNorm(4, n_out)
            )

    def forward(self, x):
        y = self.norm_1(self.conv_1(x)).relu_()
        y = self.norm_2(self.conv_2(y)).relu_()
        y = self.norm_3(self.conv_3(y))
        y += self.shortcut(x)
        return y.relu_()


@case(NETWORKS, 16)
def resnet_group_norm(width=64, depths=(3, 4, 6), side=224):
    """Residual network of bottlenecks with group norm, by SGD with momentum."""
    layers = [
        nn.Conv2d(3, width, 7, 2, 3), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    n_in = width
    for i, depth in enumerate(depths):
        for j in range(depth):
            layers.append(Bottleneck(n_in, width * 2**i, 2 if i and not j else 1))
            n_in = 4 * width * 2**i
    return classifies(
        nn.Sequential(*layers, *pooled(n_in, 10)), 10, 3, side, side, optimizer=torch.optim.SGD,
        make_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    )  # fmt: skip


class DenseBlock(nn.Module):
    """Layers that each take all results before them, from a list."""

    def __init__(self, n_in, growth, n_layers):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(n_in + i * growth), nn.ReLU(inplace=True),
                nn.Conv2d(n_in + i * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(n_layers)
        )  # fmt: skip

    def forward(self, x):
        results = [x]
        for layer in self.layers:
            results.append(layer(torch.cat(results, 1)))
        return torch.cat(results, 1)


@case(NETWORKS, 16)
def densenet(growth=24, depths=(6, 8, 8), side=192):
    """Densely connected network."""
    n = 2 * growth
    layers = [nn.Conv2d(3, n, 7, 2, 3, bias=False)]
    for i, depth in enumerate(depths):
        if i:
            layers += [nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n // 2, 1), nn.AvgPool2d(2)]
            n //= 2
        layers.append(DenseBlock(n, growth, depth))
        n += depth * growth
    layers += [nn.BatchNorm2d(n), nn.ReLU(), *pooled(n, 10)]
    return classifies(nn.Sequential(*layers), 10, 3, side, side, optimizer=torch.optim.SGD)


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, and project."""

    def __init__(self, n_in, n_out, stride, factor):
        super().__init__()
        n = n_in * factor
        self.adds = stride == 1 and n_in == n_out
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n, 1, bias=False), nn.BatchNorm2d(n), nn.ReLU6(inplace=True),
            nn.Conv2d(n, n, 3, stride, 1, groups=n, bias=False), nn.BatchNorm2d(n),
            nn.ReLU6(inplace=True), nn.Conv2d(n, n_out, 1, bias=False), nn.BatchNorm2d(n_out),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


@case(NETWORKS, 32)
def mobilenet(plan=((16, 1), (24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1)), side=224):
    """Inverted residuals with depthwise convolutions, on images with channels last."""
    n_in = plan[0][0]
    layers = [nn.Conv2d(3, n_in, 3, 2, 1, bias=False), nn.BatchNorm2d(n_in), nn.Hardswish()]
    for n_out, stride in plan:
        layers.append(InvertedResidual(n_in, n_out, stride, 4))
        n_in = n_out
    mean, flat, last = pooled(n_in, 10)
    model = nn.Sequential(*layers, mean, flat, nn.Dropout(0.2), last)

    def inputs(n):
        return (torch.randn(n, 3, side, side).to(memory_format=torch.channels_last),)

    return Parts(
        model.to(memory_format=torch.channels_last), inputs, nn.CrossEntropyLoss(), labels(10),
        torch.optim.RMSprop,
    )  # fmt: skip


class SqueezeExcite(nn.Module):
    """A residual block whose channels are scaled by what all of the image says."""

    def __init__(self, width):
        super().__init__()
        layers = convs(width, width, width, norm=nn.BatchNorm2d, act=nn.SiLU, ends=True)
        self.conv = layers[:-1]
        self.squeeze = nn.Linear(width, max(width // 8, 1))
        self.excite = nn.Linear(max(width // 8, 1), width)

    def forward(self, x):
        y = self.conv(x)
        s = functional.silu(self.squeeze(y.mean(dim=(2, 3))))
        return functional.silu(x + y * torch.sigmoid(self.excite(s))[:, :, None, None])


@case(NETWORKS, 8)
def squeeze_excite(width=64, n_blocks=6, side=128):
    """Squeeze and excite blocks, with several labels for each image."""
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *(SqueezeExcite(width) for _ in range(n_blocks)),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(width, 20),
    )  # fmt: skip
    return Parts(
        model, images(3, side, side), nn.BCEWithLogitsLoss(),
        lambda n: torch.randint(0, 2, (n, 20)).float(),
    )  # fmt: skip


# --- Images from images ---------------------------------------------------------------------------


@case(NETWORKS, 8)
def super_resolution(width=64, n_blocks=12, scale=4, side=128):
    """Super-resolution: residual blocks and pixel shuffling, added to bicubic interpolation."""

    def forward(m, x):
        y = first = m.head(x)
        for block in m.blocks:
            y = y + block(y).mul(0.1)
        enlarged = functional.interpolate(x, scale_factor=scale, mode="bicubic")
        return enlarged + m.tail(y + first)

    relu = partial(nn.ReLU, True)
    model = Net(
        forward,
        head=nn.Conv2d(3, width, 3, padding=1),
        blocks=repeated(n_blocks, lambda: convs(width, width, width, act=relu)),
        tail=nn.Sequential(*convs(width, 3 * scale**2), nn.PixelShuffle(scale)),
    )
    big = side * scale
    return Parts(model, images(3, side, side), nn.L1Loss(), like(3, big, big))


class DeformableConv(nn.Module):
    """Samples the image at learned offsets, nine for each pixel, and weighs them."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.offsets = nn.Conv2d(n_in, 18, 3, padding=1)
        self.weight = nn.Conv2d(9 * n_in, n_out, 1)

    def forward(self, x):
        n, _, height, width = x.shape
        offsets = self.offsets(x).tanh().view(n, 9, 2, height, width)
        rows = torch.linspace(-1, 1, height, device=x.device)
        columns = torch.linspace(-1, 1, width, device=x.device)
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)
        sampled = []
        for i in range(9):
            moved = grid + offsets[:, i].permute(0, 2, 3, 1) * 0.1
            sampled.append(functional.grid_sample(x, moved, align_corners=True))
        return self.weight(torch.cat(sampled, dim=1))


@case(NETWORKS, 4)
def deformable_sampling(width=32, side=192):
    """Convolutions with learned offsets, by grid_sample."""
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), DeformableConv(width, width), nn.ReLU(),
        DeformableConv(width, width), nn.ReLU(), nn.Conv2d(width, 1, 1),
    )  # fmt: skip
    return Parts(model, images(3, side, side), nn.SmoothL1Loss(), like(1, side, side))


@case(NETWORKS, 32)
def spatial_transformer(width=32, side=160):
    """Spatial transformer before a classifier, with the negative log likelihood."""

    def forward(m, x):
        theta = m.theta(m.localize(x)).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        moved = functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
        return functional.log_softmax(m.classify(moved), dim=1)

    localize = nn.Sequential(
        nn.Conv2d(1, width, 7), nn.MaxPool2d(2, 2), nn.ReLU(True), nn.Conv2d(width, width, 5),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 32), nn.ReLU(True),
    )  # fmt: skip
    theta = nn.Linear(32, 6)
    with torch.no_grad():
        theta.weight.zero_()
        theta.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
    classify = nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, width, 5, padding=2), nn.ReLU(), nn.Dropout2d(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 10),
    )  # fmt: skip
    model = Net(forward, localize=localize, theta=theta, classify=classify)
    return Parts(model, images(1, side, side), nn.NLLLoss(), labels(10))


@case(NETWORKS, 128)
def transposed_decoder(n_latent=128, width=32, n_stages=5):
    """Images from latents by transposed convolutions."""
    n = width * 2 ** (n_stages - 1)
    layers = [nn.Linear(n_latent, n * 16), nn.Unflatten(1, (n, 4, 4))]
    for _ in range(n_stages - 1):
        layers += [nn.ConvTranspose2d(n, n // 2, 4, 2, 1), nn.BatchNorm2d(n // 2), nn.ReLU(True)]
        n //= 2
    layers += [nn.ConvTranspose2d(n, 3, 4, 2, 1), nn.Tanh()]
    side = 4 * 2**n_stages
    return Parts(nn.Sequential(*layers), images(n_latent), nn.MSELoss(), like(3, side, side))


def negative_bound(output, target):
    """Reconstruction by binary cross entropy, and the divergence from a normal distribution."""
    logits, mean, log_variance = output
    entropy = functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return (entropy + divergence) / target.shape[0]


@case(NETWORKS, 64)
def conv_vae(width=32, n_latent=64, side=128):
    """Variational autoencoder."""

    def forward(m, x):
        y = m.encoder(x)
        mean, log_variance = m.mean(y), m.log_variance(y)
        z = mean
        if m.training:
            z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return m.decoder(z), mean, log_variance

    small, n = side // 4, 2 * width * (side // 4) ** 2
    model = Net(
        forward,
        encoder=nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.ELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ELU(),
            nn.Flatten(),
        ),
        mean=nn.Linear(n, n_latent),
        log_variance=nn.Linear(n, n_latent),
        decoder=nn.Sequential(
            nn.Linear(n_latent, n), nn.ELU(), nn.Unflatten(1, (2 * width, small, small)),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ELU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
        ),
    )  # fmt: skip
    return Parts(
        model, images(1, side, side), negative_bound, lambda n: torch.rand(n, 1, side, side)
    )


@case(NETWORKS, 16)
def vq_vae(width=64, n_codes=1024, side=256):
    """Vector-quantized autoencoder, with straight-through gradients."""

    def forward(m, x):
        z = m.encoder(x).permute(0, 2, 3, 1).contiguous()
        distances = torch.cdist(z.view(-1, z.shape[-1]), m.codes.weight)
        nearest = distances.argmin(dim=1)
        quantized = m.codes(nearest).view_as(z)
        commitment = functional.mse_loss(quantized.detach(), z)
        codebook = functional.mse_loss(quantized, z.detach())
        quantized = z + (quantized - z).detach()
        return m.decoder(quantized.permute(0, 3, 1, 2)), codebook + 0.25 * commitment

    encoder = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1), nn.ReLU(),
        nn.Conv2d(width, width, 1),
    )  # fmt: skip
    codes = nn.Embedding(n_codes, width)
    nn.init.uniform_(codes.weight, -1 / n_codes, 1 / n_codes)
    decoder = nn.Sequential(
        nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
    )
    return Parts(
        Net(forward, encoder=encoder, codes=codes, decoder=decoder), images(3, side, side),
        lambda output, target: functional.mse_loss(output[0], target) + output[1],
        like(3, side, side),
    )  # fmt: skip


class TimeBlock(nn.Module):
    """A residual block that is shifted by the embedding of the time."""

    def __init__(self, n_in, n_out, n_time):
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(4, n_in), nn.GroupNorm(4, n_out)
        self.conv_1 = nn.Conv2d(n_in, n_out, 3, padding=1)
        self.conv_2 = nn.Conv2d(n_out, n_out, 3, padding=1)
        self.time = nn.Linear(n_time, n_out)
        self.skip = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x, time):
        y = self.conv_1(functional.silu(self.norm_1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_2(functional.silu(self.norm_2(y)))


class PixelAttention(nn.Module):
    """Attention of all pixels to all, with plain matrix products."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.qkv, self.out = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).flatten(2)).chunk(3, dim=1)
        weights = torch.einsum("bct,bcs->bts", q * c**-0.5, k).softmax(dim=-1)
        return x + self.out(torch.einsum("bts,bcs->bct", weights, v)).view(n, c, h, w)


class DiffusionUNet(nn.Module):
    """Predicts the noise that was added to images, and returns the loss."""

    def __init__(self, width, n_times=1000):
        super().__init__()
        self.width = width
        n_time = 4 * width
        self.embed = mlp(width, n_time, n_time, act=nn.SiLU)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down_1 = TimeBlock(width, width, n_time)
        self.down_2 = TimeBlock(width, 2 * width, n_time)
        self.down_3 = TimeBlock(2 * width, 4 * width, n_time)
        self.attention = PixelAttention(4 * width)
        self.up_2 = TimeBlock(6 * width, 2 * width, n_time)
        self.up_1 = TimeBlock(3 * width, width, n_time)
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), *convs(width, 3))
        kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, n_times), dim=0)
        self.register_buffer("kept", kept)

    def noise(self, x, times):
        half = self.width // 2
        steps = torch.arange(half, device=x.device)
        angles = times[:, None].float() * torch.exp(-math.log(10000) * steps / half)
        time = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        a = self.down_1(self.first(x), time)
        b = self.down_2(functional.avg_pool2d(a, 2), time)
        c = self.attention(self.down_3(functional.avg_pool2d(b, 2), time))
        b = self.up_2(torch.cat([b, functional.interpolate(c, scale_factor=2)], 1), time)
        a = self.up_1(torch.cat([a, functional.interpolate(b, scale_factor=2)], 1), time)
        return self.last(a)

    def forward(self, x):
        times = torch.randint(0, len(self.kept), (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        kept = self.kept[times].view(-1, 1, 1, 1)
        predicted = self.noise(kept.sqrt() * x + (1 - kept).sqrt() * noise, times)
        return functional.mse_loss(predicted, noise)


@case(NETWORKS, 8)
def diffusion_unet(width=64, side=128):
    """Noise prediction with time embedding and attention, by a model that returns its loss."""
    return Parts(DiffusionUNet(width), images(3, side, side), optimizer=torch.optim.AdamW)


# --- Coordinates, points and graphs ---------------------------------------------------------------


class NeRF(nn.Module):
    """Density and colour along rays, by an MLP on encoded positions, and what a camera sees."""

    def __init__(self, width, n_samples, n_frequencies=6):
        super().__init__()
        self.n_samples = n_samples
        self.register_buffer("frequencies", 2.0 ** torch.arange(n_frequencies))
        n_in = 3 + 6 * n_frequencies
        self.first = nn.Sequential(*mlp(n_in, width, width), nn.ReLU())
        self.second = nn.Sequential(*mlp(width + n_in, width, width), nn.ReLU())
        self.density = nn.Linear(width, 1)
        self.colour = nn.Sequential(*mlp(width + n_in, width // 2, 3), nn.Sigmoid())

    def encode(self, x):
        angles = (x[..., None] * self.frequencies).flatten(-2)
        return torch.cat([x, angles.sin(), angles.cos()], dim=-1)

    def forward(self, origins, directions):
        depths = torch.linspace(2, 6, self.n_samples, device=origins.device)
        depths = depths + torch.rand(len(origins), self.n_samples, device=origins.device) * 0.05
        points = origins[:, None] + directions[:, None] * depths[..., None]
        encoded = self.encode(points)
        y = self.second(torch.cat([self.first(encoded), encoded], dim=-1))
        density = functional.softplus(self.density(y)).squeeze(-1)
        seen = self.encode(directions)[:, None].expand(-1, self.n_samples, -1)
        colour = self.colour(torch.cat([y, seen], dim=-1))
        gaps = functional.pad(depths[:, 1:] - depths[:, :-1], (0, 1), value=1e3)
        alpha = 1 - torch.exp(-density * gaps)
        ones = torch.ones_like(alpha[:, :1])
        through = torch.cumprod(torch.cat([ones, 1 - alpha[:, :-1] + 1e-10], dim=1), dim=1)
        return ((alpha * through)[..., None] * colour).sum(dim=1)


@case(NETWORKS, 2048)
def nerf(width=256, n_samples=64):
    """Neural radiance field: rays, encoded positions, volume rendering."""
    return Parts(
        NeRF(width, n_samples),
        lambda n: (torch.randn(n, 3), functional.normalize(torch.randn(n, 3), dim=1)),
        nn.MSELoss(),
        lambda n: torch.rand(n, 3),
    )


class Sine(nn.Module):
    """A linear layer and a sine."""

    def __init__(self, n_in, n_out, omega=30.0):
        super().__init__()
        self.linear, self.omega = nn.Linear(n_in, n_out), omega
        bound = math.sqrt(6 / n_in) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


@case(NETWORKS, 65536)
def siren(width=256, n_layers=5):
    """An image as a function of coordinates, by sines."""
    layers = [Sine(2, width), *(Sine(width, width) for _ in range(n_layers - 1))]
    model = nn.Sequential(*layers, nn.Linear(width, 3))
    return Parts(
        model, lambda n: (torch.rand(n, 2) * 2 - 1,), nn.MSELoss(), lambda n: torch.rand(n, 3)
    )


@case(NETWORKS, 32)
def graph_net(width=128, n_layers=5, n_nodes=300, n_edges=3000):
    """Message passing on a batch of graphs, with index_add_."""

    def passes(m, nodes, edges, sources, targets):
        message = m.message(torch.cat([nodes[sources], nodes[targets], edges], dim=-1))
        total = torch.zeros_like(nodes).index_add_(0, targets, message)
        nodes = nodes + m.update(torch.cat([nodes, total], dim=-1))
        return m.norm(nodes), edges + message

    def forward(m, nodes, edges, ends, graphs, sums):
        nodes, edges = m.node(nodes), m.edge(edges)
        for layer in m.layers:
            nodes, edges = layer(nodes, edges, ends[0], ends[1])
        return m.head(sums.new_zeros(sums.shape[0], nodes.shape[1]).index_add_(0, graphs, nodes))

    def layer():
        return Net(
            passes,
            message=mlp(3 * width, width, width, act=nn.SiLU),
            update=mlp(2 * width, width, width, act=nn.SiLU),
            norm=nn.LayerNorm(width),
        )

    def inputs(n):
        first = torch.arange(n).repeat_interleave(n_edges) * n_nodes
        return (
            torch.randn(n * n_nodes, 8),
            torch.randn(n * n_edges, 4),
            torch.randint(0, n_nodes, (2, n * n_edges)) + first,
            torch.arange(n).repeat_interleave(n_nodes),
            torch.zeros(n, 1),
        )

    model = Net(
        forward, node=nn.Linear(8, width), edge=nn.Linear(4, width),
        layers=repeated(n_layers, layer), head=nn.Linear(width, 1),
    )  # fmt: skip
    return Parts(model, inputs, nn.L1Loss(), like(1))


@case(NETWORKS, 16)
def point_net(width=64, n_points=4096):
    """Parts of point clouds, with max pooling over the points."""

    def forward(m, points):
        turn = m.align(points).max(dim=2).values.view(-1, 3, 3)
        turn = turn + torch.eye(3, device=points.device)
        local = m.local(torch.bmm(turn, points))
        largest = m.wide(local).max(dim=2, keepdim=True).values
        return m.head(torch.cat([local, largest.expand(-1, -1, points.shape[2])], dim=1))

    def dense(a, b):
        return nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()

    model = Net(
        forward,
        align=nn.Sequential(nn.Conv1d(3, width, 1), nn.ReLU(), nn.Conv1d(width, 9, 1)),
        local=nn.Sequential(*dense(3, width)),
        wide=nn.Sequential(*dense(width, 4 * width), *dense(4 * width, 8 * width)[:2]),
        head=nn.Sequential(*dense(9 * width, 2 * width), nn.Conv1d(2 * width, 6, 1)),
    )
    return Parts(model, images(3, n_points), nn.CrossEntropyLoss(), labels(6, n_points))


@case(NETWORKS, 4096)
def recommender(n_tables=12, n_rows=100000, width=64):
    """Clicks from many large embeddings and products of all pairs, by Adagrad."""

    def forward(m, numbers, categories):
        dense = m.bottom(numbers)
        bags = [table(categories[:, i]) for i, table in enumerate(m.tables)]
        vectors = torch.stack([dense, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(n, n, offset=-1, device=numbers.device)
        return m.top(torch.cat([dense, products[:, rows, columns]], dim=1)).squeeze(1)

    n = n_tables + 1
    model = Net(
        forward,
        tables=repeated(n_tables, lambda: nn.EmbeddingBag(n_rows, width, mode="sum")),
        bottom=mlp(13, 4 * width, width),
        top=mlp(n * (n - 1) // 2 + width, 256, 1),
    )
    return Parts(
        model, lambda n: (torch.randn(n, 13), torch.randint(0, n_rows, (n, n_tables, 5))),
        nn.BCEWithLogitsLoss(), lambda n: torch.randint(0, 2, (n,)).float(), torch.optim.Adagrad,
    )  # fmt: skip


# --- Loops over time ------------------------------------------------------------------------------


@case(NETWORKS, 4)
def conv_lstm(width=32, n_frames=12, side=96):
    """The next frames of a film by a convolutional LSTM."""

    def forward(m, film):
        n, n_frames, _, height, side = film.shape
        h = film.new_zeros(n, width, height, side)
        c = torch.zeros_like(h)
        frames = []
        for t in range(n_frames):
            i, f, o, g = m.gates(torch.cat([film[:, t], h], dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            frames.append(m.last(h))
        return torch.stack(frames, dim=1)

    model = Net(
        forward, gates=nn.Conv2d(1 + width, 4 * width, 3, padding=1), last=nn.Conv2d(width, 1, 1)
    )
    shape = (n_frames, 1, side, side)
    return Parts(
        model, lambda n: (torch.rand(n, *shape),), nn.MSELoss(), lambda n: torch.rand(n, *shape)
    )


class Spike(torch.autograd.Function):
    """Step function with the gradient of a fast sigmoid."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / (1 + 10 * x.abs()) ** 2


@case(NETWORKS, 32)
def spiking_net(width=32, n_times=10, side=64):
    """Leaky neurons that fire and are reset, over time steps, with surrogate gradients."""

    def forward(m, x):
        current = m.conv_1(x)
        v_1, v_2, total = torch.zeros_like(current), 0.0, 0.0
        for _ in range(n_times):
            v_1 = m.leak[0] * v_1 + current
            s_1 = Spike.apply(v_1 - 1)
            v_1 = v_1 * (1 - s_1.detach())
            v_2 = m.leak[1] * v_2 + m.conv_2(s_1)
            s_2 = Spike.apply(v_2 - 1)
            v_2 = v_2 - s_2
            total = total + m.head(s_2.flatten(1))
        return total / n_times

    model = Net(
        forward,
        conv_1=nn.Conv2d(1, width, 3, padding=1),
        conv_2=nn.Conv2d(width, width, 3, stride=2, padding=1),
        head=nn.Linear(width * ((side + 1) // 2) ** 2, 10),
        leak=nn.Parameter(torch.tensor([0.9, 0.8])),
    )
    return classifies(model, 10, 1, side, side)


@case(NETWORKS, 4)
def coupled_streams(width=32, n_blocks=6, side=256):
    """Two coupled streams, one of them with checkpoints."""

    def forward(m, x):
        a, b = m.first(x).chunk(2, dim=1)
        for f, g in zip(m.f, m.g, strict=True):
            a = a + checkpoint.checkpoint(f, b, use_reentrant=False)
            b = b + g(a)
        return m.last(torch.cat([a, b], dim=1))

    model = Net(
        forward,
        first=nn.Conv2d(3, 2 * width, 3, padding=1),
        f=repeated(n_blocks, lambda: small_net(width, width, width)),
        g=repeated(n_blocks, lambda: small_net(width, width, width)),
        last=nn.Conv2d(2 * width, 3, 1),
    )
    return Parts(model, images(3, side, side), nn.MSELoss(), like(3, side, side))
