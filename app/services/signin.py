"""Who may use the deck: one admin token, and signed cookies for those who showed it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import secrets
from collections import deque
from pathlib import Path

from app.config import Settings
from app.errors import TooManyAttempts

COOKIE_NAME = "tierdeck_session"
COOKIE_SECONDS = 30 * 24 * 3600
FAILURES_ALLOWED = 10
FAILURE_WINDOW_SECONDS = 60.0


def _is_this_machine(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def admin_token(settings: Settings) -> str:
    """The configured token, else the one in the data directory, made on the first call."""
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value()
    return _kept_secret(admin_token_path(settings))


def admin_token_path(settings: Settings) -> Path:
    """Where the token is kept when none is configured."""
    return settings.data_dir / "admin-token"


class SignIn:
    """Checks tokens and cookies. Holds a digest of the token, never the token."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token_digest = b""
        self._key = b""
        self._failures: dict[str, deque[float]] = {}

    async def open(self) -> None:
        """Read the token and the cookie key; make those that do not exist yet."""
        self._token_digest = _digest(admin_token(self._settings))
        self._key = _kept_secret(self._settings.data_dir / "session-key").encode()

    def check(self, token: str) -> bool:
        """True for the admin token. Takes the same time whatever is sent."""
        return bool(self._token_digest) and hmac.compare_digest(_digest(token), self._token_digest)

    def attempt(self, token: str, address: str, now: float) -> bool:
        """`check`, with a limit on failures from one address. Raises TooManyAttempts.

        The programs of this machine share one address: there, one with a stale token must not lock out
        those with the right one.
        """
        failures = self._recent_failures(address, now)
        if len(failures) >= FAILURES_ALLOWED and not (_is_this_machine(address) and self.check(token)):
            wait = int(failures[0] + FAILURE_WINDOW_SECONDS - now) + 1
            raise TooManyAttempts(f"Too many wrong tokens; try again in {wait} s.", retry_after_seconds=wait)
        if self.check(token):
            return True
        failures.append(now)
        self._failures[address] = failures
        return False

    def issue_cookie(self, now: float) -> str:
        """A signed proof that the token was shown at `now`."""
        payload = f"{int(now)}.{secrets.token_hex(8)}"
        return f"{payload}.{self._signature(payload)}"

    def read_cookie(self, value: str, now: float) -> bool:
        """True when we signed `value`, with today's token, less than 30 days ago."""
        payload, _, signature = value.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(payload).encode()):
            return False
        issued = payload.partition(".")[0]
        return issued.isdigit() and now - COOKIE_SECONDS < int(issued) <= now + 60

    def _signature(self, payload: str) -> str:
        # The token's digest is part of the key: another token ends every session.
        return hmac.new(self._key + self._token_digest, payload.encode(), hashlib.sha256).hexdigest()

    def _recent_failures(self, address: str, now: float) -> deque[float]:
        self._failures = {
            known: times for known, times in self._failures.items() if times[-1] > now - FAILURE_WINDOW_SECONDS
        }
        failures = self._failures.get(address, deque())
        while failures and failures[0] <= now - FAILURE_WINDOW_SECONDS:
            failures.popleft()
        return failures


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _kept_secret(path: Path) -> str:
    """The secret in `path`, readable by the owner alone; made if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        path.chmod(0o600)
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    # A link is made or not made: two decks starting at once agree on one secret.
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    return path.read_text().strip()
