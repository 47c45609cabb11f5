"""What the scheduler may rely on, and what the operator reads in the metrics."""

from __future__ import annotations

import pytest
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext, get_offload_group_idx

from engine import metric_names as names
from engine.manager import TierManager
from tests.unit.engine.chains import CHUNK, Clock, Request, counts, layout, outcomes, run


def manager(token_slots: int = 8, state_slots: int = 4, demote: bool = True, clock: Clock | None = None) -> TierManager:
    return TierManager(layout(token_slots, state_slots), 2, demote, events=True, clock=clock or Clock())


def test_a_session_comes_back_from_the_host() -> None:
    """Blocks and state that were stored are found again, up to the last block, which is computed."""
    tier = manager()
    assert run(tier, "cold", "abcd") == 0
    assert run(tier, "back", "abcd") == 3


def test_nothing_is_readable_before_it_is_written() -> None:
    """A store in flight is pending, and a failed one leaves nothing."""
    tier = manager()
    request = Request(tier, "r", "ab")
    tier.prepare_store(request.tokens(), request.context)
    assert tier.lookup(request.tokens()[0], request.context) is LookupResult.HIT_PENDING
    tier.complete_store(set(request.tokens()), request.context, success=False)
    assert tier.lookup(request.tokens()[0], request.context) is LookupResult.MISS
    assert ("token",) not in {key[1:] for key in counts(tier) if key[0] == names.SLOTS_USED}


def test_a_state_is_there_when_all_its_groups_are() -> None:
    """Each group is answered for itself; the session counts only when both are in."""
    tier = manager()
    request = Request(tier, "r", "ab")
    request.store(request.tokens())
    first, second = request.states(1)
    request.store([first])
    assert request.has([first])
    assert not request.has([second])
    assert counts(tier).get((names.RESTORABLE_SESSIONS,)) is None
    request.store([second])
    request.finish()
    assert counts(tier)[names.RESTORABLE_SESSIONS,] == 1


def test_one_full_pool_does_not_refuse_the_others_keys() -> None:
    """All state slots in flight: the blocks of the same call are stored, and the refusal is counted."""
    tier = manager(state_slots=1)
    busy = Request(tier, "busy", "zy")
    tier.prepare_store(busy.states(1), busy.context)
    request = Request(tier, "r", "ab")
    output = tier.prepare_store([*request.tokens(), *request.states(1)], request.context)
    assert output is not None
    assert {get_offload_group_idx(key) for key in output.keys_to_store} == {0}
    assert counts(tier)[names.REFUSED_STORES, "state"] == 2


def test_what_is_being_loaded_is_never_evicted() -> None:
    """Pinned until the load is complete."""
    tier = manager(token_slots=3, state_slots=1)
    run(tier, "a", "abc")
    reader = Request(tier, "reader", "abc")
    keys = [*reader.tokens(0, 2), *reader.states(2)]
    tier.prepare_load(keys, reader.context)
    run(tier, "other", "xyz")
    assert reader.has(keys)
    tier.complete_load(set(keys), reader.context)
    reader.finish()
    run(tier, "other again", "xyz")
    assert not reader.has(keys)


def test_a_running_requests_blocks_stay_until_it_ends() -> None:
    """A prompt longer than the pool keeps its beginning instead of eating it."""
    tier = manager(token_slots=3)
    long = Request(tier, "long", "abcdef")
    stored = [long.store([key]) for key in long.tokens()]
    assert [len(keys) for keys in stored] == [1, 1, 1, 0, 0, 0]
    assert long.has(long.tokens(0, 3))
    long.finish()
    run(tier, "next", "xyz")
    assert not long.has(long.tokens(0, 1))


def test_a_chain_is_eaten_from_its_end() -> None:
    """The oldest session loses its last blocks first, so that its beginning serves on."""
    tier = manager(token_slots=4)
    run(tier, "a", "abcd")
    Request(tier, "b", "xy").store(Request(tier, "b", "xy").tokens())
    probe = Request(tier, "probe", "abcd")
    assert probe.has(probe.tokens(0, 2))
    assert not probe.has(probe.tokens(2, 3))


def grow(tier: TierManager, length: int = 7) -> None:
    """A session that grows by a block per turn and keeps a state each time."""
    for end in range(2, length + 1):
        run(tier, f"turn {end}", "abcdefgh"[:end])


def test_superseded_states_go_first() -> None:
    """All but the newest three boundaries of a session are the first victims, however recent."""
    tier = manager(token_slots=40, state_slots=6)
    run(tier, "short", "xy")
    grow(tier)
    run(tier, "new", "mnop")
    probe = Request(tier, "probe", "abcdefg")
    assert not probe.has(probe.states(1))
    assert all(probe.has(probe.states(number)) for number in (4, 5, 6))
    assert Request(tier, "p", "xy").has(Request(tier, "p2", "xy").states(1)), "older, yet it stays"
    found = counts(tier)
    assert found[names.EVICTIONS, "state", "superseded"] >= 1
    assert (names.EVICTIONS, "state", "lru") not in found


def test_without_demotion_the_oldest_goes_whatever_it_is_worth() -> None:
    """The idle session dies of the growing one's useless states."""
    tier = manager(token_slots=40, state_slots=6, demote=False)
    run(tier, "short", "xy")
    grow(tier)
    run(tier, "new", "mnop")
    assert not Request(tier, "p", "xy").has(Request(tier, "p2", "xy").states(1))
    assert counts(tier)[names.EVICTIONS, "state", "lru"] >= 1


def test_a_superseded_state_that_is_used_again_is_one_no_longer() -> None:
    """A sub-session resumes at an old boundary: it must not go first any more."""
    tier = manager(token_slots=40, state_slots=7)
    grow(tier)
    assert run(tier, "fork", "abz", states=(2,)) == 2
    for name in ("mn", "op", "qr"):
        run(tier, name, name)
    probe = Request(tier, "probe", "abcd")
    assert probe.has(probe.states(2))


def test_lookup_tokens_say_what_was_missing() -> None:
    """hit, state_missing, token_missing and absent, in whole blocks beyond the device's own. A last
    block that ends with the prompt is left out: its last token is always computed.
    """
    tier = manager(token_slots=40, state_slots=8)
    run(tier, "cold", "abcdef", states=(2,))
    assert outcomes(tier) == {"absent": 6 * CHUNK}
    run(tier, "back", "abcdefg", states=(2,))
    assert outcomes(tier) == {"hit": 2 * CHUNK, "state_missing": 4 * CHUNK}
    run(tier, "warm", "abcdefg", device_blocks=1, states=(2,))
    assert outcomes(tier) == {"hit": CHUNK, "state_missing": 4 * CHUNK}


def test_a_state_behind_missing_blocks_is_counted_as_tokens_missing() -> None:
    """The state is there and of no use, because a block before it is not."""
    tier = manager(token_slots=40)
    request = Request(tier, "half", "abcde")
    request.store([*request.tokens(0, 1), *request.tokens(2)])
    for key in request.states(3):
        request.store([key])
    request.finish()
    outcomes(tier)
    run(tier, "back", "abcde", states=(1,))
    assert outcomes(tier) == {"state_missing": CHUNK, "token_missing": 2 * CHUNK, "absent": 2 * CHUNK}


def test_a_request_is_counted_once_however_often_it_is_looked_up() -> None:
    """Waiting requests are looked up at every step; retries must not inflate the counters."""
    tier = manager()
    run(tier, "cold", "abc")
    outcomes(tier)
    request = Request(tier, "r", "abc")
    for _ in range(5):
        found = request.lookup_blocks()
    request.load(0, found)
    request.begin()
    assert outcomes(tier) == {"hit": 2 * CHUNK}


def test_a_request_that_the_device_serves_is_not_counted() -> None:
    """No lookup, no tokens of this tier."""
    tier = manager()
    Request(tier, "r", "abc").begin()
    assert outcomes(tier) == {}


def test_gauges_hold_what_the_pools_hold() -> None:
    """Slots, used, pinned and bytes over all workers."""
    tier = manager()
    run(tier, "a", "abcd")
    found = counts(tier)
    assert found[names.SLOTS, "token", names.ALL_GROUPS] == 8
    assert found[names.SLOTS_USED, "token", names.ALL_GROUPS] == 4
    assert found[names.SLOTS_USED, "state", names.ALL_GROUPS] == 1
    assert (names.SLOTS_PINNED, "token", names.ALL_GROUPS) not in found
    assert found[names.HOST_BYTES, "token"] == 2 * 8 * 64
    assert found[names.HOST_BYTES, "state"] == 2 * 4 * 96
    assert counts(tier) == {}, "sent again only when something changed"


def test_restorable_sessions_are_ends_of_whole_chains() -> None:
    """A prefix of another one does not count, nor does a state whose blocks are gone."""
    tier = manager(token_slots=7, state_slots=8)
    for name, blocks in (("a", "abc"), ("a longer", "abcde"), ("a fork", "abxy"), ("b", "mn")):
        run(tier, name, blocks)
    assert counts(tier)[names.RESTORABLE_SESSIONS,] == 2, "abxy and mn; the end of abcde made room"


def test_idle_time_is_measured_at_eviction() -> None:
    """How long the victim had not been used."""
    clock = Clock()
    tier = manager(token_slots=2, state_slots=2, clock=clock)
    run(tier, "a", "ab")
    clock.now = 90.0
    run(tier, "b", "xy")
    stats = tier.get_stats()
    assert stats is not None
    assert stats.data["data"][names.IDLE_SECONDS]["token",] == [90.0, 90.0]


def test_events_follow_what_is_stored_and_evicted() -> None:
    """For routers that listen to the engine's KV events."""
    tier = manager(token_slots=2)
    run(tier, "a", "ab")
    stored = [event for event in tier.take_events() if not event.removed]
    assert sum(len(event.keys) for event in stored) == 4
    run(tier, "b", "xy")
    removed = [key for event in tier.take_events() if event.removed for key in event.keys]
    assert len(removed) == 2


def test_a_reset_forgets_everything() -> None:
    """Also what a running request held."""
    tier = manager(token_slots=2)
    running = Request(tier, "r", "ab")
    running.store(running.tokens())
    tier.reset_cache()
    assert not running.has(running.tokens(0, 1))
    running.finish()
    assert run(tier, "next", "xy") == 0
    assert run(tier, "again", "xy") == 1


def test_a_promised_key_that_is_gone_is_an_error() -> None:
    """Serving other bytes instead would be worse."""
    tier = manager()
    request = Request(tier, "r", "ab")
    with pytest.raises(RuntimeError, match="was promised and is not there"):
        tier.prepare_load(request.tokens(), request.context)


def test_attention_alone_is_an_ordinary_tier() -> None:
    """Without linear layers there are no states to miss."""
    whole = layout()
    only = type(whole)(whole.groups[:1], 1, 64, 0, type(whole.plan)(8, 0))
    tier = TierManager(only, clock=Clock())
    request = Request(tier, "r", "abc")
    request.store(request.tokens())
    request.finish()
    assert counts(tier)[names.RESTORABLE_SESSIONS,] == 1
    back = Request(tier, "back", "abc")
    assert back.has(back.tokens())
    tier.prepare_load(back.tokens(), back.context)
    assert outcomes(tier) == {"hit": 3 * CHUNK}


def test_a_request_unknown_to_the_step_is_ignored() -> None:
    """vLLM names requests of other kinds as well."""
    manager().on_schedule_end(ScheduleEndContext(["nobody"], ()))
