"""Networks whose steps were measured on an H200, layer by layer as torchvision has them."""

import torch
import torch.nn.functional as F
from torch import nn


class LC(nn.Module):
    def __init__(self, i, o, inp=False, act=None):
        super().__init__()
        a = act or (lambda: nn.ReLU(inplace=inp))
        self.l = nn.Sequential(
            nn.Conv2d(i, o, 3, 1, 1),
            nn.BatchNorm2d(o),
            a(),
            nn.Conv2d(o, o, 3, 1, 1),
            nn.BatchNorm2d(o),
            a(),
        )

    def forward(self, x):
        return self.l(x)


class UN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = LC(1, 64)
        self.p = nn.MaxPool2d(2)
        self.b = LC(64, 128)
        self.c = LC(128, 256)
        self.d = LC(256, 512)
        self.u2 = LC(768, 256)
        self.u3 = LC(384, 128)
        self.u4 = LC(192, 64)
        self.f = nn.Conv2d(64, 1, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(self.p(a))
        c = self.c(self.p(b))
        d = self.d(self.p(c))

        def up(t):
            return F.interpolate(t, scale_factor=2, mode="nearest")

        z = [0, 0, 0, 0]
        x = self.u2(torch.cat([c, F.pad(up(d), z)], 1))
        x = self.u3(torch.cat([b, F.pad(up(x), z)], 1))
        x = self.u4(torch.cat([a, F.pad(up(x), z)], 1))
        return torch.sigmoid(self.f(x))


def vgg16_bn(n=10):
    layers = []
    i = 3
    for v in [
        64,
        64,
        "M",
        128,
        128,
        "M",
        256,
        256,
        256,
        "M",
        512,
        512,
        512,
        "M",
        512,
        512,
        512,
        "M",
    ]:
        if v == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(i, v, 3, padding=1), nn.BatchNorm2d(v), nn.ReLU(inplace=True)]
            i = v
    return nn.Sequential(
        nn.Sequential(*layers),
        nn.AdaptiveAvgPool2d((7, 7)),
        nn.Flatten(),
        nn.Sequential(
            nn.Linear(25088, 4096),
            nn.ReLU(True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(True),
            nn.Dropout(0.5),
            nn.Linear(4096, n),
        ),
    )


class Bottleneck(nn.Module):
    def __init__(self, i, w, stride, down):
        super().__init__()
        o = w * 4
        self.conv1 = nn.Conv2d(i, w, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        self.conv2 = nn.Conv2d(w, w, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(w)
        self.conv3 = nn.Conv2d(w, o, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
            if down
            else None
        )

    def forward(self, x):
        idt = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out = self.relu(out)
        out = self.conv3(out)
        out = self.bn3(out)
        if self.downsample is not None:
            idt = self.downsample(x)
        out += idt
        return self.relu(out)


class ResNet50(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        i = 64
        for k, (w, c, st) in enumerate([(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]):
            bl = []
            for j in range(c):
                bl.append(Bottleneck(i, w, st if j == 0 else 1, j == 0))
                i = w * 4
            setattr(self, f"layer{k + 1}", nn.Sequential(*bl))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2048, n)

    def forward(self, x):
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.relu(x)
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)


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
    "ResNet50": (ResNet50, (3, 224, 224)),
    "ViT-B16": (ViT, (3, 224, 224)),
    "BasicUNet": (UN, (1, 256, 256)),
}
"""Makers, and shapes of one image."""
