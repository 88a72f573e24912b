"""Operators take the way that they take on a GPU, and the real ones are not touched."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from maxslices.tracing import DataDependentError, Spec, WorkAreas, replay  # noqa: E402
from maxslices.tracing.kernels import Capability  # noqa: E402

NONE = WorkAreas.none()


def ops(target, *inputs, mode="inference", **options):
    trace = replay(target, *inputs, mode=mode, work_areas=NONE, **options)
    return [(s.op.removeprefix("aten::"), s.shape, s.dtype) for s in trace.storages if s.op]


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.options = options

    def forward(self, q, k, v, mask=None):
        q = q * self.scale.to(q.dtype)
        return functional.scaled_dot_product_attention(q, k, v, mask, **self.options)


def kernel(dtype=torch.float32, width=64, mask=None, capability=None, **options):
    spec = Spec((2, 4, 100, width), dtype)
    given = [spec] * 3 + ([mask] if mask else [])
    made = ops(Attention(**options), *given, capability=capability or Capability())
    names = {name for name, *_ in made}
    if any("softmax" in name for name in names):
        return "math"
    (name,) = (name for name in names if "attention" in name)
    return name.removeprefix("_scaled_dot_product_")


def test_attention_takes_the_kernel_of_the_device():
    assert kernel() == "efficient_attention"
    assert kernel(torch.float16) == "flash_attention"
    assert kernel(torch.bfloat16) == "flash_attention"
    assert kernel(torch.float64) == "math"
    mask = Spec((2, 4, 100, 100), torch.float16)
    assert kernel(torch.float16, mask=mask) == "efficient_attention"
    assert kernel(torch.float16, capability=Capability(7, 0)) == "efficient_attention"
    assert kernel(torch.bfloat16, capability=Capability(7, 0)) == "math"


def test_attention_that_is_switched_off_is_not_taken():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert kernel(torch.float16) == "math"


def test_attention_in_one_kernel_does_not_hold_the_scores():
    scores = [s for s in ops(Attention(), *[Spec((2, 4, 512, 64))] * 3) if s[1][-2:] == (512, 512)]
    assert scores == []


def test_dropout_keeps_a_mask_of_a_byte_an_item():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
    made = ops(model, Spec((128, 64)), mode="forward")
    assert ("native_dropout", (128, 64), "bool") in made
    model.eval()
    assert not [m for m in ops(model, Spec((128, 64)), mode="forward") if "dropout" in m[0]]


def test_a_bias_is_added_in_place():
    model = nn.Linear(16, 32)
    assert [m[0] for m in ops(model, Spec((2, 3, 16)))] == ["addmm"]

    def turned(x):
        return functional.linear(x.transpose(0, 1), x[0, :5, :16], x[0, 0, :5])

    assert [m[0] for m in ops(turned, Spec((7, 9, 16)))] == ["bmm"]


def test_real_tensors_are_computed_as_ever_during_and_after_a_replay():
    layer, x = nn.Linear(3, 2), torch.ones(4, 3)
    expected = layer(x)
    seen = []

    def function(y):
        seen.append(layer(x))
        return y

    replay(function, Spec((1,)))
    assert torch.equal(seen[0], expected)
    assert torch.equal(layer(x), expected)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.first(x)).mean((2, 3))
        return functional.softmax(self.last(x), -1)


@pytest.mark.parametrize("amp", [True, torch.float16, torch.bfloat16])
def test_autocast_casts_by_its_lists(amp):
    low = "bfloat16" if amp is torch.bfloat16 else "float16"
    made = {name: dtype for name, _, dtype in ops(Mixed(), Spec((2, 1, 8, 8)), amp=amp)}
    assert made["convolution"] == made["addmm"] == low
    assert made["_softmax"] == "float32"


def test_casts_of_weights_are_kept_for_the_whole_context():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return self.layer(self.layer(x))

    made = ops(Twice(), Spec((2, 64)), amp=True)
    assert [m[1] for m in made if m[0] == "_to_copy"].count((64, 64)) == 1


def test_autocast_in_the_users_code_is_followed_and_put_back():
    def function(x):
        with torch.autocast("cuda"):
            y = x @ x
            with torch.autocast("cuda", enabled=False):
                z = x @ x
        return y, z

    made = [dtype for name, _, dtype in ops(function, Spec((8, 8))) if name == "mm"]
    assert made == ["float16", "float32"]
    assert not torch.is_autocast_enabled("cuda")


def test_activations_offloaded_to_the_host_are_not_counted():
    class Offloaded(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return self.inner(x)

    def model():
        return nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Sigmoid()) for _ in range(6)])

    plain, offloaded = (
        replay(m, Spec((4096, 256)), mode="training", steps=1, work_areas=NONE)
        for m in (model(), Offloaded(model()))
    )
    image = 4096 * 256 * 4
    assert plain.bytes_at("forward") - offloaded.bytes_at("forward") >= 5 * image
    assert offloaded.peak_bytes < plain.peak_bytes


def test_a_result_on_the_host_is_none_of_the_devices():
    trace = replay(lambda x: (x * 2).cpu() + 1, Spec((1024,)), work_areas=NONE)
    assert [s.op for s in trace.storages] == ["", "aten::mul.Tensor"]
    with pytest.raises(DataDependentError, match=r"test_kernels\.py:\d+"):
        replay(lambda x: x.cpu().numpy(), Spec((3,)))


def test_tensors_made_on_cuda_are_on_the_device_that_is_replayed():
    trace = replay(lambda x: x + torch.zeros(1024, device="cuda"), Spec((1024,)), work_areas=NONE)
    assert trace.peak_bytes == 3 * 4096
