"""The engine page's object, from its status and its past. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from app.services.charts import EngineNumbers
from app.supervisor.states import ALIVE, EngineState
from app.supervisor.status import EngineStatus, Transition
from app.web import formats, words
from app.web.blocks import EngineAction, Fact, Move, Shell
from app.web.contexts import EnginePage
from app.web.formats import Quantity
from app.web.i18n import Gettext, Language

NOT_RUNNING = frozenset({EngineState.STOPPED, EngineState.FAILED})
CAN_START = frozenset({EngineState.STOPPED, EngineState.FAILED, EngineState.BACKOFF, EngineState.DRAINING})
CAN_RESTART = (ALIVE - {EngineState.STOPPING}) | {EngineState.BACKOFF}
CAN_DRAIN = frozenset({EngineState.READY, EngineState.STALLED})


def engine_page(
    shell: Shell,
    language: Language,
    status: EngineStatus,
    transitions: Sequence[Transition],
    numbers: EngineNumbers | None,
    in_flight: int,
    log_dir: Path,
) -> EnginePage:
    """Everything the engine page shows; `transitions` newest first."""
    _ = language.gettext
    href = f"/engines/{quote(status.name)}"
    return EnginePage(
        shell=shell,
        refresh_href=href,
        name=status.name,
        badge=words.state_badge(status.state, _),
        since=status.since,
        cause=status.cause,
        advice=words.advice(status.error_code, _),
        phase=words.phase(status.phase or "", _),
        progress=status.progress if status.state is EngineState.STARTING else None,
        next_try_at=status.next_try_at,
        leftover=_leftover(status.leftover_processes, language),
        facts=_facts(status, numbers, in_flight, shell.now, _),
        actions=engine_actions(status, in_flight, language),
        moves=_moves(transitions, _),
        log_href=f"/events{href}/log",
        log_file=str(log_dir / f"{status.name}.log"),
    )


def engine_actions(status: EngineStatus, in_flight: int, language: Language) -> tuple[EngineAction, ...]:
    """The four buttons: which of them make sense now, and what each would do."""
    _ = language.gettext
    lost = _("Its cached sessions in VRAM and host memory are lost.")
    cut = _in_flight_sentence(in_flight, language)
    is_working = status.state is EngineState.STOPPING
    draining = status.state is EngineState.DRAINING
    return (
        EngineAction(
            "start",
            _("Take requests again") if draining else _("Start"),
            status.state in CAN_START,
            _("It is running.") if status.state in ALIVE else "",
            "",
            False,
            status.state in NOT_RUNNING or draining,
        ),
        EngineAction(
            "drain",
            _("Drain"),
            status.state in CAN_DRAIN,
            _("Only a ready engine can be drained."),
            _("New requests wait at the door, those in flight finish. The cache stays. “Take requests again” ends it."),
            False,
            False,
        ),
        EngineAction(
            "restart",
            _("Restart"),
            status.state in CAN_RESTART,
            _("It is stopping.") if is_working else _("It does not run."),
            f"{lost} {cut} {_('Requests wait at the door until it is ready again.')}",
            True,
            False,
        ),
        EngineAction(
            "stop",
            _("Stop"),
            status.state not in {EngineState.STOPPED, EngineState.STOPPING},
            _("It is stopping.") if is_working else _("It does not run."),
            f"{lost} {cut} {_('It serves nobody until it is started again.')}",
            True,
            False,
        ),
    )


def _in_flight_sentence(in_flight: int, language: Language) -> str:
    text = language.ngettext(
        "%(count)s request is in flight and is waited for.",
        "%(count)s requests are in flight and are waited for.",
        in_flight,
    )
    return text % {"count": in_flight}


def _leftover(processes: int, language: Language) -> str:
    if not processes:
        return ""
    text = language.ngettext("%(count)s leftover process", "%(count)s leftover processes", processes)
    return text % {"count": processes}


def _facts(
    status: EngineStatus, numbers: EngineNumbers | None, in_flight: int, now: float, _: Gettext
) -> tuple[Fact, ...]:
    is_alive = status.state in ALIVE
    shown = numbers if numbers and is_alive else EngineNumbers()
    wanted = f"{status.wanted_profile} v{status.wanted_version}"
    running = f"{status.wanted_profile} v{status.running_version}" if status.running_version is not None else wanted
    profile_href = f"/profiles/{quote(status.wanted_profile)}"
    facts = [
        Fact(_("Profile"), Quantity(running), profile_href),
        Fact(_("Running"), formats.count(shown.running)),
        Fact(_("Waiting"), formats.count(shown.waiting)),
        Fact(_("In flight at the door"), formats.count(in_flight)),
        Fact(_("KV cache used"), formats.share(shown.kv_usage)),
        Fact(_("TTFT, median"), formats.duration(shown.ttft_p50_seconds)),
        Fact(_("Up for"), formats.duration(now - status.started_at if status.started_at and is_alive else None)),
        Fact(_("Process"), Quantity(str(status.pid)) if status.pid and is_alive else formats.NOTHING),
        Fact(_("Address"), Quantity(f"127.0.0.1:{status.port}")),
        Fact(_("Model"), Quantity(Path(status.model).name, exact=status.model)),
    ]
    if running != wanted:
        facts.insert(1, Fact(_("Next start uses"), Quantity(wanted), profile_href))
    return tuple(facts)


def _moves(transitions: Sequence[Transition], _: Gettext) -> tuple[Move, ...]:
    """Each state with how long it lasted; the newest one lasts still."""
    ends = [None, *(transition.at for transition in transitions)]
    return tuple(
        Move(
            transition.at,
            words.state_badge(transition.new_state, _),
            transition.cause,
            formats.duration(None if end is None else max(0.0, end - transition.at)),
        )
        for transition, end in zip(transitions, ends, strict=False)
    )
