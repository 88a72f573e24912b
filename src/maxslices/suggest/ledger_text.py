"""Text of a ledger function: a folded sequence with formulas for sizes and passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .alloc_call import AllocCall
from .fold_loops import FoldedEvent, Loop, Program, steps
from .line_names import as_variable

INDENT = "    "
_LINE_LENGTH = 100


@dataclass(frozen=True, slots=True)
class AllocatingLine:
    """A line that allocates."""

    name: str
    """Of the array, or "" where it has none."""
    place: str
    """File and line."""
    code: str
    """The line."""


@dataclass(slots=True)
class KeyUse:
    """How allocations that were reached on one way are alive."""

    most_alive: int = 0
    """Most at once, in any run."""
    is_freed: bool = False
    """Whether any is freed in the call."""
    last_first: bool = False
    """Whether the latest is freed first where several are alive."""


@dataclass(frozen=True, slots=True)
class LedgerParts:
    """All that the text of a ledger says."""

    program: Program
    """Allocations and frees in order."""
    formulas: Mapping[FoldedEvent, AllocCall]
    """Size of each allocation."""
    passes: Mapping[Loop, str]
    """Passes of each loop; of one that is not among them none matters but the first."""
    sites: Mapping[str, AllocatingLine]
    """Line of each call path."""
    uses: Mapping[str, KeyUse]
    """How its allocations are alive."""
    beside: AllocCall | None = None
    """What is alive at the peak beside all these; None if it is nothing."""
    beside_is: str = ""
    """What that is, in words."""
    plans: Sequence[str] = field(default=())
    """Calls for the workspaces of FFT plans, and comments above them."""
    header: Sequence[str] = field(default=())
    """Lines of the docstring."""
    name: str = "needs"
    """Of the function."""


def ledger_text(parts: LedgerParts, dtypes: Sequence[str]) -> str:
    """Write the ledger function, with its imports; it refuses data of other dtypes than these."""
    writer = _LedgerWriter(parts)
    body = list(writer.body())
    text = "\n".join(body)
    imports = ["from maxslices import from_ledger"]
    if "next_fast_len(" in text:
        imports.insert(0, "from scipy.fft import next_fast_len\n")
    if "math." in text:
        imports.insert(0, "import math\n")
    dims = [name if name in text.replace("# ", "") else "_" for name in _dims(body)]
    lines = ["\n".join(imports), "", "", "@from_ledger", f"def {parts.name}(m, shape, dtype):"]
    if parts.header:
        first, *others = parts.header
        lines.append(f'{INDENT}"""{first}' + ('"""' if not others else ""))
        if others:
            lines += ["", *(f"{INDENT}{line}" if line else "" for line in others), f'{INDENT}"""']
    names = ", ".join(f'"{name}"' for name in dtypes)
    is_other = f"!= {names}" if len(dtypes) == 1 else f"not in ({names})"
    said = f"for {' and '.join(dtypes)} data: suggest a ledger with --dtype {{dtype}}"
    lines += [f"{INDENT}if dtype.name {is_other}:", f'{INDENT * 2}raise ValueError(f"{said}")']
    if set(dims) != {"_"}:
        lines.append(f"{INDENT}{', '.join(dims)} = shape")
    return "\n".join([*lines, *body]) + "\n"


def _dims(body: list[str]) -> tuple[str, str, str]:
    used = " ".join(line.split("  # ")[0] for line in body)
    found = [name if name in used else "_" for name in ("angles", "rows", "columns")]
    return found[0], found[1], found[2]


def is_balanced(loop: Loop) -> bool:
    """True if a pass frees as much of each call path as it allocates: once tells its peak."""
    return not any(_changes(loop).values())


def _changes(loop: Loop) -> dict[str, int]:
    """Allocations less frees of each call path in a pass, without those of loops inside."""
    change: dict[str, int] = {}
    for step in loop.body:
        if isinstance(step, FoldedEvent):
            key = step.token.key
            change[key] = change.get(key, 0) + (-1 if step.token.is_free else 1)
    return change


def _loops(program: Program) -> Iterator[Loop]:
    for node in program:
        if isinstance(node, Loop):
            yield node
            yield from _loops(node.body)


class _LedgerWriter:
    def __init__(self, parts: LedgerParts) -> None:
        self.parts = parts
        self.variables = self._variables()
        self._gathered = {
            key for loop in _loops(parts.program) for key, n in _changes(loop).items() if n
        }
        """Call paths whose allocations pile up in a loop: written as one, and freed together."""
        frees = [step for step in steps(parts.program) if step.token.is_free]
        self._last_free = {step.token.key: step for step in frees}

    def _variables(self) -> dict[str, str]:
        """Variable of each call path whose allocations are freed."""
        taken: dict[str, int] = {}
        found = {}
        for key in dict.fromkeys(step.token.key for step in steps(self.parts.program)):
            if self.parts.uses[key].is_freed:
                name = as_variable(self.parts.sites[key].name)
                taken[name] = taken.get(name, 0) + 1
                found[key] = name if taken[name] == 1 else f"{name}_{taken[name]}"
        return found

    def _is_list(self, key: str) -> bool:
        return self.parts.uses[key].most_alive > 1 or key in self._gathered

    def body(self) -> Iterator[str]:
        lists = [self.variables[key] for key in self.variables if self._is_list(key)]
        for start in range(0, len(lists), 4):
            names = lists[start : start + 4]
            yield f"{INDENT}{', '.join(names)} = {', '.join(['[]'] * len(names))}"
        first, rest = self.parts.program[:1], self.parts.program[1:]
        yield from self._nodes(first, INDENT)
        if self.parts.beside is not None:  # before all others: it is alive at any peak
            yield f"{INDENT}{self.parts.beside.call}  # {self.parts.beside_is}"
        for call in self.parts.plans:
            yield f"{INDENT}{call}"[: _LINE_LENGTH if call.startswith("#") else None]
        yield from self._nodes(rest, INDENT)

    def _nodes(self, program: Program, indent: str) -> Iterator[str]:
        i = 0
        while i < len(program):
            node = program[i]
            if isinstance(node, Loop):
                yield from self._loop(node, indent)
            elif node.token.is_free:
                freed = []
                for other in program[i:]:
                    if not isinstance(other, FoldedEvent) or not other.token.is_free:
                        break
                    freed.append(other)
                i += len(freed) - 1
                texts = [text for step in freed for text in self._freed(step)]
                if texts:
                    yield f"{indent}m.free({', '.join(texts)})"
            else:
                following = program[i + 1] if i + 1 < len(program) else None
                if isinstance(following, FoldedEvent) and self._frees_at_once(node, following):
                    yield from self._alloc(node, indent, "m.free({})")
                    i += 1
                else:
                    yield from self._alloc(node, indent, self._kept(node.token.key))
            i += 1

    def _frees_at_once(self, node: FoldedEvent, following: FoldedEvent) -> bool:
        key = node.token.key
        return following.token.is_free and following.token.key == key and not self._is_list(key)

    def _kept(self, key: str) -> str:
        if key not in self.variables:
            return "{}"
        if self._is_list(key):
            return f"{self.variables[key]}.append({{}})"
        return f"{self.variables[key]} = {{}}"

    def _freed(self, step: FoldedEvent) -> Iterator[str]:
        key = step.token.key
        if key in self._gathered:
            if self._last_free[key] is step:
                yield f"*{self.variables[key]}"
        elif not self._is_list(key):
            yield self.variables[key]
        else:
            last = "" if self.parts.uses[key].last_first else "0"
            yield f"{self.variables[key]}.pop({last})"

    def _alloc(self, step: FoldedEvent, indent: str, kept: str, times: str = "") -> Iterator[str]:
        formula, site = self.parts.formulas[step], self.parts.sites[step.token.key]
        said = site.name if site.name and not kept.startswith(as_variable(site.name)) else ""
        about = ": ".join(text for text in (site.place, site.code) if text)
        if formula.is_bound:
            said = " ".join(filter(None, [said, "(at most)"]))
        comment = "; ".join(text for text in (said, about) if text)
        call = formula.times(times).call if times else formula.call
        line = f"{indent}{kept.format(call)}"
        if len(line) + len(comment) + 4 > _LINE_LENGTH and comment:
            yield f"{indent}# {comment}"[:_LINE_LENGTH]
            yield line
        else:
            yield f"{line}  # {comment}" if comment else line

    def _loop(self, loop: Loop, indent: str) -> Iterator[str]:
        count, changes = self.parts.passes.get(loop), _changes(loop)
        piling = [
            node
            for node in loop.body
            if isinstance(node, FoldedEvent)
            and not node.token.is_free
            and changes[node.token.key] > 0
        ]
        rest = tuple(node for node in loop.body if node not in piling)
        times = f"{count} times" if count else "Repeated"
        if piling:
            yield f"{indent}# {times}, and these of every time stay:"
            for step in piling:
                yield from self._alloc(step, indent, self._kept(step.token.key), count or "1")
        if any(isinstance(node, Loop) or not node.token.is_free for node in rest):
            yield f"{indent}# {times}, with this alive each time:"
        yield from self._nodes(rest, indent)
