"""The overview's page object, from what the services tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from app.derive.headline import Headline
from app.services.alerts import AlertView
from app.services.charts import CHARTS, EngineNumbers, TokenOrigin
from app.supervisor.states import ALIVE, ANSWERING
from app.supervisor.status import EngineStatus
from app.web import formats, words
from app.web.blocks import ChartBlock, Choice, EngineLine, FiringAlert, Share, Shell, Tile
from app.web.contexts import OverviewPage
from app.web.i18n import Gettext, Language
from app.web.retold import retold, why

WINDOWS = ("5m", "1h", "6h", "24h", "7d")
DEFAULT_WINDOW = "1h"
FIRST_WINDOW = "5m"
#: What an origin says while the deck has recorded for less than the window.
YOUNG = frozenset({"window_starts_before_data", "no_requests_yet", "no_data", "starting", "no_engine"})


@dataclass(frozen=True)
class OverviewFacts:
    """What the services told for one look at the overview."""

    window: str
    fleet: str
    headline: Headline
    origin: TokenOrigin
    before: TokenOrigin
    engines: Sequence[EngineStatus]
    numbers: Mapping[str, EngineNumbers]
    alerts: Sequence[AlertView] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    """Of the deck's loops, by name."""


def overview_page(shell: Shell, language: Language, facts: OverviewFacts) -> OverviewPage:
    """Everything the overview shows."""
    _ = language.gettext
    shown = [engine for engine in facts.engines if facts.fleet in {"", engine.fleet}]
    return OverviewPage(
        shell=shell,
        refresh_href=_href(facts.window, facts.fleet),
        windows=tuple(Choice(name, name, _href(name, facts.fleet), name == facts.window) for name in WINDOWS),
        window=facts.window,
        fleets=_fleet_choices(facts, _),
        fleet=facts.fleet,
        sentence=words.sentence(facts.headline, language, _engine_href(_troubled(shown))),
        faults=tuple(words.loop_fault(name, why, _) for name, why in facts.faults.items()),
        alerts=_firing(facts, _),
        tiles=_tiles(facts.origin, facts.before, _),
        shares=_shares(facts.origin, _),
        origin_reason=_origin_reason(facts.origin, _),
        charts=chart_blocks(_),
        engines=tuple(_engine_line(engine, facts.numbers.get(engine.name), shell.now, _) for engine in shown),
    )


def _firing(facts: OverviewFacts, _: Gettext) -> tuple[FiringAlert, ...]:
    return tuple(
        FiringAlert(alert.rule, alert.fleet, retold(alert.sentence, _), alert.since)
        for alert in facts.alerts
        if alert.state == "firing" and facts.fleet in {"", alert.fleet}
    )


def default_window(origin: TokenOrigin) -> str:
    """The window to begin with, given the origin over the default one: a new deck's hour would be empty."""
    return FIRST_WINDOW if origin.reason in YOUNG else DEFAULT_WINDOW


def chart_blocks(_: Gettext) -> tuple[ChartBlock, ...]:
    """The charts' frames; each title is the question that the chart answers."""
    frames = {
        "token-origin": (_("Where did input tokens come from?"), _("Shares of input tokens by origin.")),
        "slots": (_("Which slots give out first?"), _("Share of the host tier's slots in use, by pool.")),
        "ttft": (_("How long do users wait for a first token?"), _("Time to first token.")),
        "load": (_("How busy are the engines?"), _("Requests running and waiting, and preemptions.")),
        "memory": (_("How full is memory?"), _("KV cache in VRAM, and the host tier.")),
    }
    return tuple(
        ChartBlock(chart, frames[chart][0], 220 if chart == "token-origin" else 180, frames[chart][1])
        for chart in CHARTS
        if chart in frames
    )


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole`; None when either is unknown or there is no whole."""
    return None if part is None or not whole else part / whole


def _tiles(now: TokenOrigin, before: TokenOrigin, _: Gettext) -> tuple[Tile, ...]:
    total = Tile(
        "input",
        _("Input tokens"),
        formats.count(now.input_tokens, "tok"),
        formats.count(before.input_tokens, "tok"),
        formats.change_in_percent(now.input_tokens, before.input_tokens),
    )
    parts = (
        ("vram", _("VRAM hit"), now.vram_tokens, before.vram_tokens),
        ("host", _("Host hit"), now.host_tokens, before.host_tokens),
        ("recomputed", _("Recomputed"), now.recomputed_tokens, before.recomputed_tokens),
        ("avoidable", _("of it avoidable"), now.avoidable_tokens, before.avoidable_tokens),
    )
    return (
        total,
        *(
            _share_tile(key, label, part, now.input_tokens, earlier, before.input_tokens)
            for key, label, part, earlier in parts
        ),
    )


def _share_tile(
    key: str, label: str, part: float | None, whole: float | None, earlier: float | None, earlier_whole: float | None
) -> Tile:
    share, share_before = ratio(part, whole), ratio(earlier, earlier_whole)
    tokens = formats.count(part, "tok")
    return Tile(
        key,
        label,
        formats.share(share),
        formats.share(share_before),
        formats.change_in_points(share, share_before),
        "" if share is None or tokens.is_missing else str(tokens),
    )


def _shares(origin: TokenOrigin, _: Gettext) -> tuple[Share, ...]:
    """The bar's segments; recomputed is split into what could and what could not be avoided."""
    total = origin.input_tokens
    avoidable = origin.avoidable_tokens or 0
    parts = (
        ("vram", _("VRAM hit"), origin.vram_tokens),
        ("host", _("Host hit"), origin.host_tokens),
        ("avoidable", _("Avoidable"), avoidable),
        (
            "recomputed",
            _("Recomputed"),
            None if origin.recomputed_tokens is None else origin.recomputed_tokens - avoidable,
        ),
    )
    segments: list[Share] = []
    start = 0.0
    for key, label, part in parts:
        width = (ratio(part, total) or 0.0) * 100
        if width > 0:
            segments.append(Share(key, f"{label} {formats.share(width / 100)}", round(start, 3), round(width, 3)))
        start += width
    return tuple(segments)


def _origin_reason(origin: TokenOrigin, _: Gettext) -> str:
    if origin.input_tokens and origin.complete:
        return ""
    return words.reason(origin.reason, _)


def _engine_line(engine: EngineStatus, numbers: EngineNumbers | None, now: float, _: Gettext) -> EngineLine:
    is_alive = engine.state in ALIVE
    shown = present_numbers(engine, numbers)
    version = engine.running_version if engine.running_version is not None else engine.wanted_version
    return EngineLine(
        name=engine.name,
        href=_engine_href(engine.name),
        fleet=engine.fleet,
        badge=words.engine_badge(engine, _),
        since=engine.since,
        cause=why(engine, _),
        profile=f"{engine.wanted_profile} v{version}",
        profile_href=f"/profiles/{quote(engine.wanted_profile)}?version={version}",
        uptime=formats.duration(now - engine.started_at if engine.started_at and is_alive else None),
        kv=formats.share(shown.kv_usage),
        running=formats.count(shown.running),
        waiting=formats.count(shown.waiting),
        ttft=formats.duration(shown.ttft_p50_seconds),
        stale=words.reason(shown.stale_reason, _),
    )


def present_numbers(engine: EngineStatus, numbers: EngineNumbers | None) -> EngineNumbers:
    """Numbers of an engine that answers; of another they would be those of a process that has ended.

    Why there are none is told all the same.
    """
    if numbers is None or engine.state in ANSWERING:
        return numbers or EngineNumbers()
    return EngineNumbers(stale_reason=numbers.stale_reason)


def _fleet_choices(facts: OverviewFacts, _: Gettext) -> tuple[Choice, ...]:
    names = sorted({engine.fleet for engine in facts.engines})
    if len(names) < 2:
        return ()
    everything = Choice("", _("All fleets"), _href(facts.window, ""), facts.fleet == "")
    return (everything, *(Choice(name, name, _href(facts.window, name), name == facts.fleet) for name in names))


def _troubled(engines: Sequence[EngineStatus]) -> str:
    """The engine a sentence about trouble leads to: the first that does not serve."""
    for engine in engines:
        if not engine.serves:
            return engine.name
    return engines[0].name if engines else ""


def _engine_href(name: str) -> str:
    return f"/engines/{quote(name)}" if name else ""


def _href(window: str, fleet: str) -> str:
    query = {"window": window} | ({"fleet": fleet} if fleet else {})
    return f"/?{urlencode(query)}"
