"""What an engine's interpreter knows against what a profile asks of it: the second and third depth. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.profiles import keys
from app.profiles.bounds import MOST_TOLD, first_told
from app.profiles.check import Checked
from app.profiles.context import ModelFacts
from app.profiles.finding import CONFIG, EXTRA, Finding, drop, error, fix, note, put, rename, warning
from app.profiles.nearest import nearest
from app.profiles.sizes import shown
from app.profiles.transfer import is_ours

OUR_MODULE: Final = "engine."
_ABOUT_MEMORY: Final = re.compile(r"KV cache|max_model_len|max seq len|memory", re.IGNORECASE)
#: What a question is called in `unanswered`.
_PART_WORDS: Final[Mapping[str, str]] = {
    "flags": "its flags",
    "connectors": "its connectors",
    "specs": "its offloading specs",
    "architectures": "its model architectures",
    "platform": "its platform",
    "arguments": "its reading of the arguments",
    "configuration": "its configuration",
    "kv_sizing": "the size of the KV cache",
}


def check_engine(
    checked: Checked,
    flags: Mapping[str, Any] | None,
    connectors: Sequence[str] | None,
    architectures: Sequence[str] | None,
    model: ModelFacts | None,
) -> list[Finding]:
    """Flags, connector name and architecture against the lists that the interpreter gave; None = it gave none."""
    found: list[Finding] = []
    if flags is not None:
        strange = [name for name, value in checked.flags.items() if value is not None and name not in flags]
        told = {name: value for name, value in checked.flags.items() if name not in strange[MOST_TOLD:]}
        judged = [one for name, value in told.items() if (one := _flag(name, value, flags, checked.flags))]
        found += first_told(judged, strange, "flags", MOST_TOLD)
    if connectors is not None:
        found += _connector_name(checked.kv_transfer_config, connectors)
    if architectures is not None and model is not None and model.architectures:
        found += _architecture(model, architectures)
    return found


def check_connector(checked: Checked, told: Mapping[str, Any], model: ModelFacts | None) -> list[Finding]:
    """What came of importing the connector and its spec."""
    path = f"{CONFIG}.kv_connector"
    if told["error"]:
        return [error(path, "The interpreter cannot import it: %(why)s.", why=str(told["error"]).rstrip("."))]
    found = []
    if told["hybrid"] is False and model is not None and model.is_hybrid:
        sentence = "%(name)s does not serve hybrid models such as this one."
        found.append(error(path, sentence, name=str(told["connector"]).rpartition(".")[2]))
    spec = told.get("spec")
    if is_ours(checked.kv_transfer_config) and spec and not spec.startswith(OUR_MODULE):
        sentence = (
            "In this interpreter the name stands for %(spec)s: the deck's plug-in is not installed there. "
            "Install tierdeck in the engine's environment."
        )
        found.append(warning(f"{EXTRA}.spec_name", sentence, spec=spec))
    return found


def check_dry_run(told: Mapping[str, Any]) -> list[Finding]:
    """Where the engine's own reading ended."""
    return [finding for step in told["steps"] if (finding := _step(step, told.get("numbers", {})))]


def unanswered(reasons: Mapping[str, str]) -> list[Finding]:
    """What the interpreter could not be asked."""
    return [_not_told(part, why) for part, why in reasons.items()]


def not_heard(why: str, *, is_fatal: bool = False) -> Finding:
    """The interpreter gave no answer at all."""
    sentence = "The interpreter was not heard: %(why)s."
    return (error if is_fatal else note)("engine", sentence, why=why.rstrip("."))


def no_dry_run() -> Finding:
    """A profile with errors is not tried."""
    return note("engine", "There is no dry run of a profile with errors; correct them first.")


def _not_told(part: str, why: str) -> Finding:
    sentence = "The interpreter does not tell %(part)s: %(why)s."
    return note("engine", sentence, part=_PART_WORDS.get(part, part), why=why.rstrip("."))


def _step(step: Mapping[str, Any], numbers: Mapping[str, Any]) -> Finding | None:
    if step["ok"]:
        return None
    why = str(step["error"]).rstrip(".")
    if step["ok"] is None or (step["name"] == "kv_sizing" and not _ABOUT_MEMORY.search(why)):
        return _not_told(str(step["name"]), why)
    return error("flags", "The engine refuses this: %(why)s.", why=why)


def _flag(name: str, value: Any, known: Mapping[str, Any], flags: Mapping[str, Any]) -> Finding | None:
    path = f"flags.{name}"
    if value is None:
        return None
    if name not in known:
        return _unknown_flag(path, name, known, flags)
    takes_value, choices = bool(known[name]["takes_value"]), known[name]["choices"]
    if value is False and f"no-{name}" not in known:
        sentence = "--%(name)s cannot be turned off by false; leave it out."
        return error(path, sentence, fix("Remove it", drop(path)), name=name)
    if takes_value and value is True:
        return error(path, "--%(name)s needs a value.", name=name)
    if not takes_value and not isinstance(value, bool):
        remedy = fix("Write %(near)s", put(path, True), near="true")
        return error(path, "--%(name)s takes no value: write true or false.", remedy, name=name)
    if choices and isinstance(value, str) and value not in choices:
        near = nearest(value, choices)
        offered = None if near is None else fix("Write %(near)s", put(path, near), near=near)
        sentence = "This engine takes one of %(choices)s, not %(value)s."
        return error(path, sentence, offered, choices=", ".join(choices), value=shown(value))
    return None


def _unknown_flag(path: str, name: str, known: Mapping[str, Any], flags: Mapping[str, Any]) -> Finding:
    near = nearest(name, known)
    if near is None:
        sentence = "This engine knows no flag --%(name)s and would not start."
        return error(path, sentence, fix("Remove it", drop(path)), name=name)
    remedy = drop(path) if near in flags else rename(path, f"flags.{near}")
    remedied = fix("Remove it", remedy) if near in flags else fix("Rename it to %(near)s", remedy, near=near)
    sentence = "This engine knows no flag --%(name)s and would not start; did you mean --%(near)s?"
    return error(path, sentence, remedied, name=name, near=near)


def _connector_name(config: Mapping[str, Any], known: Sequence[str]) -> Iterable[Finding]:
    name = config.get("kv_connector")
    if not isinstance(name, str) or name in known or config.get("kv_connector_module_path"):
        return
    path, near = f"{CONFIG}.kv_connector", nearest(name, known) or keys.OFFLOADING
    sentence = "This engine knows no connector %(name)s; the nearest is %(near)s."
    yield error(path, sentence, fix("Write %(near)s", put(path, near), near=near), name=name, near=near)


def _architecture(model: ModelFacts, known: Sequence[str]) -> Iterable[Finding]:
    if not any(one in known for one in model.architectures):
        sentence = "This engine does not know the model's architecture %(names)s."
        yield error("model", sentence, names=", ".join(model.architectures))
