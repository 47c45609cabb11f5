"""What is told of an engine's state: templates with `%(name)s`, so that a page can tell them in its reader's language.

A leaf. They are kept as they are told, in English; `app.web.retold` finds the template again.
"""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Fill one in with `Cause.X % {...}`. A cause may be made of several, one behind the other."""

    START = "Start asked for."
    START_INSTEAD = "Start asked for: draining was called off."
    STOP = "Stop asked for."
    RESTART = "Restart asked for."
    DRAIN = "Drain asked for."
    DECK_ENDS = "The deck ends."
    SERVES = "It serves: a first token came %(seconds)s s after its start."
    SERVED_BEFORE = "It served before the deck was started anew, and still answers."
    SERVES_AGAIN = "It gives tokens again, %(seconds)s s after it stalled."
    STALLED = "The engine is stalled: %(why)s; last token %(seconds)s s ago."
    STALLED_UNSEEN = "The engine is stalled: %(why)s; no token seen in %(seconds)s s."
    TRY = "Try %(number)s, after: %(cause)s"
    ENDED_STARTING = "The engine %(end)s while starting."
    ENDED_STARTING_WITH = "The engine %(end)s while starting: %(why)s"
    ENDED_SERVING = "The engine %(end)s while it served."
    ENDED_SERVING_WITH = "The engine %(end)s while it served: %(why)s"
    ENDED_WHILE_DRAINED = "The engine %(end)s while it was drained for a %(then)s."
    PROCESS_ENDED = "its process %(who)s %(end)s"
    ANOTHER_ENDED = "another of its processes had ended before it (%(why)s)"
    EXITED = "exited"
    EXITED_WITH = "exited with code %(code)s"
    KILLED_BY = "was killed by signal %(signal)s"
    KILLED_BY_9 = "was killed by signal 9 (SIGKILL: by the kernel for lack of memory, or by somebody)"
    KILLED_BY_11 = "was killed by signal 11 (SIGSEGV: a fault in native code)"
    KILLED_BY_15 = "was killed by signal 15 (SIGTERM, not sent by the deck)"
    GIVEN_UP = "%(cause)s Given up after %(count)s equal failures."
    OVERDUE = "Ended by the deck after %(seconds)s s. %(cause)s"
    DRAINED = "Drained."
    NOTHING_IN_FLIGHT = "Nothing is in flight."
    STILL_IN_FLIGHT = "%(count)s requests were still in flight when the wait ended."
    ALL_ENDED = "Every process of it has ended."
    FOR_THE_RESTART = "Started anew for the restart."
    FOUND = "The deck was started and found this engine running (pid %(pid)s)."
    FOUND_UNWANTED = "The deck was started and found this engine running (pid %(pid)s), though it is to be stopped."
    GONE_MEANWHILE = "Its process (pid %(pid)s) ended while no deck was running."
    WITH_THE_DECK = "Started with the deck."
    TO_BE_STOPPED = "It is to be stopped."
    PORT_TAKEN = "Port %(port)s is in use by another program. The engine waits for it to be free again."
    PORT_TAKEN_BY = "Port %(port)s is in use by another program (%(who)s). The engine waits for it to be free again."
    PORT_FREE = "Its port is free again."
    PORT_MOVED = "Port %(old)s was still in use after %(seconds)s s; moved to port %(new)s."
    NO_INTERPRETER = "The interpreter %(path)s does not exist or may not be executed."
    NO_MODEL = "There is no model at %(path)s: the path does not exist."
    DECK_FAILED = "The deck could not go on with this engine: %(why)s"
    NOT_WATCHED = "The deck could not watch the engine: %(why)s"
    NOT_LAUNCHED = "%(interpreter)s could not be started: %(why)s."
    SILENT = "Start timeout: no progress for %(seconds)s s; the deck ended it."
    SILENT_WITH = "Start timeout: no progress for %(seconds)s s (%(why)s); the deck ended it."
    NO_SECONDS = "The profile's %(variable)s is no number of seconds; write for example 3600, or 0 for no limit."
    HOST_TIER_TOO_LARGE = (
        "The host tier asks for %(asked)s over all ranks; the machine or its control group has %(usable)s."
    )
    SHARED_MEMORY_FULL = "There is too little shared memory for the host tier: %(why)s."
    #: As `engine.residency_place` says it, which knows nothing of the deck's templates.
    SHORTAGE = "%(wanted)s bytes are wanted in %(place)s, but only %(free)s are free there"
    DEVICE_FULL = "After %(seconds)s s there was still only %(free)s of %(wanted)s GiB free on GPU %(gpu)s."
    DEVICE_FULL_OF = (
        "After %(seconds)s s there was still only %(free)s of %(wanted)s GiB free on GPU %(gpu)s, held by %(pids)s."
    )
    HALTED = "%(who)s is stopped (SIGSTOP) for %(seconds)s s"
    HALTED_SEVERAL = "%(who)s are stopped (SIGSTOP) for %(seconds)s s"
    STUCK = "none of its %(count)s waiting requests runs for %(seconds)s s"
    ASKED_IN_VAIN = "asked for one token, it gave none (%(why)s)"
    NOTHING_CAME = "nothing came within %(seconds)s s"
    HEALTH_ANSWERED = "/health answered %(status)s"
    ONLY_HEALTH = "/health is fine, but no token came within %(seconds)s s"
    ONLY_HEALTH_ANSWERED = "/health is fine, but a completion answered %(status)s"
    ONLY_HEALTH_NO_JSON = "/health is fine, but a completion answered something that is not JSON"
    ONLY_HEALTH_EMPTY = "/health is fine, but a completion came back empty"
