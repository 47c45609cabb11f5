"""Tokens, cookies and what is kept of them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.config import Settings
from app.errors import TooManyAttempts
from app.services.signin import COOKIE_SECONDS, FAILURES_ALLOWED, SignIn, admin_token

NOW = 1_800_000_000.0


async def opened(directory: Path, token: str | None = "right") -> SignIn:
    signin = SignIn(Settings(data_dir=directory, admin_token=token))
    await signin.open()
    return signin


async def test_only_the_token_is_accepted(tmp_path: Path) -> None:
    """Not a part of it, not nothing."""
    signin = await opened(tmp_path)
    assert signin.check("right")
    assert not any(signin.check(wrong) for wrong in ("", "righ", "right ", "RIGHT"))


async def test_nothing_is_accepted_before_open() -> None:
    """A deck that is not up yet lets nobody in."""
    assert not SignIn(Settings(admin_token="")).check("")


async def test_generated_token_is_kept_and_private(tmp_path: Path) -> None:
    """The second run has the first run's token; nobody else on the machine can read it."""
    settings = Settings(data_dir=tmp_path / "data")
    token = admin_token(settings)
    assert admin_token(settings) == token
    assert len(token) >= 40
    for name in ("admin-token",):
        assert stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) == 0o600


async def test_wide_open_token_file_is_closed(tmp_path: Path) -> None:
    """A file that was copied with loose permissions does not stay readable."""
    (tmp_path / "admin-token").write_text("copied\n")
    (tmp_path / "admin-token").chmod(0o644)
    assert admin_token(Settings(data_dir=tmp_path)) == "copied"
    assert stat.S_IMODE((tmp_path / "admin-token").stat().st_mode) == 0o600


async def test_cookie_is_good_for_thirty_days(tmp_path: Path) -> None:
    """And not a second longer, nor before it was made."""
    signin = await opened(tmp_path)
    cookie = signin.issue_cookie(NOW)
    assert signin.read_cookie(cookie, NOW)
    assert signin.read_cookie(cookie, NOW + COOKIE_SECONDS - 1)
    assert not signin.read_cookie(cookie, NOW + COOKIE_SECONDS)
    assert not signin.read_cookie(cookie, NOW - 3600)


@pytest.mark.parametrize("value", ["", ".", "..", "1800000000.aa.", "1800000000.aa.00", "é.é.é", "9" * 5000])
async def test_forged_cookies_are_refused(tmp_path: Path, value: str) -> None:
    """Whatever a client sends, it is a wrong cookie, not an error."""
    assert not (await opened(tmp_path)).read_cookie(value, NOW)


async def test_changed_cookie_is_refused(tmp_path: Path) -> None:
    """A later date under the old signature does not prolong a session."""
    signin = await opened(tmp_path)
    issued, nonce, signature = signin.issue_cookie(NOW).split(".")
    assert not signin.read_cookie(f"{int(issued) + 60}.{nonce}.{signature}", NOW + 60)


async def test_sessions_outlive_the_deck_but_not_the_token(tmp_path: Path) -> None:
    """A restart keeps people signed in; another token signs everyone out."""
    cookie = (await opened(tmp_path)).issue_cookie(NOW)
    assert (await opened(tmp_path)).read_cookie(cookie, NOW)
    assert not (await opened(tmp_path, "another")).read_cookie(cookie, NOW)


async def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    """After ten wrong tokens in a minute even the right one waits; another address does not."""
    signin = await opened(tmp_path)
    for second in range(FAILURES_ALLOWED):
        assert not signin.attempt("wrong", "10.0.0.9", NOW + second)
    with pytest.raises(TooManyAttempts) as refused:
        signin.attempt("right", "10.0.0.9", NOW + 20)
    assert 0 < refused.value.retry_after_seconds <= 60
    assert signin.attempt("right", "10.0.0.7", NOW + 20)
    assert signin.attempt("right", "10.0.0.9", NOW + 61)


async def test_a_stale_token_on_this_machine_locks_nobody_out(tmp_path: Path) -> None:
    """All programs of the machine share an address: the right token is taken there, wrong ones still wait."""
    signin = await opened(tmp_path)
    for second in range(FAILURES_ALLOWED):
        assert not signin.attempt("stale", "127.0.0.1", NOW + second)
    assert signin.attempt("right", "127.0.0.1", NOW + 20)
    with pytest.raises(TooManyAttempts):
        signin.attempt("stale", "127.0.0.1", NOW + 21)
