"""Host memory: enough of it, in one place, and gone with the process."""

from pathlib import Path

import pytest

from engine.arena import PAGE_BYTES, Arena, check_memory
from engine.config import ConfigError
from tests.unit.engine.chains import layout


def test_pools_lie_side_by_side_without_touching() -> None:
    """Each begins on a page of its own and has room for all its slots."""
    arena = Arena(layout(token_slots=100, state_slots=50))
    token, state = arena.region("token"), arena.region("state")
    assert token.address % PAGE_BYTES == state.address % PAGE_BYTES == 0
    assert token.address + token.slots * token.slot_bytes <= state.address
    assert state.slots * state.slot_bytes <= len(arena.spans[1])


def test_it_leaves_nothing_in_shared_memory() -> None:
    """Anonymous and private: nothing has a name that could be left behind."""
    before = set(Path("/dev/shm").iterdir())
    arena = Arena(layout(1000, 1000))
    for span in arena.spans:
        span[:] = 1
    ours = {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("tierdeck")}
    assert not ours
    mapping = next(
        line for line in Path("/proc/self/maps").read_text().splitlines() if _holds(line, arena.region("token").address)
    )
    assert mapping.split()[1].endswith("p")
    assert mapping.split()[4] == "0", "no file behind it"


def _holds(line: str, address: int) -> bool:
    low, high = (int(part, 16) for part in line.split()[0].split("-"))
    return low <= address < high


@pytest.mark.parametrize(
    ("meminfo", "limit", "refused"),
    [
        ("MemAvailable:    1000 kB\n", "max\n", False),
        ("MemAvailable:     900 kB\n", "max\n", True),
        ("MemAvailable:    1000 kB\n", "921600\n", True),
        ("", "", False),
    ],
)
def test_more_than_the_machine_has_is_refused(tmp_path: Path, meminfo: str, limit: str, refused: bool) -> None:
    """Memory is taken as slots are written; without this the system would end the engine hours later."""
    (tmp_path / "meminfo").write_text(meminfo)
    (tmp_path / "limit").write_text(limit)
    if not refused:
        check_memory(1_000_000, tmp_path / "meminfo", tmp_path / "limit")
        return
    with pytest.raises(ConfigError, match="only 921600 are available: write a smaller size"):
        check_memory(1_000_000, tmp_path / "meminfo", tmp_path / "limit")
