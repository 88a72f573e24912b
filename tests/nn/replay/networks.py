"""Networks whose steps were measured on an H200, layer by layer as torchvision has them."""

import torch
import torch.nn.functional as F
from torch import nn

from .models import Encoder, UNet


class UN(UNet):
    """A basic U-Net that pads what it joins, by nothing."""

    def up(self, x):
        return F.pad(super().up(x), [0, 0, 0, 0])

    def forward(self, x):
        a, b, c, d = Encoder.forward(self, x)
        x = self.up_c(torch.cat([c, self.up(d)], 1))
        x = self.up_b(torch.cat([b, self.up(x)], 1))
        x = self.up_a(torch.cat([a, self.up(x)], 1))
        return torch.sigmoid(self.last(x))


def vgg16_bn(n=10):
    layers = []
    i = 3
    for n_times, o in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(n_times):
            layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
            i = o
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(
        nn.Sequential(*layers), nn.AdaptiveAvgPool2d((7, 7)), nn.Flatten(),
        nn.Linear(25088, 4096), nn.ReLU(True), nn.Dropout(0.5),
        nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(0.5), nn.Linear(4096, n),
    )  # fmt: skip


def normed(i, o, k, stride=1):
    return nn.Conv2d(i, o, k, stride, k // 2, bias=False), nn.BatchNorm2d(o)


class Bottleneck(nn.Module):
    def __init__(self, i, w, stride, down):
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.body = nn.Sequential(
            *normed(i, w, 1), relu, *normed(w, w, 3, stride), relu, *normed(w, 4 * w, 1)
        )
        self.relu = relu
        self.downsample = nn.Sequential(*normed(i, 4 * w, 1, stride)) if down else nn.Identity()

    def forward(self, x):
        out = self.body(x)
        out += self.downsample(x)
        return self.relu(out)


def resnet50(n=10):
    layers = [*normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for w, c, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for j in range(c):
            layers.append(Bottleneck(i, w, stride if j == 0 else 1, j == 0))
            i = 4 * w
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(2048, n))


class MLPBlock(nn.Sequential):
    def __init__(self, d, m):
        super().__init__(
            nn.Linear(d, m), nn.GELU(), nn.Dropout(0.0), nn.Linear(m, d), nn.Dropout(0.0)
        )


class Block(nn.Module):
    def __init__(self, d, h, m):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(d, h, dropout=0.0, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.ln_2 = nn.LayerNorm(d, eps=1e-6)
        self.mlp = MLPBlock(d, m)

    def forward(self, input):
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + input
        y = self.ln_2(x)
        y = self.mlp(y)
        return x + y


class ViT(nn.Module):
    def __init__(self, n=10, d=768, h=12, m=3072, L=12, p=16, size=224):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, d, p, p)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.empty(1, (size // p) ** 2 + 1, d).normal_(std=0.02))
        self.dropout = nn.Dropout(0.0)
        self.layers = nn.Sequential(*[Block(d, h, m) for _ in range(L)])
        self.ln = nn.LayerNorm(d, eps=1e-6)
        self.heads = nn.Sequential(nn.Linear(d, n))
        self.d = d

    def forward(self, x):
        n = x.shape[0]
        x = self.conv_proj(x)
        x = x.reshape(n, self.d, -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], 1)
        x = self.ln(self.layers(self.dropout(x + self.pos)))
        return self.heads(x[:, 0])


class CNN(nn.Module):
    def __init__(self, size=224):
        super().__init__()
        self.c = nn.Conv2d(3, 8, 3)
        self.p = nn.AvgPool2d(2)
        self.f = nn.Linear(8 * ((size - 2) // 2) ** 2, 10)

    def forward(self, x):
        return self.f(torch.flatten(self.p(self.c(x)), 1))


NETWORKS = {
    "CNN": (CNN, (3, 224, 224)),
    "VGG16bn": (vgg16_bn, (3, 224, 224)),
    "ResNet50": (resnet50, (3, 224, 224)),
    "ViT-B16": (ViT, (3, 224, 224)),
    "BasicUNet": (UN, (1, 256, 256)),
}
"""Makers, and shapes of one image."""
