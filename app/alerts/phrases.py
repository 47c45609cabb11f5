"""What alerts say: templates with `%(name)s`, so that a page can tell them in its reader's language. A leaf.

They are kept and sent as they are told, in English; `app.web.retold` finds the template again.
"""

from __future__ import annotations

from enum import StrEnum


class Phrase(StrEnum):
    """Fill one in with `Phrase.X % {...}`. An alert may say several, one behind the other."""

    NOT_LOOKED_AT = "Not looked at yet."
    SWITCHED_OFF = "The rule is switched off."
    SWITCHED_OFF_FIRING = "The rule was switched off while it was firing."
    NOT_EVALUATED = "The rule could not be evaluated: %(why)s"
    NO_REQUESTS = "No requests yet."
    NO_DATA = "No data: %(why)s."
    NO_INPUT = "No input tokens in the last %(window)s."
    FEW_TOKENS = "%(tokens)s input tokens in the last %(window)s; the rule judges from %(least)s."
    HOST_LOW = (
        "Host hits serve only %(host)s of the input tokens while %(recomputed)s are recomputed "
        "(%(tokens)s input tokens in the last %(window)s)."
    )
    HOST_FINE = (
        "Host hits serve %(host)s of the input tokens and %(recomputed)s are recomputed "
        "(%(tokens)s input tokens in the last %(window)s)."
    )
    SHARES = "host %(host)s, recomputed %(recomputed)s"
    LAST_SEEN = "Last seen: %(reading)s at %(moment)s."
    STILL_FIRING = "Still firing."
    RESOLVES = "Resolves once held for %(held)s s of %(hold)s s."
    FIRES = "Fires once held for %(held)s s of %(hold)s s."
    HAS_HELD = "This has held for %(span)s."
    GIVEN_UP = "%(engine)s was given up: %(cause)s"
    STALLED = "%(engine)s is stalled: %(cause)s"
    UNKNOWN_NUMBERS = "the numbers are not known"
    UNKNOWN_WINDOW = "the numbers of the window are not known"
    NO_ENGINE = "the fleet has no engine"
    SCRAPES_FAILED = "scrapes failed in the window"
    STARTING = "the engine is starting"
    NOTHING_SCRAPED = "nothing was scraped in the window"
    NOT_RUNNING = "the engine does not run"
    MISSING_METRIC = "the engine does not tell where its input tokens came from"
    NEVER_SCRAPED = "no engine of the fleet has been scraped yet"
    NOT_SCRAPED_SINCE = "%(engine)s has not been scraped since %(moment)s"
    ENGINE_STARTING = "%(engine)s is starting"
    ENGINE_STOPPING = "%(engine)s is stopping"
    SCRAPE_FAILED = "scrape of %(engine)s failed since %(moment)s"
    SCRAPE_FAILED_WITH = "scrape of %(engine)s failed since %(moment)s: %(why)s"
