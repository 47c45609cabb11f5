"""The rule on engines that serve no more and will not by themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from app.alerts.phrases import Phrase
from app.alerts.rules import Judgement, LooksAt, Observation, number, refuse_unknown
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

DOWN = frozenset({EngineState.FAILED, EngineState.STALLED})


@dataclass(frozen=True)
class EngineDown:
    """An engine was given up after equal failures, or is stalled. An engine that is being tried again is neither."""

    looks_at: ClassVar[LooksAt] = "engines"

    hold_seconds: float = 0.0

    @classmethod
    def parse(cls, parameters: Mapping[str, Any]) -> Self:
        """Check and complete `parameters`. Raises InvalidInput that names the field."""
        known = asdict(cls())
        refuse_unknown(parameters, known)
        return cls(hold_seconds=number({**known, **parameters}, "hold_seconds", 0, 86_400, 60))

    @property
    def window_seconds(self) -> float:
        """It looks at the present alone."""
        return 0.0

    def judge(self, observation: Observation) -> Judgement:
        """Bad while one is down; good when every one serves, or is stopped as it should be."""
        engines, evidence = observation.engines, self._evidence(observation.engines)
        if not engines:
            return Judgement("no_data", Phrase.NO_DATA % {"why": Phrase.NO_ENGINE}, None, evidence)
        if down := [engine for engine in engines if engine.state in DOWN]:
            names = tuple(engine.name for engine in down)
            sentence = " ".join(_told(engine) for engine in down)
            return Judgement("bad", sentence, _reading(down), evidence, names)
        if moving := [engine for engine in engines if not _is_fine(engine)]:
            return Judgement("idle", f"{_reading(moving)}.", None, evidence)
        return Judgement("good", f"{_reading(engines)}.", _reading(engines), evidence)

    def parameters(self) -> dict[str, Any]:
        """The parameters by name, every default written out."""
        return asdict(self)

    def _evidence(self, engines: Iterable[EngineStatus]) -> dict[str, Any]:
        told = {
            engine.name: {
                "state": engine.state.value,
                "since": engine.since,
                "cause": engine.cause,
                "error_code": engine.error_code,
            }
            for engine in engines
        }
        return {"engines": told, **self.parameters()}


def _is_fine(engine: EngineStatus) -> bool:
    if engine.state is EngineState.READY:
        return True
    return engine.state is EngineState.STOPPED and engine.wanted == "stopped"


def _reading(engines: Iterable[EngineStatus]) -> str:
    return ", ".join(f"{engine.name} is {engine.state.value}" for engine in engines)


def _told(engine: EngineStatus) -> str:
    phrase = Phrase.GIVEN_UP if engine.state is EngineState.FAILED else Phrase.STALLED
    return phrase % {"engine": engine.name, "cause": engine.cause}
