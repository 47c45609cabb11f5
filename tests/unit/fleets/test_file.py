"""The fleets of a new deck, from a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.config import PROJECT_ROOT, Settings
from app.errors import InvalidInput
from app.first_run import fleets_of_file
from app.fleets.file import Around, read_fleets

GIB = 1 << 30
AROUND = Around("/opt/vllm/bin/python", 8710, 64 * GIB, lambda port: port != 8711)


def test_the_example_of_the_documentation() -> None:
    """It is read as it stands: two fleets, three engines, each with its port and its devices."""
    document = (PROJECT_ROOT / "docs" / "deployment.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", document, flags=re.DOTALL)
    main, small = read_fleets(example, AROUND)
    assert [(one.name, one.port, one.devices) for one in main.engines] == [
        ("main-1", 8710, ("0", "1")),
        ("main-2", 8712, ("2", "3")),  # something listens on 8711
    ]
    assert [(one.name, one.port, one.devices) for one in small.engines] == [("small-1", 8713, ("4",))]
    assert main.columns["base_flags"] == {"tensor-parallel-size": 2}
    assert (small.columns["routing"], small.columns["drain_timeout_seconds"]) == ("least_busy", 60.0)
    assert small.columns["served_model_name"] == "small" and small.columns["interpreter"] == AROUND.interpreter
    assert main.profile is small.profile and main.profile.flags["max-model-len"] == 262144
    extra = main.profile.kv_transfer_config["kv_connector_extra_config"]
    assert extra["cpu_bytes_to_use"] == 16 * GIB, "the preset's share of the machine"
    assert main.columns["follows_settings"] is False


def test_a_config_may_be_pasted_as_json() -> None:
    """The kv-transfer-config as people have it; sizes are stored as numbers."""
    text = """
    [profiles.p]
    kv_transfer_config = '''{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
      {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": "2 GiB"}}'''
    [fleets.f]
    model = "org/m"
    """
    [fleet] = read_fleets(text, AROUND)
    assert fleet.profile.kv_transfer_config["kv_connector_extra_config"]["cpu_bytes_to_use"] == 2 * GIB


PROFILE = "[profiles.p]\n"


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("[fleets.f\n", None, "This is not TOML"),
        ("", "fleets", "at least one fleet"),
        ("fleets = 3", "fleets", "each under [fleets.NAME]"),
        ("[fleet.f]\nmodel = 'x'", "fleet", "did you mean fleets?"),
        ("[fleets.f]\nmodel = 'x'", "fleets.f.profile", "under [profiles.NAME]"),
        ("[profiles.a]\n[profiles.b]\n[fleets.f]\nmodel = 'x'", "fleets.f.profile", "a, b"),
        (PROFILE + "[fleets.f]", "fleets.f.model", "path of a model"),
        (PROFILE + "[fleets.f]\nmodle = 'x'", "fleets.f.modle", "did you mean model?"),
        (PROFILE + "[fleets.'a b']\nmodel = 'x'", "fleets.a b", "letters, digits"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\nengines = 0", "fleets.f.engines", "from 1 to 64"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\nengines = true", "fleets.f.engines", "from 1 to 64"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\ndevices = [0]\nengines = 2", "fleets.f.devices", "one for each"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\nport_from = 8711\nport_to = 8711", "fleets.f.port_to", "No port"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\nbase_flags = { port = 1 }", "fleets.f.base_flags.port", "deck sets"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\nenvironment = { A = 1 }", "fleets.f.environment.A", "as text"),
        (PROFILE + "[fleets.f]\nmodel = 'x'\n[fleets.g]\nmodel = 'x'", "fleets.g.served_model_name", "already"),
        ("[profiles.p]\npreset = 'fast'\n", "profiles.p.preset", "many-short"),
        ("[profiles.p]\nflags = 1\n", "profiles.p.flags", "Write a table"),
        ("[profiles.p]\nflags = { a = 2026-01-01 }\n", "profiles.p.flags", "no dates"),
        ("[profiles.p]\nflags = { max-model-len = 0 }\n", "profiles.p.flags.max-model-len", "too small"),
        ("[profiles.p]\nkv_transfer_config = '{'\n", "profiles.p.kv_transfer_config", ""),
        ("[profiles.p]\nkv_transfer_config = []\n", "profiles.p.kv_transfer_config", "JSON object"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(text: str, path: str | None, said: str) -> None:
    """Nothing of the file is taken when one field is wrong."""
    with pytest.raises(InvalidInput) as refused:
        read_fleets(text, AROUND)
    assert refused.value.path == path and said in refused.value.message


def test_the_file_is_named(tmp_path: Path) -> None:
    """The sentence has the file, the field and what to write; the error's path is the setting."""
    file = tmp_path / "fleets.toml"
    settings = Settings(data_dir=tmp_path, fleets_file=file)
    for content, said in (
        (None, f"{file} cannot be read: No such file or directory."),
        (b"\xff", f"{file} cannot be read: it is not UTF-8 text."),
        (b"[profiles.p]\n[fleets.f]\n", f"{file}: fleets.f.model: Write the path of a model, or its name on a hub."),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidInput) as refused:
            fleets_of_file(settings, file)
        assert (refused.value.message, refused.value.path) == (said, "TIERDECK_FLEETS_FILE")
