"""Runs under one eviction_policy after another: whatever was stored in part and moved, nothing wrong is served."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.arena_rig import ArenaEngine
from tests.unit.engine.chains import Request
from tests.unit.engine.conversion_rig import layout_of, start
from tests.unit.engine.residency_rig import Engine

CROWD = ("abcd", "abxy", "abcdefg", "kl", "klmnop", "rstuvw")
STEPS = st.lists(
    st.tuples(st.sampled_from(["whole", "whole", "found", "begun", "half"]), st.sampled_from(CROWD)), max_size=12
)
RUNS = st.lists(
    st.tuples(st.sampled_from(["split", "arena"]), st.integers(4, 16), st.integers(2, 6), STEPS), min_size=2, max_size=4
)


@settings(max_examples=50)
@given(runs=RUNS, states=st.booleans())
def test_run_after_run_nothing_wrong_is_served(
    tmp_path_factory: pytest.TempPathFactory, runs: list[Any], states: bool
) -> None:
    """Layouts and sizes change from run to run, all far too small, and runs are killed with stores begun and half
    copied: whatever a later one serves has the bytes of its key on every worker, and what was used last comes along.
    """
    mount = tmp_path_factory.mktemp("mount")
    before, is_whole = "", False
    for number, (kind, blocks, most, steps) in enumerate([*runs, ("split", 9, 3, []), ("arena", 9, 3, [])]):
        engine = start(mount, f"run {number}", layout_of(kind, blocks, most, states), 2)
        for session in CROWD:
            engine.found(session)
        assert kind == before or not is_whole or engine.found("zz") == 1
        stores = [(verb, session) for verb, session in steps if verb in ("begun", "half")]
        for verb, session in steps:
            if verb in ("whole", "found"):
                (engine.session if verb == "whole" else engine.found)(session)
        engine.session("zz")
        assert engine.found("zz") == 1
        for verb, session in stores:
            _begin(engine, session, verb == "half")
        before, is_whole = kind, not stores
        engine.kill()
    shutil.rmtree(mount)


def _begin(engine: Engine | ArenaEngine, session: str, is_copied: bool) -> None:
    """A store that nobody will acknowledge."""
    request = Request(engine.manager, f"{session} {time.monotonic_ns()}", session)  # type: ignore[arg-type]
    output = engine.manager.prepare_store(request.tokens(), request.context)
    assert output is not None
    if is_copied:
        spec: Any = output.store_spec
        engine.write(output.keys_to_store, list(spec.slots), whole=False)
