"""Live updates on the wire."""

from __future__ import annotations

import json

from app.events import Event, Events
from app.supervisor.loglines import LogBatch, LogLine
from app.web.sse import event_stream, log_stream


async def test_events_are_named_by_their_kind() -> None:
    """The page listens to kinds; key and data come as JSON."""
    events = Events()
    stream = event_stream(events)
    assert b"event: open" in await anext(stream)
    events.publish(Event("engine", "main-1", {"state": "ready"}))
    first, second, *_ = (await anext(stream)).decode().splitlines()
    assert first == "event: engine"
    assert json.loads(second.removeprefix("data: ")) == {"key": "main-1", "data": {"state": "ready"}}
    await stream.aclose()


async def test_silence_is_broken_by_comments() -> None:
    """Proxies close what says nothing; a comment is nothing to the page."""
    stream = event_stream(Events(), keepalive_seconds=0.01)
    await anext(stream)
    assert (await anext(stream)).startswith(b":")
    await stream.aclose()


async def test_a_page_that_was_too_slow_is_told() -> None:
    """It reads everything again, so nothing is missing."""
    events = Events()
    stream = event_stream(events)
    await anext(stream)
    for number in range(300):
        events.publish(Event("log", str(number)))
    written = [(await anext(stream)).decode() for _ in range(2)]
    assert written[0].startswith("event: skipped")
    assert written[1].startswith("event: log")
    await stream.aclose()


async def test_nobody_listens_after_the_page_is_gone() -> None:
    """A closed page leaves no queue behind."""
    events = Events()
    stream = event_stream(events)
    await anext(stream)
    await stream.aclose()
    assert not events._subscriptions


async def test_log_lines_cannot_break_the_stream() -> None:
    """Line ends and markup inside a log line stay inside its JSON."""

    async def batches():
        yield LogBatch((LogLine(1, None, "", "a\r\n\ndata: x</script>"),), 3)

    (block,) = [block async for block in log_stream(batches())]
    lines = block.decode().split("\n")
    assert lines[0] == "event: lines"
    assert json.loads(lines[1].removeprefix("data: "))["skipped"] == 3
    assert lines[2:] == ["", ""]
