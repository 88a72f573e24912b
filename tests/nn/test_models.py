"""The networks of the tables have the memory of those that they are named after."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from maxslices.nn.replay import Spec, Workspaces, replay

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"
NONE = Workspaces.none()


@pytest.fixture(scope="module")
def models():
    if not SCRIPTS.exists():
        pytest.skip("maxslices is not in its checkout")
    sys.path.insert(0, str(SCRIPTS))
    try:
        import nn_models
    finally:
        sys.path.remove(str(SCRIPTS))
    return nn_models


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("CNN", 985_914),
        ("VGG16BN", 134_309_962),
        ("ResNet", 23_528_522),
        ("ViTB16", 85_806_346),
        ("UNETR", 92_685_674),
        ("BasicUNet", 7_787_393),
        ("ResNet18UNet", 14_321_937),
    ],
)
def test_copies_of_networks_have_as_many_parameters(models, name, parameters):
    with torch.device("meta"):
        model = getattr(models, name)()
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_stages_of_the_encoder_are_those_that_were_printed(models):
    trace = replay(models.Encoder(), Spec((4, 1, 256, 256)), mode="forward", workspaces=NONE)
    sizes = [trace.bytes_at("model"), trace.bytes_at("input")]
    sizes += [trace.bytes_after(call) for call in trace.modules if call.module in tuple("abcd")]
    printed = [17.9, 18.9, 274.91, 450.91, 538.91, 582.92]
    assert [n / 2**20 for n in sizes] == pytest.approx(printed, abs=0.01)


def test_the_basic_unet_takes_what_was_printed_and_the_larger_model_a_fifth(models):
    spec = Spec((4, 1, 256, 256))
    basic = replay(models.BasicUNet(), spec, mode="forward", workspaces=NONE)
    other = replay(models.ResNet18UNet(), spec, mode="forward", workspaces=NONE)
    assert basic.bytes_at("forward") / 2**20 == pytest.approx(1787, rel=1e-3)
    assert other.bytes_at("forward") < 0.22 * basic.bytes_at("forward")


@pytest.mark.parametrize(
    ("name", "measured"), [("BasicUNet", 1788.64), ("ResNet18UNet", 376.1953125)]
)
def test_memory_after_the_forward_pass_is_predicted(models, name, measured):
    """The allocator leaves up to 1 MiB of a part unsplit: seen on an H200."""
    trace = replay(getattr(models, name)(), Spec((4, 1, 256, 256)), mode="forward")
    assert trace.allocated_at("forward") / 2**20 == pytest.approx(measured, abs=0.005)
    assert trace.allocated_at("forward") > trace.bytes_at("forward")
    assert max(trace.handed_out_bytes) == trace.allocated_bytes


def _theirs(package: str) -> list[tuple[str, object, tuple[int, ...]]]:
    module = pytest.importorskip(package)
    image = (2, 3, 224, 224)
    if package == "torchvision.models":
        return [
            ("ResNet", module.resnet50(num_classes=10), image),
            ("VGG16BN", module.vgg16_bn(num_classes=10), image),
            ("ViTB16", module.vit_b_16(num_classes=10), image),
        ]
    if package == "monai.networks.nets":
        unetr = module.UNETR(1, 10, (64, 64, 64), feature_size=16, num_heads=12)
        return [("UNETR", unetr, (2, 1, 64, 64, 64))]
    unet = module.Unet("resnet18", encoder_weights=None, in_channels=1, classes=1)
    return [("ResNet18UNet", unet, (2, 1, 256, 256))]


@pytest.mark.parametrize(
    "package", ["torchvision.models", "monai.networks.nets", "segmentation_models_pytorch"]
)
def test_they_allocate_what_those_allocate(models, package):
    for name, other, shape in _theirs(package):
        sizes = []
        for model in (getattr(models, name)(), other):
            trace = replay(model, Spec(shape), mode="training", workspaces=NONE)
            sizes.append([s.n_bytes for s in trace.storages if s.category != "weights"])
        assert sizes[0] == sizes[1], name
