"""The objects of the profile pages: what there is, where it runs, what would change. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from app.derive.profile_text import Change, as_text
from app.profiles.context import Box
from app.profiles.presets import Preset, presets
from app.services.consequences import Consequence
from app.services.profiles import ProfileSummary, Run, ValidationView, VersionView
from app.services.rollouts import RolloutView
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from app.web import formats, words
from app.web.blocks import Choice, Shell
from app.web.contexts import ProfilePage, ProfilesPage
from app.web.finding_words import number_words, said
from app.web.i18n import Gettext, Language
from app.web.profile_blocks import (
    CheckLine,
    Comparison,
    FieldChange,
    FleetTarget,
    PresetLine,
    ProfileLine,
    RolloutBlock,
    RolloutEngine,
    RunLine,
    RunsOn,
    VersionLine,
)
from app.web.profile_form import form_groups

NEW_HREF = "/new-profile"
SHOWN_ROLLOUTS = 5
States = Mapping[str, EngineState]


@dataclass(frozen=True)
class Compared:
    """Two versions and what differs."""

    old: VersionView
    new: VersionView
    changes: Sequence[Change]
    consequences: Sequence[Consequence]


@dataclass(frozen=True)
class RunFacts:
    """A run, and the shares of the input tokens of its fleet meanwhile, where they are known."""

    run: Run
    vram: float | None = None
    host: float | None = None
    recomputed: float | None = None


@dataclass(frozen=True)
class ProfileFacts:
    """What the services told of one profile."""

    name: str
    versions: Sequence[VersionView]
    shown: VersionView
    compared: Compared | None
    running: dict[str, VersionView]
    """The version that each engine runs, whatever its profile."""
    engines: Sequence[EngineStatus]
    rollouts: Sequence[RolloutView]
    others: Sequence[VersionView]
    """The newest version of each other profile."""
    runs: Sequence[RunFacts]
    box: Box
    fleets: Sequence[str]


def profiles_page(
    shell: Shell, language: Language, summaries: Sequence[ProfileSummary], engines: Sequence[EngineStatus]
) -> ProfilesPage:
    """The list."""
    states = _states(engines)
    return ProfilesPage(
        shell=shell,
        refresh_href="/profiles",
        profiles=tuple(_profile_line(summary, states, language.gettext) for summary in summaries),
        new_href=NEW_HREF,
    )


def new_profile_page(
    shell: Shell, language: Language, box: Box, fleets: Sequence[str], begun: Preset | None = None
) -> ProfilePage:
    """The editor on an empty sheet, or on a preset."""
    _ = language.gettext
    return ProfilePage(
        shell=shell,
        refresh_href=NEW_HREF,
        name="",
        is_new=True,
        shown=0,
        next_number=1,
        kv_transfer_config="" if begun is None else as_text(begun.kv_transfer_config),
        flags="" if begun is None else as_text(begun.flags),
        environment="",
        allow="[]",
        fleets=_fleets(fleets),
        groups=form_groups(box, _),
        presets=tuple(_preset_line(preset, _) for preset in presets(box.memory_bytes)),
        versions=(),
        others=(),
        runs=(),
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
        kv_transfer_config=as_text(shown.kv_transfer_config),
        flags=as_text(shown.flags),
        environment=as_text(shown.environment),
        allow=json.dumps(list(shown.allow), ensure_ascii=False),
        fleets=_fleets(facts.fleets, _usual_fleet(facts)),
        groups=form_groups(facts.box, _),
        presets=(),
        versions=tuple(_version_line(version, facts, _) for version in facts.versions),
        others=tuple(_other(version) for version in facts.others),
        runs=tuple(_run_line(run, facts.name, _) for run in facts.runs),
        comparison=_comparison(facts.compared, _),
        targets=_targets(facts, language),
        rollouts=tuple(
            _rollout_block(rollout, facts.engines, _) for rollout in facts.rollouts if rollout.profile == facts.name
        )[:SHOWN_ROLLOUTS],
    )


def field_change(change: Change) -> FieldChange:
    """A difference as texts."""
    return FieldChange(
        path=change.path,
        old="" if change.old is None else json.dumps(change.old, ensure_ascii=False),
        new="" if change.new is None else json.dumps(change.new, ensure_ascii=False),
        is_added=change.old is None,
        is_removed=change.new is None,
    )


def _profile_line(summary: ProfileSummary, states: States, _: Gettext) -> ProfileLine:
    latest = summary.latest
    return ProfileLine(
        name=summary.name,
        href=_href(summary.name),
        latest=latest.number,
        saved_at=latest.created_at,
        author=latest.author,
        comment=latest.comment,
        runs_on=tuple(_runs_on(engine, number, states, _) for engine, number in summary.runs_on),
    )


def _version_line(version: VersionView, facts: ProfileFacts, _: Gettext) -> VersionLine:
    href, states = _href(facts.name, version.number), _states(facts.engines)
    return VersionLine(
        number=version.number,
        href=href,
        compare_href=f"{_href(facts.name, facts.shown.number)}&compare={version.number}#compare",
        saved_at=version.created_at,
        author=version.author,
        comment=version.comment,
        runs_on=tuple(_runs_on(engine, version.number, states, _) for engine in version.runs_on),
        is_shown=version.number == facts.shown.number,
        checks=tuple(_check_line(one, _) for one in version.validations),
    )


def _check_line(one: ValidationView, _: Gettext) -> CheckLine:
    counts = {kind: sum(found["severity"] == kind for found in one.findings) for kind in ("error", "warning")}
    tone = "failed" if counts["error"] else "warning" if counts["warning"] else "good"
    labels = {1: _("text"), 2: _("engine"), 3: _("dry run")}
    return CheckLine(one.at, tone, labels.get(one.depth, str(one.depth)), _against(one, _))


def _against(one: ValidationView, _: Gettext) -> str:
    """Engine, platform and model, then what a dry run told."""
    told = one.against
    parts = [_("engine %(version)s") % {"version": told.get("engine_version", "?")}, str(told.get("platform") or "")]
    parts += [Path(str(told["model"])).name] if told.get("model") else []
    words_of = number_words(_).items()
    parts += [text % {"value": one.numbers[key]} for key, text in words_of if one.numbers.get(key) is not None]
    worst = [said(found["sentence"], found["values"], _) for found in one.findings if found["severity"] == "error"]
    return " · ".join([*(part for part in parts if part), *worst[:1]])


def _fleets(names: Sequence[str], current: str = "") -> tuple[Choice, ...]:
    """Nothing to choose where there is one."""
    return tuple(Choice(name, name, is_current=name == current) for name in names) if len(names) > 1 else ()


def _usual_fleet(facts: ProfileFacts) -> str:
    """The first fleet that has this profile."""
    having = {engine for engine, version in facts.running.items() if version.profile == facts.name}
    return min((engine.fleet for engine in facts.engines if engine.name in having), default="")


def _other(version: VersionView) -> Choice:
    return Choice(f"{version.profile}@{version.number}", f"{version.profile} v{version.number}")


def _run_line(facts: RunFacts, profile: str, _: Gettext) -> RunLine:
    run = facts.run
    shares = ((_("VRAM"), facts.vram), (_("host"), facts.host), (_("recomputed"), facts.recomputed))
    return RunLine(
        version=run.version,
        href=_href(profile, run.version),
        engine=run.engine,
        engine_href=f"/engines/{quote(run.engine)}",
        started_at=run.started_at,
        ended_at=run.ended_at,
        numbers=", ".join(f"{name} {formats.share(share)}" for name, share in shares if share is not None),
    )


def _preset_line(preset: Preset, _: Gettext) -> PresetLine:
    content = {"kv_transfer_config": dict(preset.kv_transfer_config), "flags": dict(preset.flags)}
    return PresetLine(preset.key, _(preset.label), _(preset.sentence), json.dumps(content))


def _comparison(compared: Compared | None, _: Gettext) -> Comparison | None:
    if compared is None:
        return None
    old, new = compared.old, compared.new
    if old.profile == new.profile:
        heading = _("From version %(old)s to version %(new)s") % {"old": old.number, "new": new.number}
    else:
        names = {"old": f"{old.profile} v{old.number}", "new": f"{new.profile} v{new.number}"}
        heading = _("From %(old)s to %(new)s") % names
    means = tuple(consequence_change(one, _) for one in compared.consequences)
    return Comparison(heading, tuple(field_change(change) for change in compared.changes), means)


def consequence_change(one: Consequence, _: Gettext) -> FieldChange:
    """A number before and after, with its name."""
    names = {
        "host_total": _("Host memory, all ranks"),
        "bytes_per_token": _("KV bytes of a token"),
        "block_tokens": _("Block, tokens"),
        "vram_sequences": _("Longest sequences that fit in VRAM"),
        "token_slots": _("Token slots"),
        "state_slots": _("State slots"),
        "tokens_held": _("Tokens held"),
        "restorable_sessions": _("Sessions of %(tokens)s tokens restorable")
        % {"tokens": f"{one.session_tokens or 0:,}"},
    }
    old, new = ("" if value is None else _amount(one.name, value) for value in (one.old, one.new))
    return FieldChange(names[one.name], old, new, is_added=one.old is None, is_removed=one.new is None)


def _amount(name: str, value: float) -> str:
    if name in {"host_total", "bytes_per_token"}:
        return str(formats.size(value))
    return str(formats.count(value)) if name == "tokens_held" else f"{value:,.0f}"


def _targets(facts: ProfileFacts, language: Language) -> tuple[FleetTarget, ...]:
    fleets = sorted({engine.fleet for engine in facts.engines})
    return tuple(_target(fleet, facts, language) for fleet in fleets)


def _target(fleet: str, facts: ProfileFacts, language: Language) -> FleetTarget:
    _ = language.gettext
    names = tuple(engine.name for engine in facts.engines if engine.fleet == fleet)
    running = [facts.running[name] for name in names if name in facts.running]
    current = running[0] if running else None
    is_ready = all(engine.state is EngineState.READY for engine in facts.engines if engine.fleet == fleet)
    button = language.ngettext(
        "Roll out version %(version)s to %(fleet)s (%(count)s engine)",
        "Roll out version %(version)s to %(fleet)s (%(count)s engines)",
        len(names),
    )
    return FleetTarget(
        fleet=fleet,
        label=_("Roll out to %(fleet)s") % {"fleet": fleet},
        runs=_runs(current, next(engine for engine in facts.engines if engine.fleet == fleet), _),
        on_it=_on_it(running, ready=is_ready, shown=facts.shown, _=_),
        button=button % {"version": facts.shown.number, "fleet": fleet, "count": len(names)},
    )


def _runs(current: VersionView | None, engine: EngineStatus, _: Gettext) -> str:
    if current is not None:
        return words.runs(f"{current.profile} v{current.number}", _)
    waiting = f"{engine.wanted_profile} v{engine.wanted_version}"
    return _("does not run; its next start uses %(version)s") % {"version": waiting}


def _on_it(running: Sequence[VersionView], *, ready: bool, shown: VersionView, _: Gettext) -> str:
    if not running or any(version.id != shown.id for version in running):
        return ""
    return _("Runs this version.") if ready else _("Has this version; not every engine of it is ready.")


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


def _states(engines: Sequence[EngineStatus]) -> States:
    return {engine.name: engine.state for engine in engines}


def _runs_on(engine: str, number: int, states: States, _: Gettext) -> RunsOn:
    """A process that has just begun has the version, and does not serve with it yet."""
    state = states.get(engine, EngineState.READY)
    badge = None if state is EngineState.READY else words.state_badge(state, _)
    return RunsOn(engine, f"/engines/{quote(engine)}", number, badge)


def _href(name: str, version: int | None = None) -> str:
    path = f"/profiles/{quote(name)}"
    return path if version is None else f"{path}?version={version}"
