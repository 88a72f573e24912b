"""Levels, profiles and budgets of spikingjelly's memopt pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from ..nn_errors import ModelArgumentError

LEVELS = (0, 1, 2, 3, 4)
"""Level 0 does nothing; 1 checkpoints; 2 splits heavy checkpoints into layers; 3 splits them in
time; 4 removes those that do not help."""
PROFILES: dict[str, tuple[int, int | None, int | None, bool]] = {
    "safe": (1, 0, 0, False),
    "balanced": (2, 1, 1, False),
    "memory": (3, 2, 2, True),
    "exhaustive": (4, None, None, True),
}
"""Level, split rounds, candidates of a round (None without a bound), and whether many plans are
tried."""
PREFERENCES = {
    "speed": ("safe", "speed"),
    "balanced": ("balanced", "balanced"),
    "memory": ("memory", "memory"),
}
"""Profile and checkpoint budget of each preference."""
BUDGETS = {"speed": 0.5, "balanced": 0.75, "memory": 1.0}
"""Fraction of the candidates that is checkpointed."""


@dataclass(slots=True)
class ReductionOptions:
    """Options of a reduction by levels, completed."""

    level: int
    profile: str | None
    checkpoint_budget: str | None
    compress_x: bool
    max_split_rounds: int | None
    max_candidates_per_round: int | None
    allow_expensive_profiling: bool
    notes: list[str] = field(default_factory=list)


def _known(value: str | None, choices: dict[str, object], name: str) -> None:
    if value is not None and value not in choices:
        raise ModelArgumentError(f"{name} {value!r} is none of {', '.join(choices)}")


def resolve(
    *,
    level: int | None,
    profile: str | None,
    prefer: str | None,
    checkpoint_budget: str | None,
    compress_x: bool | None,
    max_split_rounds: int | None,
    max_candidates_per_round: int | None,
    allow_expensive_profiling: bool | None,
    has_inputs: bool,
) -> ReductionOptions:
    """Complete the options: given values come before the profile, and the profile before `prefer`.

    Raises
    ------
    ModelArgumentError
        If a name is unknown, or a level above 1 is asked for without inputs to replay.
    """
    _known(prefer, dict(PREFERENCES), "prefer")
    _known(profile, dict(PROFILES), "profile")
    _known(checkpoint_budget, dict(BUDGETS), "checkpoint_budget")
    notes: list[str] = []
    if prefer is not None:
        its_profile, its_budget = PREFERENCES[prefer]
        if profile is None:
            profile = its_profile
            notes.append(f"prefer:profile={profile}")
        if checkpoint_budget is None:
            checkpoint_budget = its_budget
            notes.append(f"prefer:checkpoint_budget={checkpoint_budget}")
    default: tuple[int, int | None, int | None, bool] = (0, None, None, True)
    if profile is not None:
        default = PROFILES[profile]
        notes.append(f"profile:{profile}")
    made = ReductionOptions(
        default[0] if level is None else level,
        profile,
        checkpoint_budget,
        True if compress_x is None else compress_x,
        default[1] if max_split_rounds is None else max_split_rounds,
        default[2] if max_candidates_per_round is None else max_candidates_per_round,
        default[3] if allow_expensive_profiling is None else allow_expensive_profiling,
        notes,
    )
    if made.level not in LEVELS:
        raise ModelArgumentError(f"level {level!r} is none of {', '.join(map(str, LEVELS))}")
    if not made.allow_expensive_profiling and made.level > 1:
        made.max_split_rounds = made.max_candidates_per_round = 1
    if not has_inputs and made.level > 1:
        if profile is None:
            raise ModelArgumentError(
                f"level {made.level} needs inputs: splits are chosen by replays"
            )
        made.level, made.max_split_rounds, made.max_candidates_per_round = 1, 0, 0
        notes.append("fallback:level>1_requires_inputs")
    return made


def how_many(
    n_candidates: int,
    checkpoint_budget: str | None,
    max_gc_wrapped_modules: int | None,
    gc_target_budget_ratio: float | None,
) -> int:
    """Number of candidates to checkpoint: the smallest of the bounds."""
    if gc_target_budget_ratio is None and max_gc_wrapped_modules is None and checkpoint_budget:
        gc_target_budget_ratio = BUDGETS[checkpoint_budget]
    bounds = [n_candidates]
    if max_gc_wrapped_modules is not None:
        bounds.append(max(0, max_gc_wrapped_modules))
    if gc_target_budget_ratio is not None:
        if gc_target_budget_ratio <= 0:
            return 0
        bounds.append(max(1, ceil(n_candidates * gc_target_budget_ratio)))
    return min(bounds)
