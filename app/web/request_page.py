"""The page of requests: its object, from records and filters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from urllib.parse import quote, urlencode

from app.derive.slots import ratio
from app.proxy.record import Outcome
from app.services.requests import RequestView
from app.store.queries.requests import Filter
from app.supervisor.status import EngineStatus
from app.web import formats
from app.web.blocks import Choice, Fact, Share, Shell, StateBadge
from app.web.contexts import RequestsPage
from app.web.i18n import Gettext, Language
from app.web.request_blocks import RequestLine

ADDRESS = "/requests"
#: The engine says what it cached only when it was started with this flag.
DETAILS_FLAG = "enable-prompt-tokens-details"


@dataclass(frozen=True)
class RequestFacts:
    """What the deck told."""

    wanted: Filter
    views: Sequence[RequestView]
    is_full: bool
    """There may be older ones."""
    engines: Sequence[EngineStatus]
    in_flight: int
    waiting: int


def requests_page(shell: Shell, language: Language, facts: RequestFacts) -> RequestsPage:
    """Everything the page of requests shows."""
    _ = language.gettext
    wanted = facts.wanted
    older = Filter(**{**asdict(wanted), "before": facts.views[-1].id}) if facts.is_full else None
    return RequestsPage(
        shell=shell,
        refresh_href=_href(wanted),
        is_newest=wanted.before is None,
        now=(
            Fact(_("In flight"), formats.count(facts.in_flight)),
            Fact(_("Waiting at the door"), formats.count(facts.waiting)),
        ),
        fleets=_fleets(facts.engines, wanted, _),
        engines=_engines(facts.engines, wanted, _),
        outcomes=_outcomes(wanted, _),
        session=wanted.session or "",
        is_filtered=any((wanted.fleet, wanted.engine, wanted.outcome, wanted.session)),
        all_href=ADDRESS,
        requests=tuple(_line(view, wanted, _) for view in facts.views),
        newest_href=_href(Filter(**{**asdict(wanted), "before": None})) if wanted.before else "",
        older_href=_href(older) if older else "",
        cached_missing=DETAILS_FLAG if _lacks_details(facts.views) else "",
        api_href=f"/api/v1{_href(wanted)}",
    )


def outcome_badge(outcome: str, status: int | None, _: Gettext) -> StateBadge:
    """How a request ended, and who ended it."""
    match outcome:
        case Outcome.DONE if status is not None and status >= 400:
            return StateBadge(outcome, _("engine answered %(status)s") % {"status": status}, "warning")
        case Outcome.DONE:
            return StateBadge(outcome, _("done"), "good")
        case Outcome.REFUSED:
            return StateBadge(outcome, _("refused at the door"), "warning")
        case Outcome.CLIENT_CLOSED:
            return StateBadge(outcome, _("client left"), "off")
        case Outcome.UPSTREAM_CLOSED:
            return StateBadge(outcome, _("engine hung up"), "failed")
        case Outcome.UPSTREAM_ERROR:
            return StateBadge(outcome, _("engine broke HTTP"), "failed")
    return StateBadge(outcome, _("deck stopped"), "failed")


def _line(view: RequestView, wanted: Filter, _: Gettext) -> RequestLine:
    of_session = Filter(**{**asdict(wanted), "session": view.session, "before": None})
    shares = _shares(view, _)
    return RequestLine(
        id=view.id,
        at=view.at,
        session=view.session or "",
        session_href=_href(of_session) if view.session else "",
        what=f"{view.path} · {view.model}" if view.model else view.path,
        engine=view.engine or "",
        engine_href=f"/engines/{quote(view.engine)}" if view.engine else "",
        runs=f"{view.profile} v{view.version}" if view.profile and view.version else "",
        input=formats.count(view.input_tokens, "tok"),
        output=formats.count(view.output_tokens, "tok"),
        shares=shares,
        origin=", ".join(share.label for share in shares),
        queue=formats.duration(view.queue_seconds),
        first_byte=formats.duration(view.first_byte_seconds),
        total=formats.duration(view.total_seconds),
        badge=outcome_badge(view.outcome, view.status, _),
        notes=_notes(view, _),
    )


def _notes(view: RequestView, _: Gettext) -> tuple[str, ...]:
    notes = []
    if view.streams:
        notes.append(_("stream"))
    if view.is_joined:
        notes.append(_("joined an identical one"))
    elif view.is_identical:
        notes.append(_("identical to one in flight"))
    if view.status is not None and view.outcome == Outcome.REFUSED:
        notes.append(str(view.status))
    return tuple(notes)


def _shares(view: RequestView, _: Gettext) -> tuple[Share, ...]:
    """Segments of the bar. Where the engine tells only the sum of what was cached, that is one segment."""
    if not view.input_tokens or view.cached_tokens is None:
        return ()
    is_split = view.vram_tokens is not None and view.host_tokens is not None
    parts = (
        ("vram", _("VRAM hit"), view.vram_tokens if is_split else 0),
        ("host", _("Host hit"), view.host_tokens if is_split else 0),
        ("cached", _("From cache"), 0 if is_split else view.cached_tokens),
        ("recomputed", _("Recomputed"), view.input_tokens - view.cached_tokens),
    )
    shares, start = [], 0.0
    for key, label, tokens in parts:
        width = (ratio(tokens, view.input_tokens) or 0.0) * 100
        if width > 0:
            shares.append(Share(key, f"{label} {formats.share(width / 100)}", round(start, 3), round(width, 3)))
        start += width
    return tuple(shares)


def _lacks_details(views: Sequence[RequestView]) -> bool:
    counted = [view for view in views if view.input_tokens]
    return bool(counted) and all(view.cached_tokens is None for view in counted)


def _fleets(engines: Sequence[EngineStatus], wanted: Filter, _: Gettext) -> tuple[Choice, ...]:
    """Nothing to choose while there is one fleet."""
    names = sorted({engine.fleet for engine in engines} | ({wanted.fleet} if wanted.fleet else set()))
    return _choices(_("All fleets"), names, wanted.fleet) if len(names) > 1 or wanted.fleet else ()


def _engines(engines: Sequence[EngineStatus], wanted: Filter, _: Gettext) -> tuple[Choice, ...]:
    names = sorted({engine.name for engine in engines} | ({wanted.engine} if wanted.engine else set()))
    return _choices(_("All engines"), names, wanted.engine) if len(names) > 1 or wanted.engine else ()


def _outcomes(wanted: Filter, _: Gettext) -> tuple[Choice, ...]:
    named = [Choice(one, outcome_badge(one, None, _).label, is_current=one == wanted.outcome) for one in Outcome]
    return (Choice("", _("However they ended"), is_current=not wanted.outcome), *named)


def _choices(every: str, names: Sequence[str], chosen: str | None) -> tuple[Choice, ...]:
    named = (Choice(name, name, is_current=name == chosen) for name in names)
    return (Choice("", every, is_current=not chosen), *named)


def _href(wanted: Filter) -> str:
    given = {name: value for name, value in asdict(wanted).items() if value}
    return f"{ADDRESS}?{urlencode(given)}" if given else ADDRESS
