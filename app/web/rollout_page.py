"""The rollouts' pages, from what the service tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from app.rollouts.said import Said
from app.rollouts.steps import STEP_WORDS, STEPS, STEPS_BESIDE, Step, StepState, Way
from app.services.rollout_view import LogLineView, RolloutView, StepView, TurnView, waits_told
from app.supervisor.states import EngineState
from app.web import formats, words
from app.web.blocks import Shell, StateBadge
from app.web.contexts import RolloutPage, RolloutsPage
from app.web.finding_words import said
from app.web.i18n import Gettext, Language
from app.web.retold import retold
from app.web.rollout_blocks import ClientFact, RolloutAct, RolloutLine, RolloutLogLine, StepCell, TurnRow

HREF = "/rollouts"


@dataclass(frozen=True)
class ClientsNow:
    """What clients feel. `failed`: answers since the rollout began that broke off or were refused."""

    in_flight: int
    waiting: int
    failed: int


def rollouts_page(shell: Shell, language: Language, rollouts: Sequence[RolloutView]) -> RolloutsPage:
    """The list, newest first."""
    return RolloutsPage(
        shell=shell, refresh_href=HREF, rollouts=tuple(_line(one, shell.now, language.gettext) for one in rollouts)
    )


def rollout_page(
    shell: Shell, language: Language, view: RolloutView, log: Sequence[LogLineView], clients: ClientsNow
) -> RolloutPage:
    """One rollout, live."""
    _ = language.gettext
    line = _line(view, shell.now, _)
    columns = (STEPS_BESIDE if view.strategy == "blue_green" else STEPS)[Way.FORWARD]
    return RolloutPage(
        shell=shell,
        refresh_href=line.href,
        is_running=view.state == "running",
        rollout=line,
        profile_href=f"/profiles/{quote(view.profile)}?version={view.version}",
        waits_for=_sentences(view, "waits_for", _),
        limit=_limit(view, _),
        columns=tuple(_(STEP_WORDS[step]) for step in columns),
        rows=tuple(row for turn in view.engines for row in _rows(turn, columns, shell.now, _)),
        clients=_clients(clients, _),
        acts=_acts(view, language),
        log=tuple(_log_line(one, _) for one in reversed(log)),
    )


def tell(sentence: Said, _: Gettext) -> str:
    """A sentence and those inside it in the reader's language."""
    if not sentence.values:
        return retold(said(sentence.sentence, {}, _), _) if sentence.sentence else ""  # it may be an engine's cause
    values = {name: tell(value, _) if isinstance(value, Said) else value for name, value in sentence.values.items()}
    return said(sentence.sentence, values, _)


def strategy_label(name: str, _: Gettext) -> str:
    """What a strategy is called."""
    texts = {"rolling": _("one after the other"), "in_place": _("in place"), "blue_green": _("beside the old ones")}
    return texts.get(name, name)


def _line(view: RolloutView, now: float, _: Gettext) -> RolloutLine:
    tone, label = words.rollout_label("going_back" if view.goes_back else view.state, _)
    return RolloutLine(
        id=view.id,
        href=f"{HREF}/{view.id}",
        fleet=view.fleet,
        version=f"{view.profile} v{view.version}",
        previous=view.previous_version or "",
        strategy=strategy_label(view.strategy, _),
        tone=tone,
        label=label,
        step=", ".join(_working(view, _)),
        reason=_sentences(view, "reason", _),
        author=view.author,
        started_at=view.started_at,
        lasted=formats.duration((view.ended_at or now) - view.started_at),
    )


def _working(view: RolloutView, _: Gettext) -> list[str]:
    working = (cell for turn in view.engines for cell in (*turn.forward, *turn.back) if cell.state == StepState.WORKING)
    return [_work_line(cell, _) for cell in working]


def _work_line(cell: StepView, _: Gettext) -> str:
    step = _(STEP_WORDS[Step(cell.step)])
    back = _("back: %(step)s") % {"step": step}
    text = f"{cell.engine}: {step if cell.way == Way.FORWARD else back}"
    waits = cell.progress is None and waits_told(Step(cell.step), cell.said)
    return f"{text} ({tell(cell.said, _)})" if waits else text


def _rows(turn: TurnView, columns: Sequence[Step], now: float, _: Gettext) -> list[TurnRow]:
    ways = [(turn.forward, False), *([(turn.back, True)] if turn.back else [])]
    rows = []
    for cells, is_back in ways:
        by_step = {cell.step: cell for cell in cells}
        rows.append(_row(turn, tuple(_cell(by_step.get(step.value), now, _) for step in columns), is_back, _))
    return rows


def _row(turn: TurnView, cells: tuple[StepCell | None, ...], is_back: bool, _: Gettext) -> TurnRow:
    known = turn.state in {state.value for state in EngineState}
    badge = words.state_badge(EngineState(turn.state), _) if known else StateBadge(turn.state, _("retired"), "off")
    return TurnRow(
        key=f"{turn.engine}-{'back' if is_back else 'forward'}",
        engine=turn.engine,
        href=f"/engines/{quote(turn.engine)}",
        is_back=is_back,
        successor=turn.successor,
        badge=badge,
        runs=words.runs(turn.runs, _),
        cells=cells,
    )


def _cell(cell: StepView | None, now: float, _: Gettext) -> StepCell | None:
    if cell is None:
        return None
    tone, label = _states(_)[StepState(cell.state)]
    has_time = cell.started_at is not None and cell.state != StepState.SKIPPED
    lasted = (cell.ended_at or now) - (cell.started_at or now) if has_time else None
    detail = words.phase(cell.detail, _) if cell.progress is not None else tell(cell.said, _)
    return StepCell(cell.state, tone, label, detail, formats.duration(lasted), cell.progress)


def _states(_: Gettext) -> dict[StepState, tuple[str, str]]:
    return {
        StepState.WAITING: ("off", _("waiting")),
        StepState.WORKING: ("working", _("working")),
        StepState.DONE: ("good", _("done")),
        StepState.FAILED: ("failed", _("failed")),
        StepState.SKIPPED: ("off", _("skipped")),
    }


def _clients(now: ClientsNow, _: Gettext) -> tuple[ClientFact, ...]:
    return (
        ClientFact(_("In flight"), formats.count(now.in_flight)),
        ClientFact(_("Waiting at the door"), formats.count(now.waiting)),
        ClientFact(_("Failed since it began"), formats.count(now.failed), "failed" if now.failed else "good"),
    )


def _acts(view: RolloutView, language: Language) -> tuple[RolloutAct, ...]:
    _ = language.gettext
    acts = []
    if view.can_cancel:
        sentence = _("No further engine is begun. The one in work goes back to the version before, those done stay.")
        acts.append(RolloutAct("cancel", _("Cancel"), _("Cancel this rollout?"), sentence, _("Cancel the rollout")))
    if view.can_roll_back:
        count = sum(any(cell.state != StepState.WAITING for cell in turn.forward) for turn in view.engines)
        text = language.ngettext("%(count)s engine goes", "%(count)s engines go", count) % {"count": count}
        sentence = _("%(engines)s back to the version before, in the same way.") % {"engines": text}
        acts.append(RolloutAct("rollback", _("Roll back"), _("Roll it back?"), sentence, _("Roll back")))
    return tuple(acts)


def _limit(view: RolloutView, _: Gettext) -> str:
    if view.drain_timeout_seconds is None:
        return ""
    values = {
        "limit": formats.duration(view.drain_timeout_seconds),
        "why": _sentences(view, "drain_timeout_why", _),
    }
    return _("Requests that are open get %(limit)s to end. %(why)s") % values


def _sentences(view: RolloutView, field: str, _: Gettext) -> str:
    return " ".join(tell(one, _) for one in view.sentences.get(field, ()))


def _log_line(line: LogLineView, _: Gettext) -> RolloutLogLine:
    return RolloutLogLine(line.at, line.engine, tell(line.said, _), " failed: " in line.text)
