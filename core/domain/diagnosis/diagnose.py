"""The verdict: what is the matter now, in one sentence, and the lever that would move it.

Rules stand in order of urgency and look at the parts of a snapshot only; every number in a
sentence is one of theirs. `diagnose` returns every rule that holds, the most urgent first.
"""

from collections.abc import Callable

from kvctl.core.domain.diagnosis import bound_rules, load_rules, state_rules
from kvctl.core.domain.diagnosis.scene import Scene
from kvctl.core.domain.verdict import Verdict

Rule = Callable[[Scene], Verdict | None]

_RULES: tuple[Rule, ...] = (
    state_rules.failed,
    state_rules.stalled,
    state_rules.leftovers,
    state_rules.unexplained,
    state_rules.failing_rows,
    state_rules.starting,
    state_rules.draining,
    state_rules.holding,
    state_rules.stale,
    load_rules.thrash,
    load_rules.ceiling,
    load_rules.retractions,
    bound_rules.open_files,
    bound_rules.slow_disk,
    bound_rules.client_bound,
    bound_rules.admission,
    bound_rules.prefill_bound,
    load_rules.burst,
    state_rules.foreign,
    state_rules.finished,
)


def diagnose(scene: Scene) -> tuple[Verdict, ...]:
    """Return what holds, most urgent first; never empty."""
    found = [verdict for rule in _RULES if (verdict := rule(scene)) is not None]
    return tuple(found) or (state_rules.all_well(scene),)
