"""Tables of docs/benchmarks/reductions.md: plans and checkpoints of every block, on one GPU.

``python docs/scripts/reduce_table.py FOLDER [--small] [--again] [MODEL...] [BUDGET...]`` writes
FOLDER/reduce.json row by row and prints the table; "compiled" is one of the models. Other rows
that the file has stay, so the table may be made in several goes. Budgets are parts of the
measured peak of the unreduced step; a plan is run with torch's allocator limited to its budget,
and so are checkpoints of every block where they fit. Compiled steps have no limit. ``--again``
makes the rows of each budget six times instead, each time in a process of its own: times decide
what is searched, so searches differ.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # of each of several processes
sys.path.insert(0, str(Path(__file__).parent))

import nn_models
import torch
from spiking_vgg import Rate, spiking_vgg
from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.reduce import Rewrite, apply_rewrites, reduce_memory, restore, undo_rewrites
from maxslices.nn.reduce.run_on_device import run_for_real
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

BUDGETS = (0.75, 0.5, 0.35)
MIB = 2**20
SMALL = "--small" in sys.argv
COMPILED = ("ViT-B/16", "ResNet50", "3D U-Net")
N_AGAIN = 6
"""Searches of ``--again``."""
WAITED_S = 200.0
"""For steps that are compiled, at most."""


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


class Rows:
    """The rows so far: printed and written as they come."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "reduce.json"
        self.extra: dict[str, Any] = {}
        self.all: list[dict[str, Any]] = []
        if self.path.exists():
            self.extra = json.loads(self.path.read_text())
            self.all = self.extra.pop("rows")

    def add(self, model: str, **row: Any) -> None:
        """Add a row of a model or a compiled model."""
        old = (model, row["plan"])
        self.all = [r for r in self.all if (r["model"], r["plan"]) != old]
        self.all.append({"model": model, **row})
        print(line(self.all[-1], self.all), flush=True)
        self.write()

    def write(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps({**self.extra, "rows": self.all}, indent=1))


def one(
    case: Case, device: torch.device | None, rows: Rows, budgets: Sequence[float] = BUDGETS,
    beside: bool = True,
) -> None:  # fmt: skip
    """Measure the rows of one model, with checkpoints of every block."""
    model = case.make()
    step = ModelStep(model, "training", torch.optim.Adam, case.loss, case.targets)
    spec = Spec(case.shape)
    if device is None:
        peak = step.trace([spec], Workspaces.allowance()).allocated_bytes
    else:
        whole = run_for_real(step, [spec], device)
        assert whole is not None
        peak = whole.allocated_bytes
        rows.add(case.name, plan="unreduced", measured_bytes=peak, step_s=whole.step_s)
    blocks = [path for path, m in model.named_modules() if case.blocks(path, m)]

    def every_block(part: float | None) -> None:
        if device is None or not beside:
            return
        apply_rewrites(model, {path: Rewrite("checkpoint") for path in blocks})
        every = run_for_real(step, [spec], device, part and int(part * peak))
        undo_rewrites(model)
        name = "every block" if part is None else f"every block, limit {part:.2f}"
        if every is None:
            rows.add(case.name, plan=name, error="does not fit")
        else:
            rows.add(
                case.name, plan=name, measured_bytes=every.allocated_bytes, step_s=every.step_s
            )

    every_block(None)
    # From the largest limit to the smallest: where a workspace finds no room, cuDNN takes another
    # kernel and keeps to it in this process, so what is run later would be slower.
    for budget in budgets:
        limit = int(budget * peak)
        try:
            _, made = reduce_memory(
                model, spec, limit + CONTEXT_BYTES, loss=case.loss, targets=case.targets,
                optimizer=torch.optim.Adam, device=device,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the other rows are wanted all the same
            undo_rewrites(model)
            text = f"{type(error).__name__}: {error}"
            rows.add(case.name, plan=f"{budget:.2f}", error=text[:400])
            continue
        rows.add(
            case.name,
            plan=f"{budget:.2f}",
            unreduced_bytes=peak,
            limit_bytes=limit,
            predicted_bytes=made.peak_after_bytes,
            needed_bytes=made.needed_after_bytes,
            measured_bytes=made.measured_after_bytes,
            step_s=made.measured_step_s,
            predicted_step_s=made.predicted_step_s,
            search_s=made.search_s,
            recomputed=made.recomputed_flops / max(made.forward_flops, 1),
            rewrites={p or "the model": str(t) for p, t in made.rewrites.items()},
            step_before_s=made.measured_step_before_s,
            summary=str(made),
        )
        restore(model, made)
        every_block(budget)


def again(folder: Path, names: Sequence[str], budgets: Sequence[float]) -> None:
    """Reduce each model and budget `N_AGAIN` times; processes use the device in turn."""
    ways = multiprocessing.get_context("spawn")
    turn = ways.Lock()
    jobs = [(name, part, i) for name in names for part in budgets for i in range(N_AGAIN)]
    processes = [ways.Process(target=once, args=(folder, *job, turn)) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def once(folder: Path, name: str, part: float, i: int, turn: Any) -> None:
    """Reduce a model in this process; only what runs on the device waits for its turn."""
    from maxslices.nn.reduce import run_on_device, search

    def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with turn:
                return function(*arguments, **named)

        return call

    torch.set_num_threads(2)
    globals()["run_for_real"] = run_on_device.run_for_real = in_turn(run_on_device.run_for_real)
    search.measure_times = in_turn(search.measure_times)
    case = next(each for each in cases() if each.name == name)
    rows = Rows(folder / f"{name.replace('/', '-')}-{part}-{i}")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    one(case, device, rows, [part], beside=False)


ToCompile = tuple[str, str, float, dict[str, Rewrite]]
"""Names of a model and of a plan, torch's activation memory budget, and the plan."""


def to_compile(rows: Rows) -> Iterator[ToCompile]:
    """Yield plans that were found, checkpoints of every block, and torch's budgets."""
    for case in cases():
        if case.name not in COMPILED:
            continue
        with torch.device("meta"):
            blocks = [path for path, m in case.make().named_modules() if case.blocks(path, m)]
        for plan, rewrites in plans_of(rows.all, case.name):
            yield case.name, plan, 1.0, rewrites
        for again in ("selective", "checkpoint"):
            yield case.name, f"every block {again}", 1.0, dict.fromkeys(blocks, Rewrite(again))
        for part in (1.0, 0.5, 0.2):
            yield case.name, f"torch's budget {part}", part, {}


def compiled(rows: Rows, todo: Sequence[ToCompile]) -> None:
    """Make rows of compiled models.

    All are compiled at the same time, each in a process of its own, and then timed one by one.
    """
    ways = multiprocessing.get_context("spawn")
    turn, made = ways.Lock(), ways.Queue()
    ready = ways.Barrier(len(todo))
    processes = [
        ways.Process(target=compile_one, args=(*each, ready, turn, made), daemon=True)
        for each in todo
    ]
    for process in processes:
        process.start()
    for _ in processes:
        rows.add(**made.get(timeout=WAITED_S))
    for process in processes:
        process.join()


def compile_one(
    name: str, plan: str, budget: float, rewrites: dict[str, Rewrite], ready: Any, turn: Any,
    made: Any,
) -> None:  # fmt: skip
    """Compile a step, wait for the others, and time it when it is its turn."""
    row: dict[str, Any] = {"model": f"{name}, compiled", "plan": plan}
    began = time.perf_counter()
    step: Callable[[], float] | None = None
    try:
        step = compiled_step(name, budget, rewrites)
        step()
        row["compile_s"] = time.perf_counter() - began
    except Exception as error:  # noqa: BLE001 - not every machine can compile
        row["error"] = str(error)[-400:]
    ready.wait(WAITED_S)
    if step is not None:
        with turn:
            step()
            torch.cuda.reset_peak_memory_stats()
            row["step_s"] = sorted(step() for _ in range(11))[5]
            row["measured_bytes"] = torch.cuda.max_memory_allocated()
    made.put(row)
    ready.wait(WAITED_S)  # what ends takes time of those that are timed


def compiled_step(name: str, budget: float, rewrites: dict[str, Rewrite]) -> Callable[[], float]:
    """Return what runs a compiled step of a model and returns its seconds."""
    import torch._functorch.config as functorch

    functorch.activation_memory_budget = budget
    case = next(each for each in cases() if each.name == name)
    model = case.make()
    made = ModelStep(model, "training", torch.optim.Adam, case.loss, case.targets)
    (want,) = made.target_specs([Spec(case.shape)])
    model.to("cuda")
    apply_rewrites(model, rewrites)
    run = torch.compile(model, fullgraph=True)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(case.shape, device="cuda")
    y = torch.zeros(want.shape, dtype=want.dtype, device="cuda")

    def step() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        case.loss(run(x), y).backward()
        optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return step


def plans_of(rows: list[dict[str, Any]], name: str) -> Iterator[tuple[str, dict[str, Rewrite]]]:
    """Yield the plans that were found for a model, to be compiled: none with hooks."""
    for r in rows:
        plan = r.get("rewrites", {}) if r["model"] == name else {}
        if plan and not any(text.startswith(("offload", "pack")) for text in plan.values()):
            yield (
                r["plan"],
                {
                    path.replace("the model", ""): Rewrite(
                        text.split(",")[0],
                        (),
                        int(text.split(" in ")[1].split()[0]) if " in " in text else 1,
                    )
                    for path, text in plan.items()
                },
            )


def same_gradients(case: Case, device: torch.device) -> dict[str, Any]:
    """Compare gradients of a plan with those of the unreduced model, kernels deterministic."""
    small = {"ResNet50": (16, 3, 224, 224), "Spiking VGG-16": (4, 8, 3, 64, 64)}[case.name]
    torch.backends.cudnn.deterministic = True
    model = case.make()
    step = ModelStep(model, "training", torch.optim.Adam, case.loss, case.targets)
    peak = step.trace([Spec(small)], Workspaces.allowance()).allocated_bytes
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
        "kinds": sorted({t.kind for t in made.rewrites.values()}),
    }  # fmt: skip


def main() -> None:
    """Run all, and print the table."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else None
    began = time.perf_counter()
    budgets = [float(arg) for arg in sys.argv[2:] if arg.startswith("0.")] or BUDGETS
    wanted = [arg for arg in sys.argv[2:] if not arg.startswith(("--", "0."))]
    if "--again" in sys.argv:
        again(Path(sys.argv[1]), wanted, budgets)
        return
    rows = Rows(Path(sys.argv[1]))
    rows.extra["torch"] = torch.__version__
    if device is not None:
        rows.extra["device"] = torch.cuda.get_device_name(device)
    todo: list[tuple[str, Callable[[], Any]]] = [
        (case.name, lambda case=case: one(case, device, rows, budgets))
        for case in cases()
        if not wanted or case.name in wanted
    ]
    if device is not None and not wanted:
        gradients = rows.extra["gradients"] = []
        todo += [
            (f"gradients of {case.name}",
             lambda case=case: gradients.append(same_gradients(case, device)))
            for case in cases() if case.name in ("ResNet50", "Spiking VGG-16")
        ]  # fmt: skip
    if device is not None and (not wanted or "compiled" in wanted):
        todo.append(("compiled", lambda: compiled(rows, list(to_compile(rows)))))
    print(HEADING, flush=True)
    for name, work in todo:
        try:
            work()
        except Exception:  # noqa: BLE001 - the rest is wanted all the same
            traceback.print_exc()
        rows.extra["wall_s"] = time.perf_counter() - began
        rows.write()
        print(f"{name}: {rows.extra['wall_s']:.0f} s", flush=True)
    print(json.dumps(rows.extra.get("gradients")))
    print("\n".join([HEADING, *(line(row, rows.all) for row in rows.all)]))


HEADING = (
    "| model | plan | peak MiB | of unreduced | predicted / measured | step ms | predicted ms |"
    " recomputed | search s |\n|---|---|---|---|---|---|---|---|---|"
)


def line(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return a row in Markdown."""
    part, plan = row["model"], row["plan"]
    if "error" in row:
        return f"| {part} | {plan} | {row['error'][:150]} | | | | | | |"
    measured = row["measured_bytes"]
    model = part.removesuffix(", compiled")
    whole = [r for r in rows if r["model"] == model and r["plan"] == "unreduced"]
    of_whole = f"{measured / whole[0]['measured_bytes']:.3f}" if whole else ""
    ratio = expected = again = search = ""
    if "rewrites" in row:
        ratio = f"{row['predicted_bytes'] / measured:.4f}" if measured else ""
        expected = f"{row['predicted_step_s'] * 1e3:.1f}"
        again, search = f"{row['recomputed']:.0%}", f"{row['search_s']:.1f}"
    return (
        f"| {part} | {plan} | {measured / MIB:.0f} | {of_whole} | {ratio} | "
        f"{row['step_s'] * 1e3:.1f} | {expected} | {again} | {search} |"
    )


if __name__ == "__main__":
    main()
