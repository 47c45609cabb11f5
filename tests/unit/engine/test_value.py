"""One arena for blocks and states: what the scheduler may rely on, and what goes first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext, make_offload_key

from engine import metric_names as names
from engine.layout import GroupLayout, HostLayout
from engine.sizing import SlotPlan
from engine.value_manager import PagesSpec, ValueManager
from tests.unit.engine.chains import (
    CHUNK,
    STATE_GROUPS,
    TOKEN_GROUP,
    Clock,
    Request,
    counts,
    layout,
    outcomes,
    run,
)

PAGE = 4096


def manager(
    pages: int = 12, policy: str = "value", demote: bool = True, clock: Clock | None = None, state_pages: int = 1
) -> ValueManager:
    """A block takes one page."""
    sizes = replace(layout(), pages=pages, page_bytes=PAGE, state_slot_bytes=state_pages * PAGE)
    return ValueManager(sizes, policy, 2, demote, events=True, clock=clock or Clock())


def has_state(tier: ValueManager, blocks: str) -> bool:
    probe = Request(tier, f"probe {blocks}", blocks)
    return probe.has(probe.states(len(blocks)))


@pytest.mark.parametrize("policy", ["value", "hyper"])
def test_a_session_comes_back_from_the_host(policy: str) -> None:
    """Blocks and state that were stored are found again, up to the last block, which is computed."""
    tier = manager(policy=policy)
    assert run(tier, "cold", "abcd") == 0
    assert run(tier, "back", "abcd") == 3
    assert run(tier, "longer", "abcdef") == 3


def test_there_is_no_split() -> None:
    """The same arena holds one long session or several short ones with a state each."""
    long = manager(pages=12)
    run(long, "long", "abcdefghijkl")
    assert run(long, "long again", "abcdefghijkl") == 11
    short = manager(pages=13)  # the last block of a prompt has a page for a moment
    for name in ("ab", "cd", "ef", "gh", "ij", "kl"):
        run(short, name, name)
    assert [run(short, f"{name} again", name) for name in ("ab", "cd", "ef", "gh", "ij", "kl")] == [1] * 6


def test_nothing_is_readable_before_it_is_written() -> None:
    """A store in flight is pending, and a failed one leaves nothing behind."""
    tier = manager()
    request = Request(tier, "r", "ab")
    keys = [*request.states(1), *request.tokens(0, 1)]
    for key in keys:
        tier.prepare_store([key], request.context)
        assert tier.lookup(key, request.context) is LookupResult.HIT_PENDING
    tier.complete_store(set(keys), request.context, success=False)
    assert all(tier.lookup(key, request.context) is LookupResult.MISS for key in keys)
    request.finish()
    assert not [key for key in counts(tier) if key[0] == names.SLOTS_USED]


def test_a_state_is_one_unit_of_all_its_groups() -> None:
    """The second group's key gets the pages that the first one's got."""
    tier = manager()
    request = Request(tier, "r", "ab")
    specs = []
    for key in request.states(1):
        output = tier.prepare_store([key], request.context)
        assert output is not None
        assert isinstance(output.store_spec, PagesSpec)
        specs.append(output.store_spec.slots)
    assert specs[0] == specs[1]


def test_a_session_of_which_one_group_is_missing_does_not_come_back() -> None:
    """Restorable means all linear groups."""
    tier = manager()
    request = Request(tier, "r", "ab")
    request.store([request.states(1)[0]])
    request.store(request.tokens())
    request.finish()
    assert run(tier, "back", "ab") == 0


def test_what_no_state_needs_is_given_up() -> None:
    """A request that ended before its boundary leaves nothing: its blocks could never be used."""
    tier = manager()
    aborted = Request(tier, "aborted", "abcdef")
    aborted.store(aborted.tokens(0, 3))
    assert counts(tier)[names.SLOTS_USED, "token", names.ALL_GROUPS] == 3
    aborted.finish()
    found = counts(tier)
    assert (names.SLOTS_USED, "token", names.ALL_GROUPS) not in found
    assert found[names.EVICTIONS, "token", "orphaned"] == 3


def test_the_states_a_session_has_passed_go_first() -> None:
    """However recent: the idle session stays, the growing one loses its old boundaries."""
    clock = Clock()
    tier = manager(pages=12, clock=clock)
    run(tier, "idle", "xyz")
    for end in range(2, 8):
        clock.now += 1000
        run(tier, f"turn {end}", "abcdefgh"[:end])
    run(tier, "new", "m")
    assert has_state(tier, "xy")
    assert has_state(tier, "abcdef")
    assert not any(has_state(tier, "abcdef"[:end]) for end in range(1, 6))
    found = counts(tier)
    assert found[names.EVICTIONS, "state", "superseded"] >= 1
    assert (names.EVICTIONS, "state", "value") not in found


def test_without_demotion_passed_states_stand_in_line_with_all_others() -> None:
    """Nothing is evicted as superseded then."""
    tier = manager(pages=8, demote=False)
    for end in range(2, 9):
        run(tier, f"turn {end}", "abcdefgh"[:end])
    found = counts(tier)
    assert (names.EVICTIONS, "state", "superseded") not in found
    assert found[names.EVICTIONS, "state", "value"] >= 1


def test_where_prefixes_part_a_state_is_kept() -> None:
    """Stored only once a second session really parts from the first there, and not superseded then."""
    tier = manager(pages=40)
    first = Request(tier, "first", "sssabc")
    assert first.store(first.states(3)) == [], "nobody has parted there yet"
    first.store(first.tokens())
    first.finish()
    run(tier, "second", "sssxyz", states=(3, 5))
    assert has_state(tier, "sss")
    run(tier, "second goes on", "sssxyzz", device_blocks=5)
    assert has_state(tier, "sss")
    assert run(tier, "third", "sssqrs") == 3


def test_a_prefix_that_goes_does_not_take_the_branches_with_it() -> None:
    """An inner state frees itself alone: the blocks below it still need those before it."""
    clock = Clock()
    tier = manager(pages=40, clock=clock)
    run(tier, "a", "ssab", states=(2, 3))
    run(tier, "b", "sscd", states=(2, 3))
    block = tier._arena.tree.blocks[b"ss"]
    assert block.state is not None
    before = tier._arena.pages.free
    tier._arena._drop(block.state, "value")
    assert tier._arena.pages.free == before + 1
    assert run(tier, "a again", "ssab") == 3


def test_what_is_being_loaded_is_never_evicted() -> None:
    """Pinned until the request has ended."""
    tier = manager(pages=4)
    run(tier, "a", "abc")
    reader = Request(tier, "reader", "abc")
    found = reader.lookup_blocks()
    keys = [*reader.tokens(0, found), *reader.states(found)]
    tier.prepare_load(keys, reader.context)
    run(tier, "other", "xyz")
    assert reader.has(keys)
    reader.finish()
    run(tier, "still other", "xyz")
    assert reader.has(keys), "finished, but the copy is still under way"
    tier.complete_load(set(keys), reader.context)
    run(tier, "other again", "xyz")
    assert not reader.has(keys)


def test_a_running_requests_blocks_stay_until_it_ends() -> None:
    """A prompt that does not fit keeps its beginning, and what found no place is counted."""
    tier = manager(pages=3)
    long = Request(tier, "long", "abcdef")
    assert [len(long.store([key])) for key in long.tokens()] == [1, 1, 1, 0, 0, 0]
    assert counts(tier)[names.REFUSED_STORES, "token"] == 3
    long.finish()
    assert run(tier, "next", "xyz") == 0
    assert run(tier, "next again", "xyz") == 2


def test_a_state_behind_blocks_that_found_no_place_is_given_up() -> None:
    """It could never be used."""
    tier = manager(pages=3)
    run(tier, "long", "abcdef")
    assert (names.SLOTS_USED, "state", names.ALL_GROUPS) not in counts(tier)


def test_a_state_without_blocks_that_another_request_waited_for_is_given_up_too() -> None:
    """Whoever made it could not give it up when it ended."""
    tier = manager()
    gone, waiting = Request(tier, "gone", "ab"), Request(tier, "waiting", "ab")
    gone.store(gone.states(2))
    assert waiting.lookup_blocks() == 0
    gone.finish()
    waiting.finish()
    assert not counts(tier).get((names.SLOTS_USED, "state", names.ALL_GROUPS))


def test_a_chunked_prefill_keeps_its_first_blocks_until_the_state_is_made() -> None:
    """Blocks come step by step, the state at the end; others may be evicted meanwhile, these not."""
    tier = manager(pages=6)
    run(tier, "other", "xy")
    slow = Request(tier, "slow", "abcd")
    for first in range(3):
        slow.store(slow.tokens(first, first + 1))
        run(tier, f"busy {first}", "mn"[: first + 1] + "o")
    for key in slow.states(3):
        slow.store([key])
    slow.store(slow.tokens(3))
    slow.finish()
    assert run(tier, "back", "abcd") == 3


@pytest.mark.parametrize("tail", [False, True], ids=["whole blocks", "a boundary inside a block last"])
def test_what_is_generated_belongs_to_the_session_too(tail: bool) -> None:
    """Blocks that fill up while it answers get their positions later, group by group: its newest state is there."""
    tier = manager()
    growing = Request(tier, "growing", "ab")
    growing.begin()
    growing.store(growing.tokens())
    growing.hashes += [b"abc", b"abcd"]
    for group in (TOKEN_GROUP, *STATE_GROUPS):
        for number in (3, 4):
            key = make_offload_key(growing.hashes[number - 1], group)
            growing.context.set_offload_key_position(key, number * CHUNK)
    if tail:
        growing.context.set_offload_key_position(make_offload_key(b"ab and a half", 1), 2 * CHUNK + CHUNK // 2)
    growing.store(growing.tokens(2))
    for key in growing.states(4):
        assert growing.store([key]) == [key]
    growing.finish()
    assert run(tier, "back", "abcde") == 4


def test_a_sub_session_burst_does_not_push_out_the_main_session() -> None:
    """A main session comes back after half an hour although a crowd of short ones came by: one
    state for many blocks saves more per byte than one for a few.
    """
    clock = Clock()
    tier = manager(pages=60, clock=clock, state_pages=8)
    main = "abcdefghijklmno"
    for turn in range(4, 13):
        clock.now += 40
        run(tier, f"main {turn}", main[:turn], device_blocks=turn - 2 if turn > 4 else 0)
    for number in range(60):
        clock.now += 30
        run(tier, f"sub {number}", f"z{chr(0x100 + number)}{chr(0x200 + number)}")
    assert run(tier, "main comes back", main[:13]) == 11


def test_a_long_idle_session_is_worth_more_if_such_sessions_come_back() -> None:
    """Learned: single questions never come back, sessions of several turns do, after more than an hour in which ten
    times as much was asked as there is room for.
    """
    clock = Clock()
    tier = manager(pages=60, clock=clock)
    came_back = []
    for day in range(30):
        name = chr(0x400 + day)
        run(tier, f"{day} 0", name * 4)
        clock.now += 20
        run(tier, f"{day} 1", name * 5, device_blocks=3)
        for number in range(150):
            clock.now += 30
            run(tier, f"{day} q {number}", chr(0x1000 + 150 * day + number) * 3)
        came_back.append(run(tier, f"{day} 2", name * 6))
        clock.now += 20
    assert came_back[-20:] == [4] * 20


def test_lookup_tokens_say_what_was_missing() -> None:
    """As for the static split. Blocks without a state do not stay, so they are absent here."""
    tier = manager(pages=40)
    run(tier, "cold", "abcdef")
    assert outcomes(tier) == {"absent": 6 * CHUNK}
    run(tier, "back", "abcdef")
    assert outcomes(tier) == {"hit": 5 * CHUNK}
    run(tier, "warm", "abcdefgh", device_blocks=2)
    assert outcomes(tier) == {"hit": 3 * CHUNK, "absent": 3 * CHUNK}


def test_gauges_share_the_arena_between_blocks_and_states() -> None:
    """Bytes of both pools are the arena; slots are what there is and what would still fit."""
    tier = manager(pages=12)
    run(tier, "a", "abcd")
    found = counts(tier)
    assert found[names.SLOTS_USED, "token", names.ALL_GROUPS] == 3
    assert found[names.SLOTS_USED, "state", names.ALL_GROUPS] == 1
    assert found[names.SLOTS, "token", names.ALL_GROUPS] == 11
    assert found[names.SLOTS, "state", names.ALL_GROUPS] == 1 + 8
    assert found[names.HOST_BYTES, "token"] + found[names.HOST_BYTES, "state"] == 2 * 12 * PAGE
    assert found[names.RESTORABLE_SESSIONS,] == 1
    assert counts(tier) == {}, "sent again only when something changed"


def test_pinned_slots_are_those_of_running_requests() -> None:
    """And none when nothing runs."""
    clock = Clock()
    tier = manager(clock=clock)
    request = Request(tier, "r", "abc")
    for key in request.states(2):
        request.store([key])
    request.store(request.tokens())
    found = counts(tier)
    assert found[names.SLOTS_PINNED, "token", names.ALL_GROUPS] == 3
    assert found[names.SLOTS_PINNED, "state", names.ALL_GROUPS] == 1
    request.finish()
    counts(tier)
    assert all(not value for key, value in tier._recorder.gauges.items() if key[0] == names.SLOTS_PINNED)


def test_a_request_that_the_device_serves_is_learned_from_but_not_counted() -> None:
    """No lookup, no tokens of this tier."""
    tier = manager()
    request = Request(tier, "r", "abc")
    tier.on_schedule_end(ScheduleEndContext([request.context.req_id], ()))
    assert outcomes(tier) == {}
    assert tier._requests["r"].visit.device == 3


def test_events_follow_what_is_stored_and_given_up() -> None:
    """For routers that listen to the engine's KV events; also what goes at a request's end."""
    tier = manager(pages=4)
    stored: set[bytes] = set()
    removed: set[bytes] = set()
    for name in ("abc", "xyz"):
        run(tier, name, name)
        for event in tier.take_events():
            (removed if event.removed else stored).update(event.keys)
    assert len(stored - removed) == 4  # of b: two blocks and a state of two groups
    assert removed < stored


def test_a_reset_forgets_everything() -> None:
    """Also what a running request held; what it stores later counts as new."""
    tier = manager(pages=4)
    running = Request(tier, "r", "ab")
    running.store(running.tokens())
    tier.reset_cache()
    assert not running.has(running.tokens(0, 1))
    running.finish()
    run(tier, "a", "abc")
    assert run(tier, "a again", "abc") == 2


def attention_only(pages: int, clock: Clock) -> ValueManager:
    group = GroupLayout(0, 0, "token", CHUNK, 64, 1, 0)
    return ValueManager(HostLayout((group,), 1, 64, 0, SlotPlan(0, 0), pages, PAGE), clock=clock)


class PlainRequest(Request):
    """A prompt of a model without linear layers."""

    def lookup_blocks(self, device_blocks: int = 0) -> int:
        found = device_blocks
        for key in self.tokens(device_blocks, len(self.hashes) - 1):
            if self.manager.lookup(key, self.context) is not LookupResult.HIT:
                break
            found += 1
        return found


def plain(tier: ValueManager, name: str, blocks: str) -> int:
    request = PlainRequest(tier, name, blocks)
    found = request.lookup_blocks()
    if found:
        keys = request.tokens(0, found)
        tier.prepare_load(keys, request.context)
        tier.complete_load(set(keys), request.context)
    request.begin()
    request.store(request.tokens(found))
    request.finish()
    return found


def test_without_linear_layers_a_chain_is_eaten_from_its_end() -> None:
    """An ordinary host tier: the last blocks of the least valuable session go, its beginning serves on."""
    clock = Clock()
    tier = attention_only(10, clock)
    assert plain(tier, "a", "abcdef") == 0
    clock.now = 5_000.0
    plain(tier, "b", "uvwxyz")
    assert plain(tier, "a again", "abcdef") == 4
    assert counts(tier)[names.SLOTS, "token", names.ALL_GROUPS] == 10


def test_without_linear_layers_shared_beginnings_are_kept_once() -> None:
    """Two sessions under one prefix: each goes back to where they part, the prefix goes last."""
    clock = Clock()
    tier = attention_only(8, clock)
    plain(tier, "a", "ssab")
    plain(tier, "b", "sscd")
    assert counts(tier)[names.SLOTS_USED, "token", names.ALL_GROUPS] == 6
    clock.now = 5_000.0
    plain(tier, "c", "vwxyz")
    assert plain(tier, "a again", "ssab") >= 2


def test_a_window_needs_its_last_blocks_alone() -> None:
    """A sliding-window group beside full attention: blocks without the window's part do not break a chain."""
    groups = (
        GroupLayout(0, 0, "token", CHUNK, 32, 1, 0),
        GroupLayout(1, 1, "token", CHUNK, 32, 2, 32, needed_everywhere=False),
        GroupLayout(2, 2, "state", CHUNK, 96, 1, 0),
    )
    tier = ValueManager(HostLayout(groups, 1, 64, 96, SlotPlan(0, 0), 20, PAGE), clock=Clock())
    request = Request(tier, "r", "abcd")
    state = request.states(3)[1:]
    window = [make_offload_key(block_hash, 1) for block_hash in request.hashes]
    request.store(state)
    request.store([*request.tokens(), *window[2:]])
    request.finish()
    back = Request(tier, "back", "abcd")
    assert back.has([*back.tokens(0, 3), window[2], *state])
    assert back.store(window) == window[:2] + window[3:], "what is still missing can be stored later"
