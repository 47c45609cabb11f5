"""The deck's settings: read once from the environment, by this module alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

PROJECT_ROOT = Path(__file__).resolve().parent.parent


class Settings(BaseSettings):
    """Frozen. Each field is read from `TIERDECK_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="TIERDECK_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address the deck listens on.")
    port: int = Field(8700, ge=0, le=65535, description="Port the deck listens on.")
    data_dir: Path = Field(PROJECT_ROOT / "data", description="Database, logs, demo model, admin token.")
    database_url: str | None = Field(
        None,
        description="SQLAlchemy URL (sqlite+aiosqlite or postgresql+asyncpg). Default: SQLite in the data directory.",
    )
    admin_token: SecretStr | None = Field(
        None,
        description="Accepted as bearer token and at sign-in. Default: made on the first run, kept in the data folder.",
    )
    prometheus_url: str | None = Field(None, description="An existing Prometheus to read history from.")
    engine_python: Path = Field(Path(sys.executable), description="Interpreter that starts the engines.")
    model: str | None = Field(None, description="Model path or name. Default: the demo model, built on the first run.")
    fleets_file: Path | None = Field(
        None, description="TOML file with the fleets of the first run, instead of the one of model and port."
    )
    engine_port: int = Field(
        8710, ge=1, le=65535, description="Port of the engine; taken over at its next start while there is one engine."
    )
    engines_outlive_deck: bool = Field(
        True, description="Leave engines running when the deck stops. Off in the foreground (`make run`)."
    )
    scrape_interval_seconds: float = Field(2.0, gt=0, description="Seconds between two scrapes of an engine.")
    start_timeout_seconds: float = Field(
        1800.0, ge=0, description="Longest silence of a starting engine before it is stopped; 0 = none."
    )
    stop_grace_seconds: float = Field(20.0, gt=0, description="From SIGTERM to SIGKILL.")
    drain_timeout_seconds: float = Field(300.0, ge=0, description="Longest wait for requests in flight before a stop.")
    restart_wait_seconds: float = Field(1.0, gt=0, description="Wait before the first restart; doubles each time.")
    restart_wait_cap_seconds: float = Field(60.0, gt=0, description="Longest wait between two restarts.")
    restart_equal_failures: int = Field(3, ge=1, description="So many equal failures end the restarts.")
    restart_stable_seconds: float = Field(
        120.0, ge=0, description="An engine that served this long starts with a clean record of failures."
    )
    stall_seconds: float = Field(
        120.0, gt=0, description="No token for this long while requests wait, or when asked for one = stalled."
    )
    idle_probe_seconds: float = Field(
        60.0, ge=0, description="An engine without a token for this long is asked for one; 0 = never."
    )
    restart_stalled_seconds: float = Field(
        0.0, ge=0, description="An engine that is stalled this long is restarted; 0 = only by hand."
    )
    port_wait_seconds: float = Field(
        30.0,
        ge=0,
        description="An engine whose port another program keeps for this long moves to another port of its fleet; "
        "0 = it waits.",
    )
    device_wait_seconds: float = Field(
        600.0, ge=0, description="Longest wait of a start for memory of its GPUs to become free."
    )
    door_wait_seconds: float = Field(600.0, ge=0, description="How long a request waits for an engine to be ready.")
    door_wait_limit: int = Field(256, ge=0, description="How many requests may wait for an engine at once.")
    door_body_limit_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="Largest request body that the door takes."
    )
    door_keepalive_seconds: float = Field(
        15.0, ge=0, description="A comment to streaming clients after this much silence; 0 = none."
    )
    door_early_stream_seconds: float = Field(
        15.0,
        ge=0,
        description="A streaming request in line this long is answered 200 and kept alive; errors then come as an "
        "event. 0 = never.",
    )
    door_connect_timeout_seconds: float = Field(10.0, gt=0, description="Connecting to an engine.")

    @property
    def resolved_database_url(self) -> str:
        """The database in use: the configured one, else SQLite in the data directory."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / 'tierdeck.db'}"

    @property
    def log_dir(self) -> Path:
        """Where the engines' output is written."""
        return self.data_dir / "logs"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the deck."""
        return self.host in {"127.0.0.1", "::1", "localhost"}


def inherited_environment() -> dict[str, str]:
    """What an engine gets of the deck's environment: everything but the deck's own settings and secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIERDECK_")}
