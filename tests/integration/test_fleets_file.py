"""`tierdeck up` with a file of fleets; the engines are the fake program."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.integration.cli_rig import Home, deck, home
from tests.integration.supervisor_rig import free_port, port_is_open

FILE = """
[profiles.both]
flags = {{ fake-token-seconds = 0.0 }}

[fleets.large]
model = "org/large"
engines = 2
port_from = {low}
port_to = {high}

[fleets.small]
model = "org/small"
"""


def with_file(directory: Path, text: str) -> Home:
    at = home(directory)
    (directory / "fleets.toml").write_text(text)
    at.environment["TIERDECK_FLEETS_FILE"] = str(directory / "fleets.toml")
    return at


def test_several_fleets_come_up_from_a_file_once(tmp_path: Path) -> None:
    """Each model is answered by its own fleet; later starts go by the database, whatever became of the file."""
    low = free_port()
    at = with_file(tmp_path, FILE.format(low=low, high=min(low + 50, 65535)))
    with deck(at) as running:
        with running.client() as client:
            told = {fleet["name"]: fleet for fleet in client.get("/api/v1/fleets").json()}
            assert told["large"]["engines"] == ["large-1", "large-2"] and told["small"]["engines"] == ["small-1"]
            for model in ("large", "small"):
                answer = client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 1})
                assert answer.status_code == 200, answer.text
            engines = client.get("/api/v1/engines").json()
            assert len({engine["port"] for engine in engines}) == 3
            assert client.patch("/api/v1/fleets/small", json={"routing": "least_busy"}).status_code == 200
            assert client.delete("/api/v1/fleets/large/engines/large-2").status_code == 202
        running.send(signal.SIGINT)
        assert running.wait() == 0
    assert not any(port_is_open(engine["port"]) for engine in engines)
    (tmp_path / "fleets.toml").write_text("[fleets")
    with deck(at) as running, running.client() as client:
        told = {fleet["name"]: fleet for fleet in client.get("/api/v1/fleets").json()}
        assert told["large"]["engines"] == ["large-1"] and told["small"]["routing"] == "least_busy"


def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path) -> None:
    """File, field and what to write; nothing is begun, and the corrected file is taken the next time."""
    at = with_file(tmp_path, "[profiles.p]\n[fleets.f]\nmodel = 'org/m'\nengines = 0\n")
    done = at.run("up")
    assert done.returncode == 1
    assert (
        done.stderr.strip() == f"{tmp_path / 'fleets.toml'}: fleets.f.engines: Write a number of engines from 1 to 64."
    )
    assert "Traceback" not in done.stdout + done.stderr
    (tmp_path / "fleets.toml").write_text("[profiles.p]\n[fleets.f]\nmodel = 'org/m'\n")
    with deck(at) as running, running.client() as client:
        assert [fleet["name"] for fleet in client.get("/api/v1/fleets").json()] == ["f"]
