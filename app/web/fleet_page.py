"""The fleets' page: each fleet with its engines, what it is set to, and what can be done. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from app.fleets import devices
from app.fleets.content import ROUTINGS
from app.services.fleets import FleetView, NewEngine
from app.supervisor.status import EngineStatus
from app.web import formats, words
from app.web.blocks import Choice, Shell
from app.web.contexts import FleetsPage
from app.web.finding_words import told_error
from app.web.fleet_blocks import FleetBlock, FleetButton, FleetEngineLine, FleetFact
from app.web.i18n import Gettext, Language
from app.web.retold import why

HREF = "/fleets"
API = "/api/v1/fleets"


@dataclass(frozen=True)
class FleetFacts:
    """What the services told."""

    fleets: Sequence[tuple[FleetView, NewEngine]]
    """Each with what adding an engine to it would make."""
    profiles: Sequence[str]
    in_flight: Callable[[str], int]
    interpreter: str
    """Of the settings: what a new fleet starts with."""
    engine_port: int
    """Of the settings: where the ports of a fleet without a range begin."""


def fleets_page(shell: Shell, language: Language, facts: FleetFacts) -> FleetsPage:
    """Everything the fleets' page shows."""
    _ = language.gettext
    blank = {"profile": facts.profiles[0] if facts.profiles else "", "engines": "1", "interpreter": facts.interpreter}
    return FleetsPage(
        shell=shell,
        refresh_href=HREF,
        fleets=tuple(_block(view, new, facts, language) for view, new in facts.fleets),
        profiles=tuple(Choice(name, name) for name in facts.profiles),
        routings=tuple(Choice(name, routing_label(name, _)) for name in ROUTINGS),
        new=FleetButton(_("Add a fleet"), f"POST {API}", json.dumps(blank)),
    )


def routing_label(routing: str, _: Gettext) -> str:
    """How requests are dealt, in words."""
    labels = {
        "sticky": _("A session goes where its cache is"),
        "least_busy": _("To the least busy engine"),
    }
    return labels.get(routing, routing)


def _field_label(field: str, _: Gettext) -> str:
    """A field of a fleet, as the form calls it."""
    labels = {
        "model": _("Model"),
        "served_model_name": _("Served as"),
        "interpreter": _("Interpreter"),
        "base_flags": _("Engine flags"),
        "environment": _("Environment"),
        "devices": _("Devices"),
    }
    return labels.get(field, field)


def field_labels(fields: Sequence[str], _: Gettext) -> str:
    """Fields of a fleet in one line; empty when there are none."""
    return ", ".join(_field_label(field, _) for field in fields)


def _block(view: FleetView, new: NewEngine, facts: FleetFacts, language: Language) -> FleetBlock:
    _ = language.gettext
    content = view.content
    ready, every = sum(engine.serves for engine in view.engines), len(view.staying)
    form = {**content.as_json(), "devices": devices.as_text(content.devices)}
    form |= {name: _json(form[name]) for name in ("base_flags", "environment")}
    form |= {name: f"{form[name]:g}" for name in ("port_from", "port_to", "drain_timeout_seconds") if form[name]}
    return FleetBlock(
        name=view.name,
        summary=_("%(ready)s of %(every)s ready") % {"ready": ready, "every": every},
        tone="off" if not every else "good" if ready == every else "warning" if ready else "failed",
        facts=_facts(view, facts.engine_port, _),
        engines=tuple(_engine(engine, view, facts, language) for engine in view.engines),
        waits_for=field_labels(view.restart_for, _),
        change=FleetButton(_("Change %(name)s") % {"name": view.name}, f"PATCH {_api(view)}", json.dumps(form)),
        add=_add(new, _),
        delete=_delete(view, facts, language),
    )


def _facts(view: FleetView, engine_port: int, _: Gettext) -> tuple[FleetFact, ...]:
    content = view.content
    usual = _("%(port)s and upwards") % {"port": engine_port}
    ports = f"{content.port_from}–{content.port_to}" if content.port_from else usual
    seconds = content.drain_timeout_seconds
    drain = _("as the deck's setting") if seconds is None else str(formats.duration(seconds))
    facts = [
        FleetFact(_("Served as"), content.served_model_name),
        FleetFact(_("Model"), content.model, is_code=True),
        FleetFact(_("Interpreter"), content.interpreter, is_code=True),
        FleetFact(_("Requests"), routing_label(content.routing, _)),
        FleetFact(_("Identical prompts"), _("joined") if content.join_identical else _("each started")),
        FleetFact(_("Ports"), ports),
        FleetFact(_("Devices"), devices.as_text(content.devices) or _("every engine sees all")),
        FleetFact(_("Longest drain"), drain),
    ]
    for field in ("base_flags", "environment"):
        if value := getattr(content, field):
            facts.append(FleetFact(_field_label(field, _), json.dumps(value, ensure_ascii=False), is_code=True))
    return tuple(facts)


def _engine(engine: EngineStatus, view: FleetView, facts: FleetFacts, language: Language) -> FleetEngineLine:
    _ = language.gettext
    version = engine.running_version if engine.running_version is not None else engine.wanted_version
    return FleetEngineLine(
        name=engine.name,
        href=f"/engines/{quote(engine.name)}",
        badge=words.engine_badge(engine, _),
        since=engine.since,
        cause=why(engine, _) if not engine.serves else "",
        is_leaving=engine.leaving,
        waits_for=field_labels(engine.restart_for, _),
        port=engine.port,
        devices=",".join(engine.devices),
        profile=f"{engine.wanted_profile} v{version}",
        profile_href=f"/profiles/{quote(engine.wanted_profile)}?version={version}",
        in_flight=formats.count(facts.in_flight(engine.name)),
        remove=_remove(engine, view, facts, language),
    )


def _add(new: NewEngine, _: Gettext) -> FleetButton:
    what = _("%(name)s is started on port %(port)s with %(profile)s; requests go to it as soon as it is ready.") % {
        "name": new.name,
        "port": new.port,
        "profile": f"{new.profile} v{new.version}",
    }
    if new.devices:
        what += " " + _("It sees the devices %(devices)s.") % {"devices": ",".join(new.devices)}
    if new.host_bytes:
        what += " " + _("Its host tier takes %(size)s of memory.") % {"size": formats.size(new.host_bytes)}
    fill = json.dumps({"what": what})
    heading = _("Add an engine to %(name)s?") % {"name": new.fleet}
    why_not = "" if new.refusal is None else told_error(new.refusal, _)
    return FleetButton(heading, f"POST {API}/{quote(new.fleet)}/engines", fill, why_not)


def _remove(engine: EngineStatus, view: FleetView, facts: FleetFacts, language: Language) -> FleetButton:
    _ = language.gettext
    what = " ".join(
        (
            _("It gets no new requests."),
            words.in_flight_sentence(facts.in_flight(engine.name), language),
            _("Then it is stopped: its cached sessions in VRAM and host memory are lost."),
            _("What was recorded of it stays."),
        )
    )
    why_not = _("It is leaving already.") if engine.leaving else ""
    if len(view.staying) == 1 and not engine.leaving:
        why_not = _("It is the only engine; delete the fleet instead.")
    api = f"DELETE {_api(view)}/engines/{quote(engine.name)}"
    return FleetButton(_("Remove %(name)s?") % {"name": engine.name}, api, json.dumps({"what": what}), why_not)


def _delete(view: FleetView, facts: FleetFacts, language: Language) -> FleetButton:
    _ = language.gettext
    in_flight = sum(facts.in_flight(engine.name) for engine in view.engines)
    what = " ".join(
        (
            _("Nobody serves %(model)s any more.") % {"model": view.content.served_model_name},
            words.in_flight_sentence(in_flight, language),
            _("Then its engines are stopped: their cached sessions in VRAM and host memory are lost."),
            _("What was recorded of it stays."),
        )
    )
    heading = _("Delete the fleet %(name)s?") % {"name": view.name}
    return FleetButton(heading, f"DELETE {_api(view)}", json.dumps({"what": what}))


def _api(view: FleetView) -> str:
    return f"{API}/{quote(view.name)}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) if value else ""
