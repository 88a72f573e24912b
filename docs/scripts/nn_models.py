"""The networks of the tables, written out: torch alone is needed.

Each has the layers, in the order of execution, of the network that it is named after, so its
parameters and its memory are the same: ``tests/nn/test_models.py`` compares them with
torchvision, MONAI and segmentation_models_pytorch where those are installed.
"""

# ruff: noqa: D102, D103
from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Variable(nn.Module):
    """Nothing but a variable of 1 GiB."""

    def __init__(self) -> None:
        super().__init__()
        self.data = nn.Parameter(torch.empty(2**28), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class CNN(nn.Module):
    """A convolution from 3 to 8 channels, an average pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.pool = nn.AvgPool2d(2)
        self.linear = nn.Linear(8 * 111 * 111, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.flatten(self.pool(self.convolution(x)), 1))


class VGG16BN(nn.Module):
    """torchvision's vgg16_bn with 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        n_in = 3
        for widths in ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3):
            for n_out in widths:
                layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out)]
                layers += [nn.ReLU(inplace=True)]
                n_in = n_out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(True), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(),
            nn.Linear(4096, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and n_in == n_out:
        return None
    return nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(n_in, 4 * width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(n_in, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """torchvision's resnet50 with 10 classes, or resnet18 as an encoder."""

    def __init__(self, block: Any = Bottleneck, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        growth = 4 if block is Bottleneck else 1
        self.conv1 = nn.Conv2d(3 if growth == 4 else 1, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        n_in = 64
        for stage, depth in enumerate(depths):
            width, blocks = 64 * 2**stage, []
            for index in range(depth):
                blocks.append(block(n_in, width, 2 if stage and not index else 1))
                n_in = growth * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        if growth == 4:
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear(n_in, 10)

    def features(self, x: torch.Tensor) -> list[torch.Tensor]:
        first = self.relu(self.bn1(self.conv1(x)))
        a = self.layer1(self.maxpool(first))
        b = self.layer2(a)
        c = self.layer3(b)
        return [x, first, a, b, c, self.layer4(c)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class _ViTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(768, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(768, 12, dropout=0.0, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.ln_2 = nn.LayerNorm(768, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(768, 3072), nn.GELU(), nn.Dropout(0.0), nn.Linear(3072, 768), nn.Dropout(0.0)
        )

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = self.ln_1(given)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + given
        y = self.mlp(self.ln_2(x))
        return x + y


class ViTB16(nn.Module):
    """torchvision's vit_b_16 with 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 768, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 768))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 197, 768))
        self.dropout = nn.Dropout(0.0)
        self.layers = nn.Sequential(*(_ViTBlock() for _ in range(12)))
        self.ln = nn.LayerNorm(768, eps=1e-6)
        self.heads = nn.Linear(768, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        x = self.conv_proj(x).reshape(n, 768, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = x + self.pos_embedding
        x = self.ln(self.layers(self.dropout(x)))
        x = x[:, 0]
        return self.heads(x)


class _Attention(nn.Module):
    """MONAI's self-attention: matrices, not one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.out_proj = nn.Linear(768, 768)
        self.qkv = nn.Linear(768, 3 * 768, bias=False)
        self.drop_output, self.drop_weights = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        parts = self.qkv(x).reshape(n, length, 3, 12, 64).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        matrix = torch.einsum("blxd,blyd->blxy", q, k) * 64**-0.5
        matrix = self.drop_weights(matrix.softmax(dim=-1))
        x = torch.einsum("bhxy,bhyd->bhxd", matrix, v)
        x = x.permute(0, 2, 1, 3).reshape(n, length, 768)
        return self.drop_output(self.out_proj(x))


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(768, 3072), nn.Linear(3072, 768)
        self.fn = nn.GELU()
        self.drop1, self.drop2 = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fn(self.linear1(x))
        x = self.drop1(x)
        x = self.linear2(x)
        return self.drop2(x)


class _TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = _Mlp()
        self.norm1 = nn.LayerNorm(768)
        self.attn = _Attention()
        self.norm2 = nn.LayerNorm(768)
        self.norm_cross_attn = nn.LayerNorm(768)  # MONAI has it, and does not use it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class _ResBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(n_in, n_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv3d(n_out, n_out, 3, padding=1, bias=False)
        self.lrelu = nn.LeakyReLU(0.01, inplace=True)
        self.norm1, self.norm2 = nn.InstanceNorm3d(n_out), nn.InstanceNorm3d(n_out)
        if n_in != n_out:
            self.conv3 = nn.Conv3d(n_in, n_out, 1, bias=False)
            self.norm3 = nn.InstanceNorm3d(n_out)

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        residual = inp
        out = self.conv1(inp)
        out = self.norm1(out)
        out = self.lrelu(out)
        out = self.conv2(out)
        out = self.norm2(out)
        if hasattr(self, "conv3"):
            residual = self.conv3(residual)
        if hasattr(self, "norm3"):
            residual = self.norm3(residual)
        out += residual
        out = self.lrelu(out)
        return out


class _UpBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.transp_conv = nn.ConvTranspose3d(n_in, n_out, 2, 2, bias=False)
        self.conv_block = _ResBlock(2 * n_out, n_out)

    def forward(self, inp: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        out = self.transp_conv(inp)
        out = torch.cat((out, skip), dim=1)
        out = self.conv_block(out)
        return out


class _Ups(nn.Sequential):
    def __init__(self, n_out: int, n: int) -> None:
        parts: list[nn.Module] = [nn.ConvTranspose3d(768, n_out, 2, 2, bias=False)]
        for _ in range(n):
            up = nn.ConvTranspose3d(n_out, n_out, 2, 2, bias=False)
            parts.append(nn.Sequential(up, _ResBlock(n_out, n_out)))
        super().__init__(*parts)


class UNETR(nn.Module):
    """MONAI's UNETR for volumes of 64x64x64: 16 features, 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv3d(1, 768, 16, 16)
        self.position_embeddings = nn.Parameter(torch.zeros(1, 64, 768))
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(_TransformerBlock() for _ in range(12))
        self.norm = nn.LayerNorm(768)
        self.encoder1 = _ResBlock(1, 16)
        self.encoder2, self.encoder3, self.encoder4 = _Ups(32, 2), _Ups(64, 1), _Ups(128, 0)
        self.decoder5, self.decoder4 = _UpBlock(768, 128), _UpBlock(128, 64)
        self.decoder3, self.decoder2 = _UpBlock(64, 32), _UpBlock(32, 16)
        self.out = nn.Conv3d(16, 10, 1)

    def transformer(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x = self.patch(x)
        x = x.flatten(2).transpose(-1, -2)
        embeddings = x + self.position_embeddings
        x = self.dropout(embeddings)
        hidden = []
        for block in self.blocks:
            x = block(x)
            hidden.append(x)
        x = self.norm(x)
        return x, hidden

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 4, 4, 4, 768).permute(0, 4, 1, 2, 3).contiguous()

    def forward(self, x_in: torch.Tensor) -> torch.Tensor:
        x, hidden = self.transformer(x_in)
        enc1 = self.encoder1(x_in)
        x2 = hidden[3]
        enc2 = self.encoder2(self.features(x2))
        x3 = hidden[6]
        enc3 = self.encoder3(self.features(x3))
        x4 = hidden[9]
        enc4 = self.encoder4(self.features(x4))
        dec4 = self.features(x)
        dec3 = self.decoder5(dec4, enc4)
        dec2 = self.decoder4(dec3, enc3)
        dec1 = self.decoder3(dec2, enc2)
        out = self.decoder2(dec1, enc1)
        return self.out(out)


def _double(n_in: int, n_out: int, activation: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (n_in, n_out):
        layers += [nn.Conv2d(width, n_out, 3, padding=1), nn.BatchNorm2d(n_out)]
        layers.append(copy.deepcopy(activation))
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """The first half of the basic U-Net."""

    in_channels = 1
    depth = 3

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        activation = activation or nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.a, self.b = _double(1, 64, activation), _double(64, 128, activation)
        self.c, self.d = _double(128, 256, activation), _double(256, 512, activation)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = self.a(x)
        b = self.b(self.pool(a))
        c = self.c(self.pool(b))
        return a, b, c, self.d(self.pool(c))


class BasicUNet(Encoder):
    """Two convolutions of 3x3 a level, 64 to 512 channels, nearest upsampling."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        activation = activation or nn.LeakyReLU(0.1)
        super().__init__(activation)
        self.up_c, self.up_b = _double(768, 256, activation), _double(384, 128, activation)
        self.up_a = _double(192, 64, activation)
        self.last = nn.Conv2d(64, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, x = super().forward(x)
        for skip, block in ((c, self.up_c), (b, self.up_b), (a, self.up_a)):
            up = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([skip, functional.pad(up, [0, 0, 0, 0])], dim=1))
        return torch.sigmoid(self.last(x))


class BasicUNet3D(nn.Module):
    """A 3D U-Net of three levels, for patches."""

    in_channels = 1
    depth = 2

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def double(n_in: int, n_out: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(n_in, n_out, 3, padding=1), nn.InstanceNorm3d(n_out), nn.ReLU(),
                nn.Conv3d(n_out, n_out, 3, padding=1), nn.InstanceNorm3d(n_out), nn.ReLU(),
            )  # fmt: skip

        self.pool = nn.MaxPool3d(2)
        self.a, self.b = double(1, width), double(width, 2 * width)
        self.c = double(2 * width, 4 * width)
        self.up_b, self.up_a = double(6 * width, 2 * width), double(3 * width, width)
        self.last = nn.Conv3d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        b = self.b(self.pool(a))
        x = self.c(self.pool(b))
        for skip, block in ((b, self.up_b), (a, self.up_a)):
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([skip, x], dim=1))
        return self.last(x)


class _ConvReLU(nn.Sequential):
    def __init__(self, n_in: int, n_out: int) -> None:
        convolution = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


class _DecoderBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _ConvReLU(n_in, n_out), _ConvReLU(n_out, n_out)

    def forward(
        self, x: torch.Tensor, skip: torch.Tensor | None, size: tuple[int, ...]
    ) -> torch.Tensor:
        x = functional.interpolate(x, size=size, mode="nearest")
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        x = self.conv1(x)
        x = self.conv2(x)
        return x


class ResNet18UNet(nn.Module):
    """segmentation_models_pytorch's Unet("resnet18", in_channels=1, classes=1)."""

    in_channels = 1
    depth = 5

    def __init__(self) -> None:
        super().__init__()
        self.encoder = ResNet(BasicBlock, (2, 2, 2, 2))
        sizes = ((768, 256), (384, 128), (192, 64), (128, 32), (32, 16))
        self.blocks = nn.ModuleList(_DecoderBlock(n_in, n_out) for n_in, n_out in sizes)
        self.head = nn.Conv2d(16, 1, 3, padding=1)

    def decoder(self, features: list[torch.Tensor]) -> torch.Tensor:
        sizes = [tuple(feature.shape[2:]) for feature in features][::-1]
        head, *skips = features[1:][::-1]
        x = head
        for index, block in enumerate(self.blocks):
            skip = skips[index] if index < len(skips) else None
            x = block(x, skip, sizes[index + 1])
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.encoder.features(x)
        output = self.decoder(features)
        return self.head(output)


def resnet50() -> ResNet:
    return ResNet()
