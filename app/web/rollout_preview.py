"""What applying a version would do, in the reader's language: a part of the dialog that asks before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from app.errors import InvalidInput
from app.rollouts.said import Said
from app.services.preview import EnginePreview, RolloutPreview, StrategyChoice
from app.supervisor.states import EngineState
from app.web import formats, words
from app.web.blocks import Shell
from app.web.contexts import RolloutPreviewPage
from app.web.finding_words import said
from app.web.i18n import Gettext, Language
from app.web.profile_blocks import PreviewEngine, PreviewFact, StrategyLine
from app.web.profile_page import consequence_change, field_change


def rollout_preview_page(shell: Shell, language: Language, told: RolloutPreview) -> RolloutPreviewPage:
    """The preview as the dialog shows it."""
    _ = language.gettext
    return RolloutPreviewPage(
        shell=shell,
        fleet=told.fleet,
        replaces=told.replaces,
        changes=tuple(field_change(change) for change in told.changes),
        means=tuple(consequence_change(one, _) for one in told.consequences),
        strategies=tuple(_strategy(one, told, _) for one in told.strategies),
        engines=tuple(_engine(one, language) for one in told.engines),
        facts=(_time(told, _), _drain(told, _), _contents(told, _), *_memory(told, _)),
        drain_seconds=formats.significant(told.drain_timeout_seconds, 5),
    )


def seconds_or_none(text: str) -> float | None:
    """A field of seconds; None when it is empty. Raises InvalidInput."""
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError as error:
        raise InvalidInput("Write seconds between 0 and 86400.", path="drain_timeout_seconds") from error
    return seconds


def _strategy(one: StrategyChoice, told: RolloutPreview, _: Gettext) -> StrategyLine:
    labels = {
        "rolling": (_("One after the other"), _("The others serve meanwhile: no request waits, none fails.")),
        "in_place": (_("In place"), _("Requests wait at the door until the engines are ready again.")),
        "blue_green": (
            _("Beside the old ones"),
            _("New engines start beside the old ones, then take over; their host tiers begin empty."),
        ),
    }
    label, sentence = labels[one.name]
    reason = _said(told, f"strategy.{one.name}", _)
    return StrategyLine(one.name, label, reason or sentence, one.is_open, is_chosen=one.name == told.strategy)


def _engine(one: EnginePreview, language: Language) -> PreviewEngine:
    _ = language.gettext
    open_requests = language.ngettext("%(count)s request open", "%(count)s requests open", one.in_flight)
    if not one.restarts:
        what = _("stays stopped; its next start takes the new version")
    else:
        what = open_requests % {"count": one.in_flight}
    badge = words.state_badge(EngineState(one.state), _)
    return PreviewEngine(one.name, f"/engines/{quote(one.name)}", badge, words.runs(one.runs, _), what)


def _time(told: RolloutPreview, _: Gettext) -> PreviewFact:
    if told.expected_total_seconds is None:
        return PreviewFact(_("Time"), _said(told, "expected_reason", _))
    parts = (
        (_("drain %(time)s"), told.expected_drain_seconds),
        (_("stop %(time)s"), told.expected_stop_seconds),
        (_("start %(time)s"), told.expected_start_seconds),
    )
    each = ", ".join(text % {"time": formats.duration(seconds)} for text, seconds in parts if seconds is not None)
    if told.expected_reason:
        sentence = _("At least %(total)s in all; each engine: %(each)s, as seen of late.")
    else:
        sentence = _("About %(total)s in all; each engine: %(each)s, as seen of late.")
    return PreviewFact(_("Time"), sentence % {"total": formats.duration(told.expected_total_seconds), "each": each})


def _drain(told: RolloutPreview, _: Gettext) -> PreviewFact:
    sentence = _("Requests that are open get %(limit)s to end. %(why)s")
    values = {"limit": formats.duration(told.drain_timeout_seconds), "why": _said(told, "drain_timeout_why", _)}
    return PreviewFact(_("Open requests"), sentence % values)


def _contents(told: RolloutPreview, _: Gettext) -> PreviewFact:
    """What of the host tier stays; VRAM is always lost."""
    label, reason = _("Host tier"), _said(told, "at_risk_reason", _)
    if told.tokens_held == 0:
        return PreviewFact(label, _("It is empty; what VRAM holds is computed anew."))
    if told.tokens_at_risk is None:
        return PreviewFact(label, reason)
    held = _amounts(told.tokens_held, told.sessions_held, _)
    if not told.tokens_at_risk and not told.sessions_at_risk:
        return PreviewFact(label, _("All of it stays: %(held)s.") % {"held": held}, "good")
    lost = _amounts(told.tokens_at_risk, told.sessions_at_risk, _)
    sentence = _("Of %(held)s, %(lost)s find no room any more. %(reason)s")
    return PreviewFact(label, sentence % {"held": held, "lost": lost, "reason": reason}, "warning")


def _amounts(tokens: float | None, sessions: float | None, _: Gettext) -> str:
    parts = [_("%(count)s tokens") % {"count": formats.count(tokens)}] if tokens is not None else []
    parts += [_("%(count)s sessions") % {"count": formats.count(sessions)}] if sessions is not None else []
    return _("%(one)s and %(other)s") % {"one": parts[0], "other": parts[1]} if len(parts) > 1 else "".join(parts)


def _memory(told: RolloutPreview, _: Gettext) -> Sequence[PreviewFact]:
    text = _said(told, "memory", _)
    return [PreviewFact(_("Memory"), text, "" if told.memory.fits else "failed")] if text else []


def _said(told: RolloutPreview, field: str, _: Gettext) -> str:
    found = told.sentences.get(field, Said())
    return said(found.sentence, dict(found.values), _) if found.sentence else ""
