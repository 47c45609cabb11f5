"""From a profile to the command line of an engine. Pure: what the environment holds is handed in."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from app.derive.profile_text import DECK_FLAGS, DEVICES_VARIABLE, FLAG_NAME, VARIABLE_NAME
from app.errors import InvalidInput
from app.supervisor.status import FleetSettings

#: The program that the interpreter runs. Tests put another one in its place.
ENTRY: tuple[str, ...] = ("-m", "vllm.entrypoints.openai.api_server")

#: Every process of one start carries this variable with the same value, whatever it renames itself to.
MARKER_VARIABLE = "TIERDECK_ENGINE_MARKER"

#: Paths that the deck itself asks every few seconds; in the log they would bury all else.
QUIET_PATHS = "/health,/metrics"


#: Loaded into the engine's server, so that a rollout's canary can be read back from host memory.
DEVICE_CACHE = "engine.device_cache.DeviceCache"


@dataclass(frozen=True)
class LaunchPlan:
    """What is executed: `environment` is the whole environment of the child."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Profile:
    """The content of one profile version."""

    name: str
    number: int
    version_id: int
    kv_transfer_config: Mapping[str, Any]
    flags: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """What a fleet gives every start of an engine. Kept with the start, to tell later what has changed since."""

    model: str
    served_model_name: str
    interpreter: str
    base_flags: Mapping[str, Any]
    environment: Mapping[str, str]
    devices: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Given:
        """What `as_json` made."""
        return cls(**{**kept, "devices": tuple(kept["devices"])})

    def differing(self, other: Given) -> tuple[str, ...]:
        """Names of the fields that are not the same."""
        names = (one.name for one in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True)
class EngineSpec:
    """Everything that a start of an engine depends on."""

    engine_id: int
    name: str
    fleet_id: int
    fleet: str
    model: str
    served_model_name: str
    interpreter: str
    host: str
    port: int
    profile: Profile
    entry: tuple[str, ...] = ENTRY
    base_flags: Mapping[str, Any] = field(default_factory=dict)
    """The fleet's; a profile's flag of the same name wins."""
    base_environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    """The devices it sees; empty = all."""
    settings: FleetSettings = field(default_factory=FleetSettings)
    leaving: bool = False
    """It is out of service; only what is left of it is still supervised."""

    @property
    def flags(self) -> dict[str, Any]:
        """The flags it is started with: the fleet's, then the profile's. A profile takes one away with None."""
        return {**self.base_flags, **self.profile.flags}

    @property
    def environment(self) -> dict[str, str]:
        """The variables set for it: the fleet's, then the profile's, then its devices."""
        own = {**self.base_environment, **self.profile.environment}
        return {**own, DEVICES_VARIABLE: ",".join(self.devices)} if self.devices else own

    @property
    def given(self) -> Given:
        """What comes from the fleet."""
        return Given(
            self.model,
            self.served_model_name,
            self.interpreter,
            self.base_flags,
            self.base_environment,
            self.devices,
        )

    @property
    def base_url(self) -> str:
        """Where the engine answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def launch_plan(
    spec: EngineSpec, marker: str, base_environment: Mapping[str, str], import_root: str | None = None
) -> LaunchPlan:
    """The command for one start of `spec`.

    `import_root` is put behind PYTHONPATH; needed when the interpreter belongs to an environment in
    which Tierdeck is not installed, so that the engine finds the package `engine`.
    """
    environment = {**base_environment, **_engine_environment(spec), MARKER_VARIABLE: marker}
    if import_root is not None:
        paths = [path for path in (environment.get("PYTHONPATH"), import_root) if path]
        environment["PYTHONPATH"] = ":".join(paths)
    return LaunchPlan((*engine_argv(spec), *_deck_arguments(spec)), environment)


def engine_argv(spec: EngineSpec) -> tuple[str, ...]:
    """The argument list; no shell ever sees it."""
    config = dict(spec.profile.kv_transfer_config)
    return (
        spec.interpreter,
        *spec.entry,
        *("--model", spec.model),
        *("--served-model-name", spec.served_model_name),
        *("--host", spec.host),
        *("--port", str(spec.port)),
        *(
            ()
            if "disable-access-log-for-endpoints" in spec.flags
            else ("--disable-access-log-for-endpoints", QUIET_PATHS)
        ),
        *flag_arguments(spec.flags),
        *(("--kv-transfer-config", json.dumps(config, ensure_ascii=False)) if config else ()),
    )


def _deck_arguments(spec: EngineSpec) -> tuple[str, ...]:
    """What only the deck has a use for; not part of the command for a shell."""
    return ("--middleware", DEVICE_CACHE) if spec.profile.kv_transfer_config else ()


def shell_command(spec: EngineSpec) -> str:
    """The same start as one line to be pasted into a shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(_engine_environment(spec).items())]
    return " ".join(("env", *variables, shlex.join(engine_argv(spec))))


def flag_arguments(flags: Mapping[str, Any]) -> list[str]:
    """`{"max-model-len": 32768, "enforce-eager": True}` -> `["--max-model-len", "32768", "--enforce-eager"]`.

    False gives the negated flag (`--no-enable-prefix-caching`), None leaves the flag out, a list gives
    its values behind the flag, an object is given as JSON.
    """
    arguments: list[str] = []
    for name, value in flags.items():
        _check_flag_name(name)
        arguments += _flag(name, value)
    return arguments


def is_path_like(model: str) -> bool:
    """True when `model` can only be meant as a path, not as the name of a model on a hub."""
    return model.startswith(("/", "./", "../", "~"))


def _flag(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    values = [_text(item) for item in value] if isinstance(value, list | tuple) else [_text(value)]
    if len(values) == 1 and values[0].startswith("-"):
        return [f"--{name}={values[0]}"]  # behind a space it would be read as a flag
    return [f"--{name}", *values]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _check_flag_name(name: str) -> None:
    if not FLAG_NAME.match(name):
        raise InvalidInput(
            f"{name!r} is not the name of a flag; write it without dashes in front, like max-model-len.",
            path=f"flags.{name}",
        )
    if name in DECK_FLAGS:
        raise InvalidInput(f"The flag {name} is set by the deck; take it out of the profile.", path=f"flags.{name}")


def _engine_environment(spec: EngineSpec) -> dict[str, str]:
    fixed = {
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # a changed process title must not overwrite the environment, where the marker is
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if is_path_like(spec.model):
        fixed["HF_HUB_OFFLINE"] = "1"
    own = spec.environment
    for name, value in own.items():
        if not VARIABLE_NAME.match(name) or "\0" in value:
            raise InvalidInput(f"{name!r} cannot be an environment variable.", path=f"environment.{name}")
    return {**fixed, **own}
