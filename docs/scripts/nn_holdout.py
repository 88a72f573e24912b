"""Networks of `nn_predictions.py --networks first,second,third,fourth`: newer than the rules.

They are of torchvision, timm, MONAI and transformers (built from configurations), and of families
that its other table lacks where there are any. The rows that begin a list are those whose families
matter most. The first two lists were measured on 2026-11-23 and 25; the third was chosen after the
rules were made, the fourth before others were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from nn_predictions import Case
from torch import nn


@dataclass(frozen=True)
class Network(Case):
    """A network that is made by a function."""

    maker: Callable[[], nn.Module] = nn.Identity
    dtype: torch.dtype = torch.float32
    dense: tuple[int, ...] = ()
    """Shape of the class numbers of one sample."""

    def make(self) -> nn.Module:
        """Network with random weights, on the CPU."""
        return self.maker()

    def targets(self, n: int, sizes: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Shape of the class numbers."""
        return (n, *self.dense)


class Logits(nn.Module):
    """Logits of a model of transformers, with classes as the second axis."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the model."""
        return self.model(x).logits.movedim(-1, 1)


class Copied(nn.Module):
    """Sequence to sequence: the same tokens on both sides."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the model."""
        return self.model(input_ids=x, decoder_input_ids=x).logits.movedim(-1, 1)


class Recurrent(nn.Module):
    """Recurrent layers between an embedding, or a projection of features, and a head."""

    def __init__(self, kind: str, width: int, hidden: int, n_out: int, **options: Any) -> None:
        super().__init__()
        self.first = nn.Embedding(n_out, width) if options.pop("tokens", False) else None
        self.layers = getattr(nn, kind)(width, hidden, batch_first=True, **options)
        self.head = nn.Linear(hidden * (2 if self.layers.bidirectional else 1), n_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits with classes as the second axis."""
        x = x if self.first is None else self.first(x)
        return self.head(self.layers(x)[0]).movedim(-1, 1)


def sequences(
    name: str, batch: int, shape: tuple[int, ...], *given: Any, **options: Any
) -> Network:
    """Recurrent network: a class for each item of a sequence."""
    dtype = torch.long if options.get("tokens") else torch.float32
    maker = partial(Recurrent, *given, **options)
    return Network("torch", name, batch, shape, maker, dtype, shape[:1])


def face(kind: str, head: str, wrap: Any = Logits, **options: Any) -> nn.Module:
    """Model of transformers from its configuration."""
    library = import_module("transformers")
    config = getattr(library, kind + "Config")(**options)
    made: nn.Module = getattr(library, kind + head)(config)
    return made if wrap is None else wrap(made)


def monai(name: str, **options: Any) -> nn.Module:
    """Network of MONAI."""
    made: nn.Module = getattr(import_module("monai.networks.nets"), name)(**options)
    return made


def texts(name: str, batch: int, length: int, **options: Any) -> Network:
    """Language model: a class for each token."""
    maker = partial(face, **options)
    return Network("transformers", name, batch, (length,), maker, torch.long, (length,))


def dense(name: str, batch: int, shape: tuple[int, ...], **options: Any) -> Network:
    """Network of MONAI that has a class for each voxel."""
    maker = partial(monai, name.split()[0], **options)
    return Network("MONAI", name, batch, shape, maker, dense=shape[1:])


_BERT = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6,
    "intermediate_size": 1536}  # fmt: skip
_VOLUME = {"spatial_dims": 3, "in_channels": 1, "out_channels": 4}

_FIRST = [
    dense("UNet 3D", 2, (1, 96, 96, 96), **_VOLUME, channels=(16, 32, 64, 128),
          strides=(2, 2, 2), num_res_units=2),
    Case("timm", "coatnet_0_rw_224", 16),
    texts("gpt2", 8, 256, kind="GPT2", head="LMHeadModel", n_embd=384, n_layer=6, n_head=6,
          use_cache=False),
    Case("timm", "resnetv2_50", 16),
    Case("torchvision", "resnet101", 16),
    Case("torchvision", "densenet201", 8),
    dense("SegResNet 3D", 2, (1, 64, 64, 64), spatial_dims=3, in_channels=1, out_channels=4,
          init_filters=16),
    Case("timm", "mobilenetv4_conv_medium", 32),
    Case("timm", "efficientvit_b1", 32),
    texts("llama", 4, 256, kind="Llama", head="ForCausalLM", hidden_size=512,
          intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8,
          num_key_value_heads=4, use_cache=False),
    Case("timm", "vovnet39a", 16),
    Case("timm", "caformer_s18", 16),
    dense("SwinUNETR 3D", 1, (1, 64, 64, 64), in_channels=1, out_channels=4, feature_size=24),
    Case("torchvision", "regnet_x_400mf", 64),
    Case("torchvision", "efficientnet_b3", 8, (3, 300, 300)),
    texts("bert", 16, 256, kind="Bert", head="ForTokenClassification", num_labels=9, **_BERT),
    Case("timm", "dpn68", 16),
    Case("timm", "sequencer2d_s", 8),
    dense("DynUNet 2D", 8, (1, 256, 256), spatial_dims=2, in_channels=1, out_channels=4,
          kernel_size=(3, 3, 3, 3), strides=(1, 2, 2, 2), upsample_kernel_size=(2, 2, 2)),
    Case("timm", "inception_v4", 16, (3, 299, 299)),
    Case("timm", "mambaout_tiny", 16),
    texts("t5", 8, 192, kind="T5", head="ForConditionalGeneration", wrap=Copied, d_model=384,
          d_ff=1024, num_layers=4, num_heads=6, use_cache=False, decoder_start_token_id=0),
    Case("torchvision", "deeplabv3_mobilenet_v3_large", 8, (3, 320, 320)),
    Case("timm", "botnet26t_256", 16, (3, 256, 256)),
    Network("transformers", "segformer", 4, (3, 256, 256),
            partial(face, "Segformer", "ForImageClassification", None)),
    dense("AttentionUnet 2D", 8, (1, 192, 192), spatial_dims=2, in_channels=1, out_channels=4,
          channels=(32, 64, 128, 256), strides=(2, 2, 2)),
    Case("timm", "resmlp_12_224", 32),
    Case("timm", "crossvit_small_240", 16, (3, 240, 240)),
    Case("timm", "starnet_s2", 32),
    Case("torchvision", "mvit_v1_b", 1, (3, 16, 224, 224)),
    Case("torchvision", "shufflenet_v2_x2_0", 32),
    Case("timm", "seresnext26d_32x4d", 16),
    dense("VNet 3D", 2, (1, 64, 64, 64), spatial_dims=3, in_channels=1, out_channels=4),
    Case("timm", "gmlp_s16_224", 16),
    Case("timm", "fasternet_s", 32),
    Case("timm", "swiftformer_s", 16),
    Case("timm", "selecsls42b", 32),
    Case("timm", "lambda_resnet26t", 16, (3, 256, 256)),
    Case("timm", "maxxvit_rmlp_nano_rw_256", 8, (3, 256, 256)),
    Network("transformers", "convnextv2", 16, (3, 224, 224),
            partial(face, "ConvNextV2", "ForImageClassification", None)),
    Case("timm", "lcnet_100", 64),
    Case("timm", "efficientformerv2_s0", 32),
    Case("timm", "gernet_m", 32),
    Case("timm", "hardcorenas_a", 32),
    Case("timm", "shvit_s1", 32),
    dense("HighResNet 3D", 1, (1, 48, 48, 48), spatial_dims=3, in_channels=1, out_channels=4),
]  # fmt: skip
_SECOND = [
    Case("timm", "regnetz_b16", 16),
    Case("timm", "legacy_seresnext26_32x4d", 16),
    Case("timm", "swinv2_cr_tiny_224", 16),
    texts("distilbert", 16, 256, kind="DistilBert", head="ForTokenClassification", num_labels=9,
          dim=384, hidden_dim=1536, n_heads=6, n_layers=6),
    Case("torchvision", "resnet34", 32),
    Case("timm", "efficientvit_m3", 64),
    Case("timm", "rdnet_tiny", 8),
    texts("opt", 8, 256, kind="OPT", head="ForCausalLM", hidden_size=384, ffn_dim=1536,
          num_hidden_layers=6, num_attention_heads=6, word_embed_proj_dim=384, use_cache=False),
    Case("timm", "sam2_hiera_tiny", 8),
    Case("torchvision", "vgg19", 8),
    Case("timm", "tresnet_m", 16),
    Case("timm", "vit_relpos_small_patch16_224", 16),
    Case("timm", "inception_resnet_v2", 8, (3, 299, 299)),
    Case("torchvision", "wide_resnet101_2", 8),
    Case("timm", "lowformer_b1", 32),
    texts("bart", 8, 192, kind="Bart", head="ForConditionalGeneration", wrap=Copied, d_model=384,
          encoder_layers=4, decoder_layers=4, encoder_ffn_dim=1536, decoder_ffn_dim=1536,
          encoder_attention_heads=6, decoder_attention_heads=6, use_cache=False),
    Case("timm", "pnasnet5large", 2, (3, 331, 331)),
    Case("timm", "csatv2", 16),
    Case("torchvision", "efficientnet_v2_m", 8),
    Case("timm", "vitamin_small_224", 8),
    Case("torchvision", "fcn_resnet101", 4, (3, 320, 320)),
    Case("timm", "lcnetv2_base", 32),
    Case("timm", "cspnext_s", 32),
    Case("torchvision", "swin3d_s", 1, (3, 16, 224, 224)),
    Case("timm", "vit_small_resnet26d_224", 16),
    Case("timm", "repghostnet_100", 32),
    texts("gpt_neox", 4, 256, kind="GPTNeoX", head="ForCausalLM", hidden_size=512,
          intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, use_cache=False),
    Case("timm", "iformer_t", 32),
    Case("timm", "cpubone_b1_bfrobust", 32),
    Case("timm", "efficientvim_m2", 32),
    Case("timm", "legacy_xception", 8, (3, 299, 299)),
    Case("timm", "naflexvit_base_patch16_gap", 8),
    Case("timm", "mobilenetv5_300m", 4),
    Case("timm", "samvit_base_patch16_224", 8),
    Case("torchvision", "mobilenet_v3_small", 64),
    Case("timm", "skresnext50_32x4d", 16),
    Case("timm", "ecaresnet50t", 16, (3, 256, 256)),
    Case("timm", "halonet26t", 16, (3, 256, 256)),
    Case("timm", "mixnet_s", 32),
    texts("qwen2", 4, 256, kind="Qwen2", head="ForCausalLM", hidden_size=512,
          intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8,
          num_key_value_heads=2, use_cache=False),
    Case("timm", "efficientnet_b0_g8_gn", 16),
    Case("timm", "gcresnet33ts", 16, (3, 256, 256)),
    Case("timm", "ese_vovnet19b_dw", 16),
    Case("timm", "qwen3_vit_88m", 8),
    Case("timm", "nasnetalarge", 2, (3, 331, 331)),
    Case("timm", "resnetrs50", 16, (3, 160, 160)),
    Case("timm", "hgnet_tiny", 16),
    texts("albert", 8, 256, kind="Albert", head="ForTokenClassification", num_labels=9,
          embedding_size=128, **_BERT),
]  # fmt: skip
_THIRD = [
    sequences("LSTM, words", 32, (128,), "LSTM", 400, 1150, 10_000, num_layers=3, tokens=True),
    sequences("GRU, speech", 16, (600, 80), "GRU", 80, 512, 64, num_layers=5, bidirectional=True),
    sequences("BiLSTM, tagger", 256, (48,), "LSTM", 100, 128, 5000, num_layers=2, tokens=True,
              bidirectional=True, dropout=0.3),
    sequences("RNN, signals", 128, (500, 12), "RNN", 12, 256, 5, num_layers=2),
    Case("timm", "sam2_hiera_small", 8),
    Case("timm", "sequencer2d_m", 8),
    Case("timm", "regnetx_016", 16),
    Case("timm", "resnest50d_4s2x40d", 16),
    Case("timm", "resnet101d", 8),
    Case("timm", "darknet53", 8, (3, 256, 256)),
    Case("timm", "resnext101_32x8d", 8),
    Case("timm", "seresnext50_32x4d", 16),
    Case("timm", "cs3darknet_m", 16, (3, 256, 256)),
    Case("timm", "dla60", 16),
    Case("timm", "repvgg_a2", 16),
    Case("timm", "convnext_nano", 16),
    Case("timm", "mvitv2_small", 8),
    Case("timm", "eca_nfnet_l0", 16),
    Case("timm", "convformer_s18", 16),
    Case("timm", "maxvit_nano_rw_256", 8, (3, 256, 256)),
    Case("timm", "mobilevitv2_100", 16, (3, 256, 256)),
    Case("timm", "tiny_vit_11m_224", 16),
    Case("timm", "twins_pcpvt_small", 16),
    Case("timm", "xception65", 8, (3, 299, 299)),
    Case("timm", "fbnetc_100", 32),
    Case("timm", "gmixer_24_224", 16),
    Case("timm", "poolformerv2_s12", 16),
    Case("timm", "hrnet_w32", 8),
]  # fmt: skip
_FOURTH = [
    sequences("LSTM, dropout", 64, (64,), "LSTM", 200, 300, 8000, num_layers=3, tokens=True,
              dropout=0.2),
    sequences("BiGRU, dropout", 32, (200, 40), "GRU", 40, 160, 100, num_layers=3,
              bidirectional=True, dropout=0.5),
    Case("timm", "resnest26d", 16),
    Case("timm", "regnety_032", 16),
    Case("torchvision", "resnext101_64x4d", 8),
    Case("torchvision", "regnet_y_800mf", 32),
    Case("timm", "res2next50", 16),
    Case("timm", "gcresnext26ts", 16, (3, 256, 256)),
    Case("timm", "regnetv_040", 16),
    Case("timm", "seresnext26t_32x4d", 16),
    Case("timm", "resnext50d_32x4d", 16),
    Case("timm", "skresnet34", 16),
    Case("timm", "dpn92", 8),
    Case("timm", "bat_resnext26ts", 16, (3, 256, 256)),
    Case("timm", "haloregnetz_b", 16),
    Case("timm", "regnetz_c16", 16),
    Case("timm", "cspresnext50", 16, (3, 256, 256)),
    Case("timm", "mobileone_s1", 16),
    Case("timm", "sebotnet33ts_256", 16, (3, 256, 256)),
    Case("timm", "resnetblur50", 16),
    Case("timm", "tinynet_a", 32, (3, 192, 192)),
    Case("timm", "semnasnet_100", 32),
    Case("timm", "selecsls60", 16),
    Case("timm", "fastvit_sa12", 16, (3, 256, 256)),
    Case("timm", "repvit_m0_9", 32),
    Case("timm", "nfnet_f0", 8, (3, 256, 256)),
    Case("timm", "swin_s3_tiny_224", 16),
    Case("timm", "xcit_nano_12_p8_224", 8),
    Case("timm", "coat_tiny", 8),
    Case("timm", "focalnet_small_srf", 8),
    Case("torchvision", "densenet169", 16),
    Case("torchvision", "vgg13_bn", 16),
]  # fmt: skip
FIRST = {case.name: case for case in _FIRST}
"""Networks by name, in the order of their rows: of 2026-11-23."""
SECOND = {case.name: case for case in _SECOND}
"""Networks of 2026-11-25."""
THIRD = {case.name: case for case in _THIRD}
"""Networks chosen after the rules of 2026-11-25 were made."""
FOURTH = {case.name: case for case in _FOURTH}
"""Networks chosen before the rules of 2026-11-26 were made, and measured once with them."""
