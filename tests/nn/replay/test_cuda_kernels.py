"""Operators run as on a GPU during a replay, and real tensors are not affected."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional

from maxslices.nn.replay import DataDependentError, Replay, Spec, Workspaces, replay
from maxslices.nn.replay.cuda_kernels import Capability

NONE = Workspaces.none()


def ops(target, *inputs, mode="inference", **options):
    trace = replay(target, *inputs, mode=mode, workspaces=NONE, **options)
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
    operands = [spec] * 3 + ([mask] if mask else [])
    result = ops(Attention(**options), *operands, capability=capability or Capability())
    names = {name for name, *_ in result}
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


class SharedHeads(nn.Module):
    """Several heads of queries share those of keys and values."""

    def forward(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.parametrize(
    ("dtype", "wanted"), [(torch.float32, "softmax"), (torch.float16, "flash_attention")]
)
def test_heads_that_share_keys_are_for_flash_attention_alone(dtype, wanted):
    # Llama in single precision, on an H200: the scores of every layer are kept.
    q, k = Spec((2, 8, 100, 64), dtype), Spec((2, 4, 100, 64), dtype)
    assert any(wanted in name for name, *_ in ops(SharedHeads(), q, k, k))


class Biased(nn.Module):
    """Position bias as T5 makes it: heads last, then turned."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(96, 96, 4))

    def forward(self, x, turned):
        mask = self.bias.permute(2, 0, 1)[None]
        mask = mask if turned else mask.contiguous()
        return functional.scaled_dot_product_attention(x, x, x, mask)


@pytest.mark.parametrize(("turned", "wanted"), [(True, "softmax"), (False, "efficient")])
def test_a_mask_whose_last_axis_is_not_contiguous_is_added_to_the_scores(turned, wanted):
    result = ops(Biased(), Spec((2, 4, 96, 64)), turned)
    assert any(wanted in name for name, *_ in result)


def test_the_gradient_of_a_softmax_takes_a_product_beside_its_result():
    def step(x):
        functional.softmax(x, -1).square().sum().backward()

    trace = replay(step, Spec((8, 1024, 1024), requires_grad=True), mode="forward", workspaces=NONE)
    n_bytes = 4 * 8 * 1024 * 1024
    result = [s.n_bytes for s in trace.storages if "_softmax_backward_data" in s.op]
    assert result == [n_bytes, n_bytes]


def test_autocast_of_a_tensors_own_device_is_that_of_the_replayed_device():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(64, 64)

        def forward(self, x):
            with torch.autocast(x.device.type, enabled=False):
                return self.body(x.float())

    result = ops(Single(), Spec((8, 64)), amp=torch.float16)
    assert [dtype for _, _, dtype in result] == ["float32"]


def test_attention_that_is_switched_off_is_not_taken():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert kernel(torch.float16) == "math"


def test_attention_of_rank_5_looks_for_rows_that_are_masked_from_end_to_end():
    """Measured on an H200: NesT's inference takes one byte per score in addition to the softmax."""
    spec = Spec((2, 3, 4, 256, 32))
    trace = replay(functional.scaled_dot_product_attention, spec, spec, spec, workspaces=NONE)
    scores = 2 * 3 * 4 * 256 * 256
    assert trace.peak_bytes >= (4 + 4 + 1) * scores


def test_dropout_keeps_a_mask_of_a_byte_an_item():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
    result = ops(model, Spec((128, 64)), mode="forward")
    assert ("native_dropout", (128, 64), "bool") in result
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
    result = {name: dtype for name, _, dtype in ops(Mixed(), Spec((2, 1, 8, 8)), amp=amp)}
    assert result["convolution"] == result["addmm"] == low
    assert result["_softmax"] == "float32"


def test_casts_of_weights_are_kept_for_the_whole_context():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return self.layer(self.layer(x))

    result = ops(Twice(), Spec((2, 64)), amp=True)
    assert [m[1] for m in result if m[0] == "_to_copy"].count((64, 64)) == 1


def test_autocast_in_the_users_code_is_followed_and_put_back():
    def function(x):
        with torch.autocast("cuda"):
            y = x @ x
            with torch.autocast("cuda", enabled=False):
                z = x @ x
        return y, z

    result = [dtype for name, _, dtype in ops(function, Spec((8, 8))) if name == "mm"]
    assert result == ["float16", "float32"]
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
        replay(m, Spec((4096, 256)), mode="training", steps=1, workspaces=NONE)
        for m in (model(), Offloaded(model()))
    )
    image = 4096 * 256 * 4
    assert plain.bytes_at("forward") - offloaded.bytes_at("forward") >= 5 * image
    assert offloaded.peak_bytes < plain.peak_bytes


def test_a_result_on_the_host_is_none_of_the_devices():
    trace = replay(lambda x: (x * 2).cpu() + 1, Spec((1024,)), workspaces=NONE)
    assert [s.op for s in trace.storages] == ["", "aten::mul.Tensor"]
    with pytest.raises(DataDependentError, match=r"test_cuda_kernels\.py:\d+"):
        replay(lambda x: x.cpu().numpy(), Spec((3,)))


def test_tensors_made_on_cuda_are_on_the_device_that_is_replayed():
    trace = replay(lambda x: x + torch.zeros(1024, device="cuda"), Spec((1024,)), workspaces=NONE)
    assert trace.peak_bytes == 3 * 4096


def asked(function, *inputs):
    """Return what a step asks for: (operator, bytes, whether it is a workspace, alloc or free)."""
    trace = replay(function, *inputs, mode="training", steps=1, workspaces=NONE)
    named = [(s.op.removeprefix("aten::"), s.category == "workspace") for s in trace.storages]
    return [
        (named[index][0], trace.storages[index].n_bytes, named[index][1], kind)
        for kind, index in trace.events
        if kind in ("alloc", "free")
    ]


def during(events, op):
    """Return the events from an operator's first workspace to its last."""
    own = [i for i, (name, _, is_workspace, _) in enumerate(events) if name == op and is_workspace]
    return [event[1:] for event in events[own[0] : own[-1] + 1]]


class Turned(nn.Module):
    """Layer on a transposed operand, with its result transposed back."""

    def __init__(self, layer, turned_back=False):
        super().__init__()
        self.layer, self.turned_back = layer, turned_back

    def forward(self, x):
        x = (x * 2.0).transpose(0, 1)
        result = self.layer(x)
        return (result.transpose(0, 1) if self.turned_back else result) * 2.0


def test_a_norm_copies_its_input_and_the_gradient():
    events = asked(Turned(nn.LayerNorm(8), turned_back=True), Spec((3, 5, 8)))
    n_bytes = 3 * 5 * 8 * 4
    forward = during(events, "native_layer_norm")
    assert forward[0] == (n_bytes, True, "alloc")
    assert forward[1] == (n_bytes, False, "alloc")
    assert forward[-1] == (n_bytes, True, "free")
    backward = during(events, "native_layer_norm_backward")
    assert backward[:2] == [(n_bytes, True, "alloc")] * 2


def test_a_convolution_copies_what_is_not_in_its_order():
    events = asked(Turned(nn.Conv2d(3, 4, 3)), Spec((3, 2, 9, 9)))
    copied = 2 * 3 * 9 * 9 * 4
    assert during(events, "convolution")[0] == (copied, True, "alloc")
    backward = during(events, "convolution_backward")
    assert backward[0] == (copied, True, "alloc")
    # The copy is freed before the gradient of the bias is computed.
    assert backward[-1] == (copied, True, "free")
    after = events.index(("convolution_backward", copied, True, "free")) + 1
    assert events[after] == ("convolution_backward", 16, False, "alloc")


def test_channels_last_are_not_copied():
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    events = asked(Turned(conv), Spec((3, 2, 9, 9)))
    assert (2 * 3 * 9 * 9 * 4, True, "alloc") in during(events, "convolution")

    after = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)

    def last(x):
        return after(conv((x * 2.0).contiguous(memory_format=torch.channels_last)))

    result = replay(last, Spec((2, 3, 9, 9)), workspaces=NONE)
    assert not any(storage.category == "workspace" for storage in result.storages)


@pytest.mark.parametrize("x_is_last", [False, True])
@pytest.mark.parametrize("weight_is_last", [False, True])
def test_a_convolution_is_channels_last_where_input_or_weight_is(x_is_last, weight_is_last):
    orders = {False: torch.contiguous_format, True: torch.channels_last}

    def empty(shape, is_last):
        return torch.empty(shape, device="meta").to(memory_format=orders[is_last])

    x, weight = empty((2, 3, 9, 9), x_is_last), empty((4, 3, 3, 3), weight_is_last)
    options = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    with Replay(workspaces=NONE):
        result = [torch.conv2d(x, weight)]
        for is_last in orders:  # memory format of the incoming gradient, which has no effect
            operands = empty((2, 4, 7, 7), is_last)
            result += torch.ops.aten.convolution_backward(operands, x, weight, None, *options)[:2]
    order = orders[x_is_last or weight_is_last]
    assert all(each.is_contiguous(memory_format=order) for each in result)


def sliced(x):
    """Channels last, but not all of them: contiguous in no memory format."""
    return x[..., :8].movedim(-1, 1)


def rows_of(x):
    return x[..., :8].movedim(-1, 1).transpose(-1, -2)


POOLS = {
    "max": lambda x: functional.max_pool2d(x, 2),
    "average": lambda x: functional.avg_pool2d(x, 2),
    "to a size": lambda x: functional.adaptive_avg_pool2d(x, 3),
}


def copies_of(target, *inputs, **options):
    """Operators that copied an operand, with the bytes of the copy."""
    trace = replay(target, *inputs, workspaces=NONE, **options)
    result = [s for s in trace.storages if s.category == "workspace"]
    return [(s.op.removeprefix("aten::"), s.n_bytes) for s in result]


@pytest.mark.parametrize(
    ("name", "operand", "is_copied"),
    [
        ("max", sliced, True),
        ("average", sliced, True),
        ("to a size", rows_of, True),
        *((name, lambda x: x[..., :8].movedim(-1, 1).contiguous(), False) for name in POOLS),
        *((name, lambda x: (x[..., :8] * 1.0).movedim(-1, 1), False) for name in POOLS),
    ],
)
def test_pooling_copies_an_operand_that_is_in_no_memory_format(name, operand, is_copied):
    result = copies_of(lambda x: POOLS[name](operand(x)), Spec((3, 6, 10, 24)))
    assert [n_bytes for _, n_bytes in result] == [3 * 8 * 6 * 10 * 4] * is_copied


@pytest.mark.parametrize("name", POOLS)
def test_the_gradient_of_pooling_copies_in_the_order_of_the_input(name):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            result = POOLS[name](x * self.scale)
            return result.movedim(1, -1).contiguous()  # so the gradient is channels last

    result = copies_of(Net(), Spec((3, 8, 6, 10)), mode="training")
    size = 3 * 3 if name == "to a size" else 3 * 5
    copies = [(op, n_bytes) for op, n_bytes in result if "pool" in op]
    assert {n_bytes for _, n_bytes in copies} == {3 * 8 * size * 4}
    assert all("backward" in op for op, _ in copies)


def test_the_gradient_of_attention_takes_what_was_recorded():
    """On an H200: a copy, three results, product and two sums, and then a sum of its own."""
    batch, heads, rows, width = 2, 12, 197, 64

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, q):
            q = q * self.scale
            result = functional.scaled_dot_product_attention(q, q, q)
            return (result.transpose(1, 2) if self.turned else result) * 2.0

        turned = True

    net = Net()
    item = 4 * batch * heads * rows
    work = 4 * batch * heads * (256 * 64 + 16)
    results = [(item * width, False, "alloc")] * 3
    parts = [
        (item * width, True, "alloc"), (item, True, "alloc"), (item, True, "alloc"),
        (item, True, "free"), (item * width, True, "free"), (work, True, "alloc"),
        (item, True, "free"), (work, True, "free"),
    ]  # fmt: skip
    copy = [(item * width, True, "alloc"), (item * width, True, "free")]
    name = "_scaled_dot_product_efficient_attention_backward"
    spec = Spec((batch, heads, rows, width))
    assert during(asked(net, spec), name) == parts
    net.turned = False
    assert during(asked(net, spec), name) == [*copy[:1], *results, *parts, *copy[1:]]
