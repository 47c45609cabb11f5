"""The objects of the profile pages: what there is, where it runs, what would change. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.derive.profile_text import Change, changes
from app.services.profiles import ProfileSummary, VersionView
from app.services.rollouts import RolloutView
from app.supervisor.status import EngineStatus
from app.web import words
from app.web.blocks import (
    Comparison,
    FieldChange,
    FleetTarget,
    ProfileLine,
    RolloutBlock,
    RolloutEngine,
    RunsOn,
    Shell,
    VersionLine,
)
from app.web.contexts import ProfilePage, ProfilesPage
from app.web.i18n import Gettext, Language

NEW_HREF = "/new-profile"
SHOWN_ROLLOUTS = 5


@dataclass(frozen=True)
class ProfileFacts:
    """What the services told of one profile."""

    name: str
    versions: Sequence[VersionView]
    shown: VersionView
    compared: tuple[int, int] | None
    changes: Sequence[Change]
    running: dict[str, VersionView]
    """The version that each engine runs, whatever its profile."""
    engines: Sequence[EngineStatus]
    rollouts: Sequence[RolloutView]


def profiles_page(shell: Shell, summaries: Sequence[ProfileSummary]) -> ProfilesPage:
    """The list."""
    return ProfilesPage(
        shell=shell,
        refresh_href="/profiles",
        profiles=tuple(_profile_line(summary) for summary in summaries),
        new_href=NEW_HREF,
    )


def new_profile_page(shell: Shell) -> ProfilePage:
    """The editor on an empty sheet."""
    return ProfilePage(
        shell=shell,
        refresh_href=NEW_HREF,
        name="",
        is_new=True,
        shown=0,
        next_number=1,
        kv_transfer_config="",
        flags="",
        environment="",
        versions=(),
        comparison=None,
        targets=(),
        rollouts=(),
    )


def profile_page(shell: Shell, language: Language, facts: ProfileFacts) -> ProfilePage:
    """The editor filled with one version, and everything around it."""
    _ = language.gettext
    shown = facts.shown
    return ProfilePage(
        shell=shell,
        refresh_href=shell.address,
        name=facts.name,
        is_new=False,
        shown=shown.number,
        next_number=facts.versions[0].number + 1,
        kv_transfer_config=pretty(shown.kv_transfer_config),
        flags=pretty(shown.flags),
        environment=pretty(shown.environment),
        versions=tuple(_version_line(version, facts) for version in facts.versions),
        comparison=_comparison(facts),
        targets=_targets(facts, language),
        rollouts=tuple(
            _rollout_block(rollout, facts.engines, _) for rollout in facts.rollouts if rollout.profile == facts.name
        )[:SHOWN_ROLLOUTS],
    )


def pretty(value: dict[str, Any]) -> str:
    """JSON as it stands in the editor; nothing for an empty object."""
    return json.dumps(value, ensure_ascii=False, indent=2) if value else ""


def field_change(change: Change) -> FieldChange:
    """A difference as texts."""
    return FieldChange(
        path=change.path,
        old="" if change.old is None else json.dumps(change.old, ensure_ascii=False),
        new="" if change.new is None else json.dumps(change.new, ensure_ascii=False),
        is_added=change.old is None,
        is_removed=change.new is None,
    )


def _profile_line(summary: ProfileSummary) -> ProfileLine:
    latest = summary.latest
    return ProfileLine(
        name=summary.name,
        href=_href(summary.name),
        latest=latest.number,
        saved_at=latest.created_at,
        author=latest.author,
        comment=latest.comment,
        runs_on=tuple(_runs_on(engine, number) for engine, number in summary.runs_on),
    )


def _version_line(version: VersionView, facts: ProfileFacts) -> VersionLine:
    href = _href(facts.name, version.number)
    return VersionLine(
        number=version.number,
        href=href,
        compare_href=f"{_href(facts.name, facts.shown.number)}&compare={version.number}#compare",
        saved_at=version.created_at,
        author=version.author,
        comment=version.comment,
        runs_on=tuple(_runs_on(engine, version.number) for engine in version.runs_on),
        is_shown=version.number == facts.shown.number,
    )


def _comparison(facts: ProfileFacts) -> Comparison | None:
    if facts.compared is None:
        return None
    old, new = facts.compared
    return Comparison(old, new, tuple(field_change(change) for change in facts.changes))


def _targets(facts: ProfileFacts, language: Language) -> tuple[FleetTarget, ...]:
    fleets = sorted({engine.fleet for engine in facts.engines})
    return tuple(_target(fleet, facts, language) for fleet in fleets)


def _target(fleet: str, facts: ProfileFacts, language: Language) -> FleetTarget:
    _ = language.gettext
    engines = [engine for engine in facts.engines if engine.fleet == fleet]
    names = tuple(engine.name for engine in engines)
    running = [facts.running[name] for name in names if name in facts.running]
    current = running[0] if running else None
    differing = changes(current.content, facts.shown.content) if current else []
    button = language.ngettext(
        "Apply version %(version)s to %(fleet)s (restarts %(count)s engine)",
        "Apply version %(version)s to %(fleet)s (restarts %(count)s engines)",
        len(names),
    )
    return FleetTarget(
        fleet=fleet,
        label=_("Apply to %(fleet)s") % {"fleet": fleet},
        engines=names,
        runs=f"{current.profile} v{current.number}" if current else "",
        is_on_it=bool(running) and all(version.id == facts.shown.id for version in running),
        changes=tuple(field_change(change) for change in differing),
        what_happens=_(
            "The engine restarts. Requests wait at the door meanwhile. "
            "Cached sessions in VRAM and host memory are lost. "
            "If the new version does not start, the deck goes back to the one before."
        ),
        button=button % {"version": facts.shown.number, "fleet": fleet, "count": len(names)},
    )


def _rollout_block(rollout: RolloutView, engines: Sequence[EngineStatus], _: Gettext) -> RolloutBlock:
    tone, label = words.rollout_label(rollout.state, _)
    is_running = rollout.state == "running"
    return RolloutBlock(
        id=rollout.id,
        fleet=rollout.fleet,
        version=rollout.version,
        previous=rollout.previous_version or "",
        state=rollout.state,
        tone=tone,
        label=label,
        step=rollout.step if is_running else "",
        reason=rollout.reason,
        started_at=rollout.started_at,
        ended_at=rollout.ended_at,
        engines=tuple(_rollout_engine(engine, _) for engine in engines if is_running and engine.fleet == rollout.fleet),
    )


def _rollout_engine(engine: EngineStatus, _: Gettext) -> RolloutEngine:
    return RolloutEngine(
        name=engine.name,
        href=f"/engines/{quote(engine.name)}",
        badge=words.state_badge(engine.state, _),
        phase=words.phase(engine.phase or "", _),
        progress=engine.progress,
    )


def _runs_on(engine: str, number: int) -> RunsOn:
    return RunsOn(engine, f"/engines/{quote(engine)}", number)


def _href(name: str, version: int | None = None) -> str:
    path = f"/profiles/{quote(name)}"
    return path if version is None else f"{path}?version={version}"
