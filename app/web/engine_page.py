"""The engine page's object, from its status and its past. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from app.services.charts import EngineNumbers
from app.supervisor.residentmemory import Fate
from app.supervisor.states import ALIVE, EngineState
from app.supervisor.status import EngineStatus, Transition
from app.web import formats, words
from app.web.blocks import EngineAction, Fact, Move, Shell
from app.web.contexts import EnginePage
from app.web.fleet_page import field_labels
from app.web.formats import Quantity
from app.web.i18n import Gettext, Language
from app.web.overview import present_numbers
from app.web.retold import retold, why

NOT_RUNNING = frozenset({EngineState.STOPPED, EngineState.FAILED})
CAN_START = frozenset({EngineState.STOPPED, EngineState.FAILED, EngineState.BACKOFF, EngineState.DRAINING})
CAN_RESTART = (ALIVE - {EngineState.STOPPING}) | {EngineState.BACKOFF}
CAN_DRAIN = frozenset({EngineState.READY, EngineState.STALLED})


@dataclass(frozen=True)
class EngineNow:
    """An engine and what depends on it. `others_serve`: another engine of its fleet takes requests."""

    status: EngineStatus
    host_memory: Fate
    others_serve: bool
    in_flight: int


def engine_page(
    shell: Shell,
    language: Language,
    engine: EngineNow,
    transitions: Sequence[Transition],
    numbers: EngineNumbers | None,
    log_dir: Path,
) -> EnginePage:
    """Everything the engine page shows; `transitions` newest first."""
    _, status = language.gettext, engine.status
    href = f"/engines/{quote(status.name)}"
    return EnginePage(
        shell=shell,
        refresh_href=href,
        name=status.name,
        badge=words.engine_badge(status, _),
        since=status.since,
        cause=why(status, _),
        advice=words.advice(status.error_code, _),
        phase=words.phase(status.phase or "", _),
        progress=status.progress if status.state is EngineState.STARTING else None,
        next_try_at=status.next_try_at,
        leftover=_leftover(status, language),
        facts=_facts(status, numbers, engine.in_flight, shell.now, language),
        actions=engine_actions(engine, language),
        moves=_moves(transitions, _),
        log_href=f"/events{href}/log",
        log_file=str(log_dir / f"{status.name}.log"),
    )


def engine_actions(engine: EngineNow, language: Language) -> tuple[EngineAction, ...]:
    """The four buttons: which of them make sense now, and what each would do."""
    _, status = language.gettext, engine.status
    lost, meanwhile = _lost(engine.host_memory, _), _meanwhile(engine, _)
    drained = _("Those in flight finish. The cache stays. “Take requests again” ends it.")
    stopped = _("It serves nobody until it is started again.")
    cut = words.in_flight_sentence(engine.in_flight, language)
    is_working = status.state is EngineState.STOPPING
    draining = status.state is EngineState.DRAINING
    leaves = _("It is leaving already.") if status.leaving else ""
    return (
        EngineAction(
            "start",
            _("Take requests again") if draining else _("Start"),
            status.state in CAN_START and not status.leaving,
            leaves or (_("It is running.") if status.state in ALIVE else ""),
            "",
            False,
            status.state in NOT_RUNNING or draining,
        ),
        EngineAction(
            "drain",
            _("Drain"),
            status.state in CAN_DRAIN,
            _("Only a ready engine can be drained."),
            f"{meanwhile} {drained}",
            False,
            False,
        ),
        EngineAction(
            "restart",
            _("Restart"),
            status.state in CAN_RESTART and not status.leaving,
            leaves or (_("It is stopping.") if is_working else _("It does not run.")),
            f"{lost} {cut} {meanwhile}",
            True,
            status.state is EngineState.STALLED,
        ),
        EngineAction(
            "stop",
            _("Stop"),
            status.state not in {EngineState.STOPPED, EngineState.STOPPING},
            _("It is stopping.") if is_working else _("It does not run."),
            f"{lost} {cut} {stopped}",
            True,
            False,
        ),
    )


def _lost(host_memory: Fate, _: Gettext) -> str:
    """What a stop costs of the cache."""
    texts = {
        "kept": _("Its cached sessions in VRAM are lost; those in host memory stay for its next start."),
        "lost": _("Its cached sessions in VRAM and host memory are lost."),
        "none": _("Its cached sessions in VRAM are lost."),
    }
    return texts[host_memory]


def _meanwhile(engine: EngineNow, _: Gettext) -> str:
    if engine.others_serve:
        return _("New requests go to the other engines of its fleet.")
    return _("New requests wait at the door until it serves again.")


def _leftover(status: EngineStatus, language: Language) -> str:
    """`2 leftover processes, 70 GiB`; memory alone once the processes are gone and the driver still has it."""
    processes, held = status.leftover_processes, formats.size(status.leftover_bytes)
    if not processes:
        _ = language.gettext
        return "" if held.is_missing else _("%(size)s of its GPU memory is not given back yet") % {"size": held}
    text = language.ngettext("%(count)s leftover process", "%(count)s leftover processes", processes)
    text = text % {"count": processes}
    return text if held.is_missing else f"{text}, {held}"


def _facts(
    status: EngineStatus, numbers: EngineNumbers | None, in_flight: int, now: float, language: Language
) -> tuple[Fact, ...]:
    _ = language.gettext
    is_alive = status.state in ALIVE
    shown = present_numbers(status, numbers)
    wanted = f"{status.wanted_profile} v{status.wanted_version}"
    running = f"{status.wanted_profile} v{status.running_version}" if status.running_version is not None else wanted
    profile_href = f"/profiles/{quote(status.wanted_profile)}"
    facts = [
        Fact(_("Profile"), Quantity(running), profile_href),
        Fact(_("Running"), formats.count(shown.running)),
        Fact(_("Waiting"), formats.count(shown.waiting)),
        Fact(_("In flight at the door"), formats.count(in_flight), f"/requests?engine={quote(status.name)}"),
        Fact(_("Last token"), _last_token(status.last_token_at, now, language)),
        Fact(_("KV cache used"), formats.share(shown.kv_usage)),
        Fact(_("TTFT, median"), formats.duration(shown.ttft_p50_seconds)),
        Fact(_("Up for"), formats.duration(now - status.started_at if status.started_at and is_alive else None)),
        Fact(_("Process"), Quantity(str(status.pid)) if status.pid and is_alive else formats.NOTHING),
        Fact(_("Address"), Quantity(f"127.0.0.1:{status.port}")),
        Fact(_("Fleet"), Quantity(status.fleet), f"/fleets#fleet-{quote(status.fleet)}"),
        Fact(_("Model"), Quantity(Path(status.model).name, exact=status.model)),
    ]
    if status.devices:
        facts.append(Fact(_("Devices"), Quantity(",".join(status.devices))))
    if status.restart_for:
        waiting = field_labels(status.restart_for, _)
        facts.append(Fact(_("Restart to apply"), Quantity(waiting), f"/fleets#fleet-{quote(status.fleet)}"))
    if running != wanted:
        facts.insert(1, Fact(_("Next start uses"), Quantity(wanted), profile_href))
    return tuple(facts)


def _last_token(at: float | None, now: float, language: Language) -> Quantity:
    if at is None:
        return formats.NOTHING
    return Quantity(formats.relative(at, now, language.code), exact=formats.iso(at))


def _moves(transitions: Sequence[Transition], _: Gettext) -> tuple[Move, ...]:
    """Each state with how long it lasted; the newest one lasts still."""
    ends = [None, *(transition.at for transition in transitions)]
    return tuple(
        Move(
            transition.at,
            words.state_badge(transition.new_state, _),
            retold(transition.cause, _),
            formats.duration(None if end is None else max(0.0, end - transition.at)),
        )
        for transition, end in zip(transitions, ends, strict=False)
    )
