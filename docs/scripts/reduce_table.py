"""Makes the table of docs/memory.md: plans against checkpoints of every block, on one GPU.

``python docs/scripts/reduce_table.py FOLDER [--small] [MODEL...]`` writes FOLDER/reduce.json and
prints the table; "compiled" is one of the models. Budgets are parts of the measured peak of the
unreduced step; a plan is run with torch's allocator limited to its budget, and so are
checkpoints of every block where they fit.
Compiled steps have no limit.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
sys.path.insert(0, str(Path(__file__).parent))

import nn_models
import torch
from spiking_vgg import Rate, spiking_vgg
from torch import nn

from maxslices.nn.memory import CONTEXT_BYTES
from maxslices.nn.reduce import Treatment, reduce_memory, restore, treat, untreat
from maxslices.nn.reduce.device import run_for_real
from maxslices.nn.reduce.states import ResettingStep
from maxslices.tracing import Spec, WorkAreas

BUDGETS = (0.75, 0.5, 0.35)
MIB = 2**20
SMALL = "--small" in sys.argv


class Case:
    """A model, its step and its blocks."""

    def __init__(
        self,
        name: str,
        make: Callable[[], nn.Module],
        shape: tuple[int, ...],
        loss: nn.Module,
        blocks: Callable[[str, nn.Module], bool],
        targets: Any = None,
    ) -> None:
        self.name, self.make, self.shape, self.loss = name, make, shape, loss
        self.blocks, self.targets = blocks, targets


def cases() -> Iterator[Case]:
    """Yield the models of the table."""
    n = 2 if SMALL else 64
    entropy = nn.CrossEntropyLoss()
    yield Case(
        "ResNet50", nn_models.resnet50, (n, 3, 224, 224), entropy,
        lambda path, m: isinstance(m, nn_models.Bottleneck),
    )  # fmt: skip
    yield Case(
        "ViT-B/16", nn_models.ViTB16, (n, 3, 224, 224), entropy,
        lambda path, m: type(m).__name__ == "_ViTBlock",
    )  # fmt: skip
    side = 32 if SMALL else 96
    yield Case(
        "3D U-Net", lambda: nn_models.BasicUNet3D(32), (4, 1, side, side, side), nn.MSELoss(),
        lambda path, m: path in ("a", "b", "c", "up_a", "up_b"),
    )  # fmt: skip
    yield Case(
        "Spiking VGG-16", spiking_vgg, (4, n // 2, 3, 64, 64), Rate(),
        lambda path, m: path.isdigit() and type(m).__name__ in ("LIFNode", "Conv2d", "BatchNorm2d"),
        lambda x: Spec((x.shape[1],), torch.long),
    )  # fmt: skip


def one(case: Case, device: torch.device | None) -> list[dict[str, Any]]:
    """Return the rows of one model."""
    model = case.make()
    step = ResettingStep(model, "training", torch.optim.Adam, case.loss, case.targets)
    spec = Spec(case.shape)
    rows: list[dict[str, Any]] = []
    if device is None:
        peak = step.trace([spec], WorkAreas.allowance()).allocated_bytes
    else:
        whole = run_for_real(step, [spec], device)
        assert whole is not None
        peak = whole.allocated_bytes
        rows.append(row(case, "unreduced", peak, 0, peak, whole.step_s, 0.0))
    blocks = [path for path, m in model.named_modules() if case.blocks(path, m)]

    def every_block(part: float | None) -> None:
        if device is None:
            return
        treat(model, {path: Treatment("checkpoint") for path in blocks})
        every = run_for_real(step, [spec], device, part and int(part * peak))
        untreat(model)
        if every is not None:
            name = "every block" if part is None else f"every block, limit {part:.2f}"
            rows.append(row(case, name, peak, 0, every.allocated_bytes, every.step_s, 0.0))

    every_block(None)
    # From the largest limit to the smallest: where a work area finds no room, cuDNN takes another
    # kernel and keeps to it in this process, so what is run later would be slower.
    for budget in BUDGETS:
        limit = int(budget * peak)
        try:
            _, made = reduce_memory(
                model, spec, limit + CONTEXT_BYTES, loss=case.loss, targets=case.targets,
                optimizer=torch.optim.Adam, device=device,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the other rows are wanted all the same
            untreat(model)
            rows.append({"model": case.name, "plan": f"{budget:.2f}", "error": str(error)[:400]})
            print(case.name, budget, type(error).__name__, str(error)[:300], flush=True)
            continue
        found = row(
            case, f"{budget:.2f}", peak, made.peak_after_bytes, made.measured_after_bytes,
            made.measured_step_s, made.predicted_step_s,
        )  # fmt: skip
        found |= {
            "limit_bytes": limit,
            "needed_bytes": made.needed_after_bytes,
            "search_s": made.search_s,
            "recomputed": made.recomputed_flops / max(made.forward_flops, 1),
            "treatments": {p or "the model": str(t) for p, t in made.treatments.items()},
            "in_place": len(made.in_place),
            "step_before_s": made.measured_step_before_s,
            "summary": str(made),
        }
        rows.append(found)
        restore(model, made)
        every_block(budget)
    return rows


def row(
    case: Case, plan: str, whole: int, predicted: int, measured: int, step_s: float, expected: float
) -> dict[str, Any]:
    """Return a row."""
    return {
        "model": case.name, "plan": plan, "unreduced_bytes": whole, "predicted_bytes": predicted,
        "measured_bytes": measured, "step_s": step_s, "predicted_step_s": expected,
    }  # fmt: skip


def compiled(device: torch.device, plans: dict[str, dict[str, Treatment]]) -> list[dict[str, Any]]:
    """Return rows of the ViT compiled: with torch's activation memory budget, and reduced."""
    import torch._functorch.config as functorch

    rows = []
    todo: list[tuple[str, str, float, dict[str, Treatment]]] = [
        (f"torch budget {budget}, {backend}", backend, budget, {})
        for backend, budgets in (
            ("aot_eager_decomp_partition", (0.5,)),
            ("inductor", (1.0, 0.5, 0.2)),
        )
        for budget in budgets
    ]  # fmt: skip
    todo += [(f"{name}, inductor", "inductor", 1.0, plan) for name, plan in plans.items()]
    for name, backend, budget, plan in todo:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        began = time.perf_counter()
        try:
            with functorch.patch(activation_memory_budget=budget):
                model = nn_models.ViTB16().to(device)
                treat(model, plan)
                run = torch.compile(model, backend=backend)
                optimizer = torch.optim.Adam(model.parameters())
                x = torch.randn(64, 3, 224, 224, device=device)
                y = torch.zeros(64, dtype=torch.long, device=device)
                durations = []
                for repeat in range(6):
                    if repeat == 2:
                        torch.cuda.reset_peak_memory_stats()
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    model.zero_grad(set_to_none=True)
                    nn.functional.cross_entropy(run(x), y).backward()
                    optimizer.step()
                    torch.cuda.synchronize()
                    durations.append(time.perf_counter() - start)
            rows.append(
                {
                    "model": "ViT-B/16", "plan": name,
                    "measured_bytes": torch.cuda.max_memory_allocated(),
                    "step_s": sorted(durations[2:])[2],
                    "compile_s": time.perf_counter() - began,
                }
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - not every machine can compile
            rows.append({"model": "ViT-B/16", "plan": name, "error": str(error)[:300]})
        print(rows[-1], flush=True)
        model = run = optimizer = x = y = None
    return rows


def plans_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, Treatment]]:
    """Return the plans that were found for the ViT, to be compiled."""
    return {
        r["plan"]: {
            path.replace("the model", ""): Treatment(
                text.split(",")[0],
                (),
                int(text.split(" in ")[1].split()[0]) if " in " in text else 1,
            )
            for path, text in r["treatments"].items()
        }
        for r in rows
        if r["model"] == "ViT-B/16" and "treatments" in r
    }


def same_gradients(case: Case, device: torch.device) -> dict[str, Any]:
    """Compare gradients of a plan with those of the unreduced model, kernels deterministic."""
    small = {"ResNet50": (16, 3, 224, 224), "Spiking VGG-16": (4, 8, 3, 64, 64)}[case.name]
    torch.backends.cudnn.deterministic = True
    model = case.make()
    step = ResettingStep(model, "training", torch.optim.Adam, case.loss, case.targets)
    peak = step.trace([Spec(small)], WorkAreas.allowance()).allocated_bytes
    real = case.make().to(device)
    real.load_state_dict(model.state_dict())
    x = torch.randn(small, device=device)
    (want,) = step.target_specs([Spec(small)])
    target = torch.zeros(want.shape, dtype=want.dtype, device=device)
    grads = []
    for reduced in (False, True):
        if reduced:
            _, made = reduce_memory(
                real, Spec(small), int(0.6 * peak) + CONTEXT_BYTES, loss=case.loss,
                targets=case.targets, optimizer=torch.optim.Adam,
            )  # fmt: skip
        for m in real.modules():
            if hasattr(m, "reset") and hasattr(m, "_memories"):
                m.reset()
        real.zero_grad()
        case.loss(real(x), target).backward()
        grads.append([p.grad.clone() for p in real.parameters()])
    torch.backends.cudnn.deterministic = False
    equal = sum(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    scale = max(float(a.abs().max()) for a in grads[0])
    worst = max(float((a - b).abs().max()) for a, b in zip(*grads, strict=True))
    return {
        "model": case.name, "equal": equal, "of": len(grads[0]), "worst": worst, "scale": scale,
        "kinds": sorted({t.kind for t in made.treatments.values()}),
    }  # fmt: skip


def main() -> None:
    """Run all, and print the table."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    extra: dict[str, Any] = {"torch": torch.__version__, "gradients": []}
    if device is not None:
        extra["device"] = torch.cuda.get_device_name(device)
    wanted = [arg for arg in sys.argv[2:] if not arg.startswith("--")]
    todo: list[tuple[str, Callable[[], Any]]] = [
        (case.name, lambda case=case: rows.extend(one(case, device)))
        for case in cases()
        if not wanted or case.name in wanted
    ]
    if device is not None and not wanted:
        todo += [
            (f"gradients of {case.name}",
             lambda case=case: extra["gradients"].append(same_gradients(case, device)))
            for case in cases() if case.name in ("ResNet50", "Spiking VGG-16")
        ]  # fmt: skip
    if device is not None and (not wanted or "compiled" in wanted):
        todo.append(("compiled", lambda: rows.extend(compiled(device, plans_of(rows)))))
    for name, work in todo:
        try:
            work()
        except Exception:  # noqa: BLE001 - the rest is wanted all the same
            traceback.print_exc()
        extra["wall_s"] = time.perf_counter() - began
        (folder / "reduce.json").write_text(json.dumps({**extra, "rows": rows}, indent=1))
        print(f"{name}: {extra['wall_s']:.0f} s", flush=True)
    print(json.dumps(extra["gradients"]))
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| model | plan | peak MiB | of unreduced | predicted / measured | step ms | predicted ms |"
        " recomputed | search s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    whole = {r["model"]: r["measured_bytes"] for r in rows if r["plan"] == "unreduced"}
    for r in rows:
        if "error" in r:
            lines.append(f"| {r['model']} | {r['plan']} | {r['error'][:150]} | | | | | | |")
            continue
        measured = r["measured_bytes"]
        part = f"{measured / whole[r['model']]:.3f}" if whole.get(r["model"]) else ""
        predicted = r.get("predicted_bytes", 0)
        ratio = f"{predicted / measured:.4f}" if predicted and measured else ""
        expected = r.get("predicted_step_s", 0)
        again = f"{r['recomputed']:.0%}" if "recomputed" in r else ""
        search = f"{r['search_s']:.1f}" if "search_s" in r else ""
        lines.append(
            f"| {r['model']} | {r['plan']} | {measured / MIB:.0f} | {part} | {ratio} | "
            f"{r['step_s'] * 1e3:.1f} | {f'{expected * 1e3:.1f}' if expected else ''} | "
            f"{again} | {search} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
