"""Where input tokens came from, by what the engine's counters gained. Pure.

vLLM splits each prompt once, when it is first scheduled: found in VRAM, fetched through the
connector, computed. The split always adds up to the prompt: a prompt's last token is computed
even when all before it was cached. Engines without the split tell VRAM and host hits apart from the
prompt total; the rest was computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.scrape.names import SeriesKey

SOURCE_METRICS = ("prompt_tokens_by_source", "prompt_tokens", "prefix_hits", "external_hits", "host_lookup_tokens")


@dataclass(frozen=True)
class Origin:
    """Tokens by where they came from. `avoidable` is a part of `recomputed`, never more than it.

    None means that the engine does not tell; nothing is guessed.
    """

    vram: float | None = None
    host: float | None = None
    recomputed: float | None = None
    avoidable: float | None = None

    @property
    def input(self) -> float | None:
        """All input tokens: the sum of the three parts."""
        if self.vram is None or self.host is None or self.recomputed is None:
            return None
        return self.vram + self.host + self.recomputed

    @property
    def cached_share(self) -> float | None:
        """The share that no one had to compute; None without traffic."""
        total = self.input
        if not total or self.recomputed is None:
            return None
        return (total - self.recomputed) / total


UNKNOWN = Origin()


def origin(increases: Mapping[SeriesKey, float]) -> Origin:
    """Split the tokens of a stretch of time, given what each counter gained in it."""
    by_source = {key.label("source"): gained for key, gained in _of(increases, "prompt_tokens_by_source")}
    if by_source:
        # A source that is missing beside the others has not been counted up yet.
        vram, host, recomputed = (
            by_source.get(source, 0.0) for source in ("local_cache_hit", "external_kv_transfer", "local_compute")
        )
        return _with_avoidable(vram, host, recomputed, increases)
    return _from_hits(increases)


def together(origins: Iterable[Origin]) -> Origin:
    """The sum over engines; a part that one of them does not know is not known."""
    parts = list(origins)
    if not parts:
        return UNKNOWN
    return Origin(
        _sum(part.vram for part in parts),
        _sum(part.host for part in parts),
        _sum(part.recomputed for part in parts),
        _sum(part.avoidable for part in parts),
    )


def shares(part: Origin) -> tuple[float, float, float, float] | None:
    """VRAM, host, avoidable and other recompute as shares that add up to 1; None without traffic."""
    total = part.input
    if not total or part.vram is None or part.host is None or part.recomputed is None:
        return None
    avoidable = part.avoidable or 0.0
    return part.vram / total, part.host / total, avoidable / total, (part.recomputed - avoidable) / total


def _from_hits(increases: Mapping[SeriesKey, float]) -> Origin:
    prompt, vram, host = (increases.get(SeriesKey(name)) for name in ("prompt_tokens", "prefix_hits", "external_hits"))
    if prompt is None or vram is None or host is None:
        return UNKNOWN
    return _with_avoidable(vram, host, max(0.0, prompt - vram - host), increases)


def _with_avoidable(vram: float, host: float, recomputed: float, increases: Mapping[SeriesKey, float]) -> Origin:
    lookups = {key.label("outcome"): gained for key, gained in _of(increases, "host_lookup_tokens")}
    if not lookups:
        return Origin(vram, host, recomputed)
    # A lookup may be repeated for a request that waits, so it can count more than was computed.
    return Origin(vram, host, recomputed, min(lookups.get("state_missing", 0.0), recomputed))


def _of(increases: Mapping[SeriesKey, float], name: str) -> list[tuple[SeriesKey, float]]:
    return [(key, gained) for key, gained in increases.items() if key.name == name]


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
