"""What the deck says: states, sentences and advice, in the reader's language. Pure.

Services tell codes and numbers; every word of the pages that depends on them is made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.derive.headline import Headline
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from app.web import formats
from app.web.blocks import Sentence, StateBadge
from app.web.i18n import Gettext, Language
from app.web.retold import retold

_WAITING_FOR_MEMORY = re.compile(
    r"Waiting for GPU memory: (?P<free>[\d.]+) of (?P<wanted>[\d.]+) GiB free on GPU (?P<gpu>\d+)"
)
_WAITING_FOR_TURN = re.compile(r"Waiting for (?P<engine>.+), which loads on the same GPU")


def state_badge(state: EngineState, _: Gettext) -> StateBadge:
    """An engine's state as word and tone."""
    match state:
        case EngineState.READY:
            return StateBadge(state.value, _("ready"), "good")
        case EngineState.STARTING:
            return StateBadge(state.value, _("starting"), "working")
        case EngineState.DRAINING:
            return StateBadge(state.value, _("draining"), "working")
        case EngineState.STOPPING:
            return StateBadge(state.value, _("stopping"), "working")
        case EngineState.STALLED:
            return StateBadge(state.value, _("stalled"), "warning")
        case EngineState.BACKOFF:
            return StateBadge(state.value, _("backoff"), "warning")
        case EngineState.FAILED:
            return StateBadge(state.value, _("failed"), "failed")
        case EngineState.STOPPED:
            return StateBadge(state.value, _("stopped"), "off")


def engine_badge(engine: EngineStatus, _: Gettext) -> StateBadge:
    """What an engine is doing: its state, unless it is ready and requests are kept from it."""
    if engine.state is EngineState.READY and engine.held:
        return StateBadge(engine.state.value, _("held back"), "working")
    return state_badge(engine.state, _)


def runs(version: str | None, _: Gettext) -> str:
    """What an engine's process was started with, `profile v3`; None without a process."""
    return _("runs %(version)s") % {"version": version} if version else _("runs nothing")


def loop_fault(name: str, why: str, _: Gettext) -> str:
    """Which of the deck's own works fails, and why."""
    works = {
        "scrape": _("reading the engines' numbers"),
        "alerts": _("judging the alert rules"),
        "delivery": _("sending to the webhooks"),
        "requests": _("recording requests"),
        "request origins": _("completing the records of requests"),
        "retention": _("removing what is old"),
    }
    values = {"work": works.get(name, name), "why": why}
    return _("The deck does not get on with %(work)s, and tries again every few seconds: %(why)s") % values


def advice(error_code: str | None, _: Gettext) -> str:
    """What to do about an engine that did not start, beside the supervisor's own sentence."""
    texts = {
        "model_not_found": _("Give the fleet a model directory or a hub name that exists, then start again."),
        "unsupported_architecture": _("Serve another model, or an engine version that knows this one."),
        "interpreter_not_found": _("Set TIERDECK_ENGINE_PYTHON to the interpreter that has vLLM, then start again."),
        "engine_not_installed": _("Set TIERDECK_ENGINE_PYTHON to the interpreter that has vLLM, then start again."),
        "torchvision_broken": _("Uninstall torchvision from the engine's environment, then start again."),
        "port_in_use": _(
            "Stop what listens on the port, and the engine starts by itself. Else it moves to another of its fleet."
        ),
        "config_rejected": _("Correct the profile, save it as a new version and apply that."),
        "unknown_argument": _("Correct the profile, save it as a new version and apply that."),
        "kv_memory": _("Lower max-model-len in the profile, or give the KV cache more memory."),
        "out_of_memory": _("Lower the host tier, the KV cache or the maximum length in the profile, then start again."),
        "device_memory_busy": _("End the process that holds the memory, or ask for less in the profile."),
        "shared_memory_full": _("Free space in /dev/shm, or lower the host tier in the profile."),
        "start_timeout": _("Read the log's last lines. Raise TIERDECK_START_TIMEOUT_SECONDS if it is only slow."),
        "halted": _("Let the process go on (kill -CONT), or restart the engine."),
        "requests_stuck": _("Restart it if no token comes; requests in flight are lost then."),
        "no_token": _("Restart it if no token comes; requests in flight are lost then."),
        "output_handler_dead": _("Drain it and restart it: requests in flight will not be finished."),
        "crashed": _("Read the log's last lines. The deck tries again by itself, with growing pauses."),
    }
    return texts.get(error_code or "", "")


def phase(sentence: str, _: Gettext) -> str:
    """A start-up phase in the reader's language; one that is not known here stays as it came."""
    texts = {
        "Ending what the last run left": _("Ending what the last run left"),
        "Checking model, port and memory": _("Checking model, port and memory"),
        "Starting the interpreter": _("Starting the interpreter"),
        "Asking an engine found running whether it serves": _("Asking an engine found running whether it serves"),
        "Reading the configuration": _("Reading the configuration"),
        "Starting the engine core": _("Starting the engine core"),
        "Loading the weights": _("Loading the weights"),
        "Weights loaded": _("Weights loaded"),
        "Compiling": _("Compiling"),
        "Allocating the KV cache": _("Allocating the KV cache"),
        "Capturing graphs": _("Capturing graphs"),
        "Engine core ready": _("Engine core ready"),
        "Starting the API server": _("Starting the API server"),
        "Waiting for a first token": _("Waiting for a first token"),
    }
    return texts.get(sentence) or _waiting(sentence, _)


def _waiting(sentence: str, _: Gettext) -> str:
    """What a start waits for, with its numbers."""
    if found := _WAITING_FOR_MEMORY.fullmatch(sentence):
        return _("Waiting for GPU memory: %(free)s of %(wanted)s GiB free on GPU %(gpu)s") % found.groupdict()
    if found := _WAITING_FOR_TURN.fullmatch(sentence):
        return _("Waiting for %(engine)s, which loads on the same GPU") % found.groupdict()
    return sentence


def in_flight_sentence(in_flight: int, language: Language) -> str:
    """What a drain waits for."""
    text = language.ngettext(
        "%(count)s request is in flight and is waited for.",
        "%(count)s requests are in flight and are waited for.",
        in_flight,
    )
    return text % {"count": in_flight}


def reason(code: str | None, _: Gettext) -> str:
    """Why a number is missing or not whole."""
    texts = {
        "no_engine": _("There is no engine."),
        "no_requests_yet": _("No requests yet."),
        "idle": _("No requests in this window."),
        "no_data": _("No data."),
        "scrape_failed": _("The engine's numbers cannot be read."),
        "not_running": _("The engine does not run."),
        "starting": _("The engine is starting; numbers come when it is ready."),
        "window_starts_before_data": _("Recording began inside this window."),
        "missing_metric": _("The engine does not tell this."),
    }
    if not code:
        return ""
    return texts.get(code, code if " " in code else _("No data (%(code)s).") % {"code": code})


def sentence(headline: Headline, language: Language, engine_href: str) -> Sentence:
    """The overview's one sentence."""
    _ = language.gettext
    values = _Values(headline.values)
    open_engine = (_("Open the engine"), engine_href)
    match headline.code:
        case "no_engine":
            detail = _("Add a fleet, and its engines are started.")
            return Sentence(
                "empty", _("No engine is set up."), detail, action_label=_("Add a fleet"), action_href="/fleets"
            )
        case "starting":
            detail = _("Requests wait at the door and are served as soon as it is ready.")
            cause = _join(retold(values.text("cause"), _), detail)
            return Sentence("idle", _("The engine is starting."), cause, values.number("since"), *open_engine)
        case "stopped":
            detail = _("Start one to serve requests.")
            return Sentence("idle", _("No engine runs."), detail, values.number("since"), *open_engine)
        case "stalled":
            text = _("The engine is stalled: requests wait and no token comes out.")
            return Sentence("failed", text, retold(values.text("cause"), _), values.number("since"), *open_engine)
        case "down":
            cause = retold(values.text("cause"), _)
            return Sentence("failed", _down(values, _), cause, values.number("since"), *open_engine)
        case "empty":
            detail = _(
                "Send a request through the deck, or run “tierdeck demo-traffic”; the charts fill within seconds."
            )
            return Sentence("empty", _("Ready. No requests yet."), detail)
        case "few_tokens":
            tokens = formats.count(values.number("input_tokens"), "tok")
            detail = _(
                "Send a request through the deck, or run “tierdeck demo-traffic”; the charts fill within seconds."
            )
            return Sentence("empty", _("Ready. Only %(tokens)s of input so far.") % {"tokens": tokens}, detail)
        case "no_data":
            return Sentence("empty", _("No data yet."), reason(values.text("reason"), _))
        case "idle":
            return _idle(values, _)
    return _with_traffic(headline, values, language)


def _down(values: _Values, _: Gettext) -> str:
    if values.text("reason") == "scrape_failed":
        return _("No data: the engine's numbers cannot be read.")
    return _("No engine serves requests.")


def _idle(values: _Values, _: Gettext) -> Sentence:
    share = formats.share(values.number("last_cached_share"))
    text = _("Idle: no requests in this window.")
    if share.is_missing:
        return Sentence("idle", text)
    detail = _("When requests last came, %(share)s of input tokens came from cache.")
    return Sentence("idle", text, detail % {"share": share}, values.number("last_at"))


def _with_traffic(headline: Headline, values: _Values, language: Language) -> Sentence:
    _ = language.gettext
    cached = formats.share(values.number("cached_share"))
    parts = _("VRAM %(vram)s, host memory %(host)s.") % {
        "vram": formats.share(values.number("vram_share")),
        "host": formats.share(values.number("host_share")),
    }
    match headline.code:
        case "works":
            text = _("The cache works: %(share)s of input tokens came from cache.") % {"share": cached}
            return Sentence("good", text, parts)
        case "cold":
            text = _("The cache hardly helps: %(share)s of input tokens came from cache.") % {"share": cached}
            return Sentence("warning", text, _("Most input is new to the engine, or was evicted before it came back."))
        case "state_slots_full":
            text = _("State slots give out: %(used)s of %(total)s used, %(rate)s evictions/min.") % {
                "used": formats.count(values.number("state_used")),
                "total": formats.count(values.number("state_total")),
                "rate": formats.count(values.number("evictions_per_minute")),
            }
            detail = _(
                "%(tokens)s were recomputed although host memory held them. A lower reference length keeps more states."
            )
            tokens = formats.count(values.number("avoidable_tokens"), "tok")
            return Sentence(
                "warning",
                text,
                detail % {"tokens": tokens},
                action_label=_("Change the profile"),
                action_href="/profiles",
            )
        case "write_only_tier":
            text = _("The host tier is only written: %(stored)s stored, nothing ever came back.") % {
                "stored": formats.size(values.number("stored_bytes"))
            }
            detail = _("Block size and cache type of the profile may keep blocks from being found again.")
            return Sentence("warning", text, detail, action_label=_("Check the profile"), action_href="/profiles")
    return Sentence("warning", headline.code.replace("_", " "), parts)


def rollout_label(state: str, _: Gettext) -> tuple[str, str]:
    """A rollout's state as tone and words."""
    texts = {
        "running": ("working", _("running")),
        "going_back": ("warning", _("going back")),
        "done": ("good", _("done")),
        "rolled_back": ("warning", _("rolled back")),
        "failed": ("failed", _("failed")),
        "cancelled": ("off", _("cancelled")),
    }
    return texts.get(state, ("off", state))


def delivery_label(state: str, _: Gettext) -> tuple[str, str]:
    """A delivery's state as tone and words."""
    texts = {
        "pending": ("working", _("waiting")),
        "sending": ("working", _("sending")),
        "delivered": ("good", _("delivered")),
        "failed": ("failed", _("failed")),
    }
    return texts.get(state, ("off", state))


def alert_badge(state: str, _: Gettext) -> StateBadge:
    """An alert's state as word and tone."""
    match state:
        case "firing":
            return StateBadge(state, _("firing"), "failed")
        case "pending":
            return StateBadge(state, _("about to fire"), "warning")
        case "ok":
            return StateBadge(state, _("ok"), "good")
        case "idle":
            return StateBadge(state, _("idle"), "off")
        case "test":
            return StateBadge(state, _("test"), "off")
    return StateBadge(state, _("no data"), "off")


class _Values:
    """A headline's values, read with their types."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def number(self, name: str) -> float | None:
        value = self._values.get(name)
        return float(value) if isinstance(value, int | float) else None

    def text(self, name: str) -> str:
        return str(self._values.get(name) or "")


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
