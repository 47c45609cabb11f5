"""The connector's metrics: names, help and labels, once; standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

POOLS: Final = ("token", "state")
#: A slot holds one boundary of all the layer groups of its pool, so there is one series per pool.
ALL_GROUPS: Final = "all"
OUTCOMES: Final = ("hit", "state_missing", "token_missing", "absent")
EVICTION_REASONS: Final = ("lru", "arc", "value", "hyper", "superseded", "orphaned")

SLOTS: Final = "tierdeck_host_slots"
SLOTS_USED: Final = "tierdeck_host_slots_used"
SLOTS_PINNED: Final = "tierdeck_host_slots_pinned"
EVICTIONS: Final = "tierdeck_host_evictions_total"
LOOKUP_TOKENS: Final = "tierdeck_host_lookup_tokens_total"
IDLE_SECONDS: Final = "tierdeck_host_idle_seconds_at_eviction"
RESTORABLE_SESSIONS: Final = "tierdeck_host_restorable_sessions"
HOST_BYTES: Final = "tierdeck_host_bytes"
REFUSED_STORES: Final = "tierdeck_host_refused_stores_total"
VERIFY_FAILURES: Final = "tierdeck_host_verify_failures_total"


@dataclass(frozen=True)
class ConnectorMetric:
    """One series family as the engine publishes it; vLLM adds `model_name` and `engine` labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    documentation: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None


METRICS: Final[tuple[ConnectorMetric, ...]] = (
    ConnectorMetric(SLOTS, "gauge", "Slots of the pool, used and free.", ("pool", "group")),
    ConnectorMetric(SLOTS_USED, "gauge", "Slots that hold something or are being written.", ("pool", "group")),
    ConnectorMetric(
        SLOTS_PINNED,
        "gauge",
        "Slots that cannot be evicted now: a transfer or a running request uses them.",
        ("pool", "group"),
    ),
    ConnectorMetric(
        EVICTIONS,
        "counter",
        "Slots given up. Reason lru, arc, value or hyper: chosen by that policy (blocks with value and hyper: with "
        "their state). superseded: a state of a session that has newer ones. orphaned: blocks behind which no state "
        "was kept, or a state behind blocks that found no place.",
        ("pool", "reason"),
    ),
    ConnectorMetric(
        LOOKUP_TOKENS,
        "counter",
        "Prompt tokens beyond the device's prefix cache, in whole blocks, once per request, by what the host "
        "tier had of them. state_missing: their blocks were there, the state was not. token_missing: a state "
        "was there, blocks before it were not.",
        ("outcome",),
    ),
    ConnectorMetric(
        IDLE_SECONDS,
        "histogram",
        "How long an evicted slot had not been used.",
        ("pool",),
        (1, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400),
    ),
    ConnectorMetric(
        RESTORABLE_SESSIONS,
        "gauge",
        "Sessions whose blocks and state are all in the host tier; a prefix of another one does not count.",
    ),
    ConnectorMetric(HOST_BYTES, "gauge", "Host memory set aside for the pool's slots, over all workers.", ("pool",)),
    ConnectorMetric(
        REFUSED_STORES,
        "counter",
        "Blocks or states that were not stored because every slot of the pool was in use.",
        ("pool",),
    ),
    ConnectorMetric(
        VERIFY_FAILURES,
        "counter",
        "Loads given up because what came back was not what had been stored; their tokens were computed anew.",
    ),
)


#: Every value of each label.
LABEL_VALUES: Final = {
    "pool": POOLS,
    "group": (ALL_GROUPS,),
    "outcome": OUTCOMES,
    "reason": EVICTION_REASONS,
}


def reference() -> str:
    """The metrics as a Markdown table, for the documentation."""
    rows = [
        f"| `{one.name}` | {', '.join(f'`{label}`' for label in one.labels)} | {one.kind} | {one.documentation} |"
        for one in METRICS
    ]
    return "\n".join(["| metric | labels | kind | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


BY_NAME: Final[dict[str, ConnectorMetric]] = {metric.name: metric for metric in METRICS}
