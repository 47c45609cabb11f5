"""What a profile buys as it is typed: the part of the editor's page that stands beside its findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.errors import TierdeckError
from app.planner.plan import Plan
from app.services.planning import FleetModel
from app.web.blocks import Shell
from app.web.contexts import DraftPlanPage
from app.web.finding_words import told_error
from app.web.i18n import Gettext, Language
from app.web.plan_blocks import PlanResult
from app.web.planner_page import plan_result, remark
from engine.sizing import DEFAULT_REFERENCE_TOKENS

#: What the check of the profile says already, at the field.
SAID_BY_THE_CHECK: Final = frozenset(
    {
        "small_host",
        "beyond_memory",
        "pass_block_size",
        "block_enlarged",
        "beyond_the_model",
        "state_at_every_block",
        "states_fill_the_arena",
        "interval_off_the_block",
    }
)


@dataclass(frozen=True)
class DraftPlanFacts:
    """The plan and the fleet whose model it is of, or why there is none."""

    found: FleetModel | None = None
    plan: Plan | None = None
    fault: TierdeckError | None = None


def draft_plan_page(shell: Shell, language: Language, facts: DraftPlanFacts) -> DraftPlanPage:
    """The table and the plot, or the sentence in their place."""
    _ = language.gettext
    if facts.plan is None or facts.found is None:
        said = "" if facts.fault is None else told_error(facts.fault, _)
        return DraftPlanPage(shell=shell, origin="", session_tokens=0, slots=None, missing=said, remarks=())
    result = plan_result(facts.plan, facts.found.asked, _)
    return DraftPlanPage(
        shell=shell,
        origin=_origin(facts.found, _),
        session_tokens=0 if facts.plan.host is None else facts.plan.host.session_tokens or 0,
        slots=result.slots,
        missing=_missing(facts.plan, result, _),
        remarks=tuple(
            remark(one, _)
            for one in facts.plan.findings
            if one.severity == "warning" and one.code not in SAID_BY_THE_CHECK
        ),
    )


def usual_session(asked: Mapping[str, Any]) -> Any:
    """The length that sessions are counted with where none is said: one for all rows, so that they can be compared."""
    return asked.get("reference_tokens", DEFAULT_REFERENCE_TOKENS)


def _origin(found: FleetModel, _: Gettext) -> str:
    return _("With %(model)s, the model of fleet %(fleet)s.") % {"model": Path(found.model).name, "fleet": found.fleet}


def _missing(plan: Plan, result: PlanResult, _: Gettext) -> str:
    if plan.wish.host is None:
        return _("Without a host tier there is nothing to share out; write its size to see what it buys.")
    return result.slots_missing
