"""Why a rollout keeps traffic from an engine: templates with `%(name)s`, told anew by `app.web.retold`. A leaf."""

from __future__ import annotations

from enum import StrEnum


class Hold(StrEnum):
    """Fill one in with `Hold.X % {...}`."""

    CHANGES = "Rollout %(id)s takes engine %(engine)s to %(version)s."
    TESTS = "Rollout %(id)s tests engine %(engine)s."
