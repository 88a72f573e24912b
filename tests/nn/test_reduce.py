"""Rewrites do not change the results of a model, and plans stay within their limits."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import ModelArgumentError, TooLargeError
from maxslices.nn.reduce import (
    Rewrite,
    apply_rewrites,
    kept_tensors,
    reduce_memory,
    resolve_device,
    restore,
    undo_rewrites,
)
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

from .networks import assert_same, deep


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.a, self.norm, self.relu = nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU()
        self.b, self.drop = nn.Conv2d(n, n, 3, padding=1), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.b(self.relu(self.norm(self.a(x)))))


def network(n: int = 7) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, n, 3, padding=1), Block(n), Block(n), Block(n), nn.Flatten(), nn.LazyLinear(5)
    )


@pytest.fixture
def case() -> tuple[nn.Module, torch.Tensor]:
    model = network()
    x = torch.randn(4, 3, 13, 11)
    model(x)
    return model, x


@pytest.mark.parametrize("kind", ["checkpoint", "selective", "offload"])
@pytest.mark.parametrize("paths", [["1", "2", "3"], ["2"], ["1.norm", "3.relu", "2.drop"]])
def test_gradients_and_statistics_are_the_same_to_the_bit(case, kind, paths):
    model, x = case
    other = copy.deepcopy(model)
    apply_rewrites(other, {path: Rewrite(kind) for path in paths})
    assert_same(model, other, x)


NESTED = [
    {"[1:3]": Rewrite("checkpoint")},
    {
        "[0:4]": Rewrite("checkpoint"),
        "[1:3]": Rewrite("checkpoint"),
        "1.norm": Rewrite("checkpoint"),
    },
    {"": Rewrite("checkpoint"), "[1:4]": Rewrite("checkpoint"), "2": Rewrite("checkpoint")},
    {"[0:2]": Rewrite("selective"), "2": Rewrite("offload"), "3.a": Rewrite("split", (), 1)},
    {"": Rewrite("offload"), "1": Rewrite("selective"), "2": Rewrite("checkpoint")},
]


@pytest.mark.parametrize(
    "plan", NESTED, ids=["a run", "runs in runs", "in the model", "side by side", "on the host"]
)
def test_ranges_of_layers_and_rewrites_inside_others_change_nothing(case, plan):
    model, x = case
    other = copy.deepcopy(model)
    apply_rewrites(other, plan)
    other = copy.deepcopy(other)
    assert [*other.state_dict()] == [*model.state_dict()]
    assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
    assert_same(model, other, x)
    undo_rewrites(other)
    assert not any("forward" in m.__dict__ for m in other.modules())


def test_ranges_that_overlap_or_do_not_exist_are_refused(case):
    model, _x = case
    plain = Rewrite("checkpoint")
    with pytest.raises(ValueError, match="overlaps"):
        apply_rewrites(model, {"[0:2]": plain, "[1:3]": plain})
    with pytest.raises(KeyError, match="no such range"):
        apply_rewrites(model, {"[4:9]": plain})
    with pytest.raises(KeyError, match="no such range"):
        apply_rewrites(model, {"1[0:2]": plain})  # a Block is no Sequential


def test_arguments_that_are_one_object_stay_one():
    # Attention multiplies once by all weights if its arguments are the same, thrice if not.
    torch.manual_seed(0)

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    model = nn.Sequential(nn.Linear(8, 8), Attends())
    other = copy.deepcopy(model)
    apply_rewrites(other, {"1": Rewrite("checkpoint"), "1.attention": Rewrite("checkpoint")})
    x = torch.randn(2, 5, 8)
    assert_same(model, other, x)


@pytest.mark.parametrize(
    "plan",
    [
        {"0": Rewrite("split", (), 3), "2": Rewrite("split", (), 2)},
        {"": Rewrite("checkpoint", parts=3)},
    ],
    ids=["layers", "the batch"],
)
def test_in_parts_gradients_are_the_same_but_for_rounding(plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.GELU(), nn.Conv2d(5, 3, 3)).double()
    other = copy.deepcopy(model)
    apply_rewrites(other, plan)
    x = torch.randn(7, 2, 9, 9, dtype=torch.float64)
    # The bound: sums of 7 * 49 products in another order.
    assert_same(model, other, x, 1e-12)


def test_on_the_host_inside_of_a_checkpoint_gradients_are_the_same_to_the_bit(case, monkeypatch):
    # Tensors of the CPU are not offloaded, so this test offloads them as those of a device.
    def moved(_module: nn.Module) -> AbstractContextManager[None]:
        def pack(tensor: torch.Tensor) -> kept_tensors._HostCopy:
            held.append(kept_tensors._HostCopy(tensor.detach()))
            held[-1].n_awaited += 1
            return held[-1]

        return torch.autograd.graph.saved_tensors_hooks(pack, kept_tensors._unpack)

    held: list[kept_tensors._HostCopy] = []
    monkeypatch.setitem(apply_rewrites.__globals__, "offloaded", moved)
    model, x = case
    other = copy.deepcopy(model)
    plain = Rewrite("checkpoint")
    apply_rewrites(other, {"[0:4]": plain, "[1:3]": plain, "2": Rewrite("offload")})
    assert_same(model, other, x)
    # Tensors of the first pass came back. Those of the recomputation were offloaded in vain.
    n = len(held) // 2
    assert [each.n_awaited for each in held] == [0] * n + [1] * n
    assert n > 0


SPEC = Spec((4, 3, 128, 128))


def peak_of(model: nn.Module) -> int:
    step = ModelStep(model, "training", torch.optim.Adam)
    return step.trace([SPEC], Workspaces.allowance()).peak_bytes


@pytest.mark.parametrize("part", [0.75, 0.5])
def test_a_plan_stays_within_its_limit_and_changes_nothing(part):
    model = deep()
    other = copy.deepcopy(model)
    whole = peak_of(model)
    returned, summary = reduce_memory(
        model, SPEC, int(part * whole) + CONTEXT_BYTES, means=("checkpoint", "selective")
    )
    assert returned is model
    assert summary.fits
    assert summary.needed_after_bytes <= summary.limit_bytes
    assert peak_of(model) <= int(part * whole)  # replayed again as it was returned
    assert summary.rewrites
    assert 0 < summary.recomputed_flops <= summary.forward_flops
    x = torch.randn(4, 3, 16, 16)
    assert_same(other, model, x)
    restore(model, summary)
    assert peak_of(model) == whole


def test_less_memory_costs_more_time():
    model = deep()
    whole = peak_of(model)
    costs = []
    for part in (0.8, 0.6, 0.45):
        _, summary = reduce_memory(model, SPEC, int(part * whole) + CONTEXT_BYTES)
        costs.append(summary.predicted_added_s)
        restore(model, summary)
    assert costs == sorted(costs)


def test_a_model_that_fits_is_unchanged():
    model = deep()
    _, summary = reduce_memory(model, SPEC, "40GB")
    assert not summary.rewrites
    assert summary.peak_before_bytes == summary.peak_after_bytes


def test_the_error_for_an_infeasible_budget_names_the_smallest_sufficient_one():
    model = deep()
    with pytest.raises(
        TooLargeError, match=r"smallest found needs .* for tensors.* held by .* between"
    ) as e:
        reduce_memory(model, SPEC, CONTEXT_BYTES + 4 * 2**20, means=("checkpoint",))
    assert not any("forward" in m.__dict__ for m in model.modules())
    smallest = str(e.value).partition("a card of ")[2].split(";")[0]
    assert reduce_memory(model, SPEC, f"{float(smallest.split()[0]) * 1.01} MB")[1].fits


@pytest.mark.parametrize(("means", "named"), [(("magic",), "magic"), ("split", "split")])
def test_unknown_means_are_refused(means, named):
    with pytest.raises(
        ModelArgumentError, match=rf"^unknown rewrite '{named}' in means: .*offload$"
    ):
        reduce_memory(deep(), SPEC, "1GB", means=means)


def test_without_a_gpu_the_device_is_the_cpu():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert resolve_device() == torch.device("cpu")


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


# torch's compiler warns about itself. It hides the first warning since torch 2.9, but not where
# warnings are errors. The second is for Python 3.13.0 only, and advises a newer 3.13.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.parametrize("kind", ["checkpoint", "selective"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_a_reduced_model_can_be_compiled_and_its_statistics_change_once(kind, norm):
    if norm is nn.BatchNorm1d and torch.__version__ < (2, 9):
        pytest.skip("its graphs change no statistics")
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), norm(8), nn.GELU()) for _ in range(2)),
        Residual(nn.Linear(8, 8)),
        nn.GELU(),
    )
    other = copy.deepcopy(model)
    apply_rewrites(other, {"0": Rewrite(kind), "2.0": Rewrite(kind), "[1:4]": Rewrite(kind)})
    torch._dynamo.reset()
    # In one graph: after a graph break, rewritten modules would not be compiled.
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    assert_same(model, other, torch.randn(4, 8), call=compiled)
