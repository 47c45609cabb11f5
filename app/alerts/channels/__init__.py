"""The kinds of receivers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from app.alerts.channels.base import Channel
from app.alerts.channels.discord import Discord
from app.alerts.channels.generic import Generic
from app.alerts.channels.robots import DingTalk, Feishu
from app.alerts.channels.slack import Slack
from app.errors import InvalidInput

CHANNELS: Mapping[str, Channel] = {
    channel.name: channel for channel in (Generic(), Slack(), Discord(), Feishu(), DingTalk())
}


def channel_named(name: str) -> Channel:
    """The channel called `name`. Raises InvalidInput."""
    if name not in CHANNELS:
        raise InvalidInput(f"There is no channel {name!r}; write one of: {', '.join(CHANNELS)}.", path="channel")
    return CHANNELS[name]
