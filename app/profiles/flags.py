"""Engine flags and environment variables: names, types and bounds, as far as the deck knows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from app.derive.profile_text import (
    DECK_FLAGS,
    DEVICES_VARIABLE,
    FLAG_NAME,
    START_TIMEOUT,
    VARIABLE_NAME,
    read_seconds,
)
from app.profiles.context import Context
from app.profiles.finding import Finding, Fix, drop, error, fix, note, put, rename, warning
from app.profiles.sizes import MOST_GIB, read_number, read_whole, shown

FlagKind = Literal["tokens", "count", "bytes", "ratio", "yes", "word", "gib"]

KV_DTYPES: Final = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")

#: All that vLLM takes for it, on one platform or another.
EVERY_KV_DTYPE: Final = (
    *KV_DTYPES,
    *("fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla", "nvfp4", "nvfp4_4over6"),
    *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit"),
    *("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"),
)


@dataclass(frozen=True)
class Flag:
    """A flag that goes with the cache: what it takes and between which bounds."""

    name: str
    kind: FlagKind
    least: float = 1
    most: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Texts that it takes beside numbers."""
    is_strict: bool = True
    """False: the engine may know choices beyond these."""


#: As the planner has it; no machine has more devices.
MOST_RANKS: Final = 4096

#: What the form offers, in its order, and what is checked while typing. Other flags are judged by the engine.
FLAGS: Final[Mapping[str, Flag]] = {
    flag.name: flag
    for flag in (
        Flag("max-model-len", "tokens", words=("auto",)),
        Flag("gpu-memory-utilization", "ratio", 0.01, 1.0),
        Flag("kv-cache-memory-bytes", "bytes"),
        Flag("kv-cache-dtype", "word", choices=KV_DTYPES, is_strict=False),
        Flag("enable-prefix-caching", "yes"),
        Flag("mamba-cache-mode", "word", choices=("align", "none", "all")),
        Flag("prefix-cache-retention-interval", "tokens", 0),
        Flag("block-size", "tokens"),
        Flag("max-num-seqs", "count"),
        Flag("max-num-batched-tokens", "tokens"),
        Flag("tensor-parallel-size", "count", most=MOST_RANKS),
        Flag("pipeline-parallel-size", "count", most=MOST_RANKS),
        Flag("data-parallel-size", "count", most=MOST_RANKS),
        Flag("data-parallel-size-local", "count", 0, MOST_RANKS),
        Flag("enable-chunked-prefill", "yes"),
        Flag("enforce-eager", "yes"),
        Flag("kv-offloading-size", "gib", 0),
    )
}

#: A share of this or more was meant as per cent; between it and 1 nobody can tell what was.
PER_CENT_FROM: Final = 10
#: Of which plug-ins vLLM loads; a number there is never what was meant.
PLUGINS_VARIABLE: Final = "VLLM_PLUGINS"
WHOLE_KINDS: Final = ("tokens", "count", "bytes")


def check_flags(flags: Mapping[str, Any], needed: Mapping[str, bool] = MappingProxyType({})) -> list[Finding]:
    """Findings on engine flags: names without dashes in front, plain values or lists of them.

    `needed`: what switches must say in this profile, so that no fix writes what is refused next.
    """
    return [finding for name, value in flags.items() if (finding := _flag(name, value, flags, needed))]


def check_environment(environment: Mapping[str, Any]) -> list[Finding]:
    """Findings on environment variables: names as a shell takes them, texts as values."""
    return [finding for name, value in environment.items() if (finding := _variable(name, value))]


def check_base_flags(flags: Mapping[str, Any], base: Mapping[str, Any]) -> list[Finding]:
    """Where a profile says something else than its fleet: allowed, and worth knowing."""
    both = ((name, value, base[name]) for name, value in flags.items() if name in base)
    return [_wins(name, value, its) for name, value, its in both if value != its]


def _wins(name: str, value: Any, its: Any) -> Finding:
    path, remedy = f"flags.{name}", fix("Remove it", drop(f"flags.{name}"))
    if value is None:
        return note(
            path, "The fleet sets --%(name)s to %(its)s; this profile leaves it out.", name=name, its=shown(its)
        )
    sentence = "The fleet sets --%(name)s to %(its)s; this profile's %(value)s is taken."
    return note(path, sentence, remedy, name=name, its=shown(its), value=shown(value))


def check_base_environment(environment: Mapping[str, Any], context: Context) -> list[Finding]:
    """The same for variables, of which the fleet's devices are one that a profile cannot change."""
    found = []
    for name, value in environment.items():
        path = f"environment.{name}"
        remedy = fix("Remove it", drop(path))
        if name == DEVICES_VARIABLE and context.devices:
            devices = ",".join(context.devices)
            sentence = "%(name)s is passed over: the fleet gives its engines their devices, here %(devices)s."
            found.append(warning(path, sentence, remedy, name=name, devices=devices))
        elif name in context.base_environment and context.base_environment[name] != value:
            sentence = "The fleet sets %(name)s to %(its)s; this profile's %(value)s is taken."
            its = shown(context.base_environment[name])
            found.append(note(path, sentence, remedy, name=name, its=its, value=shown(value)))
    return found


def _flag(name: str, value: Any, flags: Mapping[str, Any], needed: Mapping[str, bool]) -> Finding | None:
    path = f"flags.{name}"
    if not FLAG_NAME.match(name):
        hint = name.lstrip("-").replace("_", "-").lower()
        is_good = bool(FLAG_NAME.match(hint)) and hint not in flags and _flag(hint, value, flags, needed) is None
        is_good = is_good and needed.get(hint, value) == value
        remedy = fix("Rename it to %(near)s", rename(path, f"flags.{hint}"), near=hint) if is_good else None
        sentence = 'Write flag names in small letters, words joined by dashes and none in front, as in "%(near)s".'
        return error(path, sentence, remedy, near=hint if FLAG_NAME.match(hint) else "max-model-len")
    if name in DECK_FLAGS:
        sentence = "Remove it: the deck sets --%(name)s from %(source)s."
        return error(path, sentence, fix("Remove it", drop(path)), name=name, source=DECK_FLAGS[name])
    if not _is_flag_value(value):
        return error(path, "Write a number, text, true, false, or a list of numbers or texts.")
    known = FLAGS.get(name)
    return None if known is None or value is None else _known(known, path, value, needed)


def _known(flag: Flag, path: str, value: Any, needed: Mapping[str, bool]) -> Finding | None:
    if flag.kind == "yes":
        return _yes(path, value, needed.get(flag.name))
    if flag.kind == "word":
        return _word(flag, path, value)
    if flag.kind in {"ratio", "gib"}:
        return _ratio(flag, path, value) if flag.kind == "ratio" else _gib(path, value)
    return _whole(flag, path, value)


def _yes(path: str, value: Any, needed: bool | None) -> Finding | None:
    if isinstance(value, bool):
        return None
    meant = (
        needed
        if needed is not None
        else {"true": True, "1": True, "": True, "false": False, "0": False}.get(str(value).lower())
    )
    near = {True: "true", False: "false"}.get(meant) if meant is not None else None
    remedy = None if near is None else fix("Write %(near)s", put(path, meant), near=near)
    return error(path, "Write %(wanted)s, not %(value)s.", remedy, wanted="true or false", value=shown(value))


def _word(flag: Flag, path: str, value: Any) -> Finding | None:
    if isinstance(value, str) and (value in flag.choices or not flag.is_strict):
        return None
    remedy = fix("Write %(near)s", put(path, flag.choices[0]), near=flag.choices[0])
    sentence = "Write one of %(choices)s, not %(value)s."
    return error(path, sentence, remedy, choices=", ".join(flag.choices), value=shown(value))


def _whole(flag: Flag, path: str, value: Any) -> Finding | None:
    if isinstance(value, str) and value in flag.words:
        return None
    number = read_whole(value)
    if number is None:
        return error(path, "Write %(wanted)s, not %(value)s.", wanted="a whole number", value=shown(value))
    if number < flag.least and not (flag.name == "max-model-len" and number == -1):
        return error(path, "%(value)s is too small: write %(least)s or more.", value=number, least=int(flag.least))
    if flag.most is not None and number > flag.most:
        return error(path, "%(value)s is too large: write %(most)s or less.", value=number, most=int(flag.most))
    return None


def _ratio(flag: Flag, path: str, value: Any) -> Finding | None:
    number = read_number(value)
    most = flag.most or 1.0
    if number is not None and 0 < number <= most:
        return None
    remedy = None
    if number is not None and PER_CENT_FROM <= number <= 100:
        near = f"{number / 100:g}"
        remedy = fix("Write %(near)s", put(path, number / 100), near=near)
    return error(path, "Write a share between 0 and 1, such as 0.9, not %(value)s.", remedy, value=shown(value))


def _gib(path: str, value: Any) -> Finding | None:
    number = read_number(value)
    if number is not None and 0 < number <= MOST_GIB:
        return None
    return error(path, "Write %(wanted)s, not %(value)s.", wanted="a number of GiB", value=shown(value))


def _is_flag_value(value: Any) -> bool:
    plain = (str, int, float, bool, type(None))
    if isinstance(value, list):
        return all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value)
    return isinstance(value, plain) and not (isinstance(value, str) and "\0" in value)


def _variable(name: str, value: Any) -> Finding | None:
    path = f"environment.{name}"
    if not VARIABLE_NAME.match(name):
        return error(path, "Write a name of letters, digits and underscores.")
    if name == START_TIMEOUT and isinstance(value, str) and read_seconds(value) is None:
        return error(path, "Write %(wanted)s, not %(value)s.", wanted="a number of seconds", value=shown(value))
    if name.startswith("TIERDECK_") and name != START_TIMEOUT:
        sentence = "Remove it: names that begin with TIERDECK_ belong to the deck."
        return error(path, sentence, fix("Remove it", drop(path)))
    if not isinstance(value, str) or "\0" in value:
        sentence = "Write the value as text in quotes, not %(value)s."
        remedy = None if name == PLUGINS_VARIABLE else _as_text(path, value)
        return error(path, sentence, remedy, value=shown(value))
    return None


def _as_text(path: str, value: Any) -> Fix | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return fix("Write %(near)s", put(path, str(value)), near=f'"{value}"')
