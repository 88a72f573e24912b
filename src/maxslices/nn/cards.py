"""Cards by name: the memory that CUDA reports for them, and their compute capability.

CUDA reports less memory than advertised, and drivers differ by some MiB. Each size is from a public
report of a machine, the lowest if there are several. Compute capabilities are from
https://developer.nvidia.com/cuda-gpus. They decide which attention kernels are available.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from .nn_errors import ModelArgumentError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU."""

    name: str
    memory_bytes: int
    """Memory that CUDA reports, including its context."""
    capability: tuple[int, int]
    """Compute capability."""
    source: str
    """Address of the report."""


def _card(name: str, gib: float, major: int, minor: int, source: str) -> Card:
    return Card(name, int(gib * GIB), (major, minor), f"https://github.com/{source}")


CARDS = (
    Card("H200", 150_109_880_320, (9, 0), "measured: tests/nn/replay/h200.json"),
    _card("H100 80GB", 79.11, 9, 0, "vllm-project/vllm/issues/27508"),
    _card("A100 80GB", 79.15, 8, 0, "vllm-project/vllm/issues/4408"),
    _card("A100 40GB", 42_298_834_944 / GIB, 8, 0, "bottlerocket-os/bottlerocket/pull/3873"),
    _card("A30", 23.50, 8, 0, "LHRLAB/ChatKBQA/issues/2"),
    _card("A10", 21.99, 8, 6, "zai-org/CogVLM/issues/236"),
    _card("V100 32GB", 31.74, 7, 0, "liucongg/ChatGLM-Finetuning/issues/73"),
    _card("V100 16GB", 15.78, 7, 0, "kchengiva/Shift-GCN/issues/34"),
    _card("T4", 14.56, 7, 5, "Zheng-Chong/CatVTON/issues/133"),
    _card("L40S", 44.42, 8, 9, "stepfun-ai/Step-Video-T2V/issues/8"),
    _card("L40", 44.40, 8, 9, "QwenLM/Qwen3-VL/issues/2097"),
    _card("RTX 6000 Ada", 44.43, 8, 9, "DINGYANB/MTVCrafter/issues/21"),
    _card("RTX A4000", 15.61, 8, 6, "DengKaiCQ/VGGT-Long/issues/6"),
    _card("RTX 8000", 47.46, 7, 5, "Victarry/stable-dreambooth/issues/8"),
    _card("RTX 5090", 33_677_180_928 / GIB, 12, 0, "aikitoria/open-gpu-kernel-modules/issues/1"),
    _card("RTX 4090", 23.52, 8, 9, "Soul-AILab/SoulX-FlashTalk/issues/5"),
    _card("RTX 4060", 7.75, 8, 9, "ESRSchao/EdgeRegNet/issues/2"),
    _card("RTX 3090", 23.70, 8, 6, "GaoLii/DSP/issues/10"),
    _card("RTX 3080", 9.78, 8, 6, "zai-org/CogVideo/issues/34"),
    _card("RTX 3060", 11.76, 8, 6, "TencentARC/PhotoMaker/issues/47"),
    _card("RTX 2080 Ti", 10.76, 7, 5, "JDAI-CV/image-captioning/issues/11"),
)
"""Cards whose memory is known from a report."""

_MAKER = re.compile(r"nvidia|geforce|tesla|quadro|[\s_-]")


def card_named(name: str) -> Card:
    """Card of a name, in upper or lower case, with or without the maker's name.

    Raises
    ------
    ModelArgumentError
        If the name matches none of `CARDS`, or several. The message lists similar names.
    """
    wanted = _plain(name)
    cards = {_plain(card.name): card for card in CARDS}
    if wanted in cards:
        return cards[wanted]
    begun = [card.name for plain, card in cards.items() if wanted and plain.startswith(wanted)]
    near = begun or [cards[each].name for each in get_close_matches(wanted, cards, 4, 0.6)]
    if len(begun) > 1:
        raise ModelArgumentError(f"{name!r} is several cards: choose {' or '.join(begun)}")
    names = ", ".join(near or (card.name for card in CARDS))
    raise ModelArgumentError(
        f"the memory of {name!r} is unknown. Name one of {names}, or pass an amount, such as 24GB"
    )


def _plain(name: str) -> str:
    return _MAKER.sub("", name.lower())
