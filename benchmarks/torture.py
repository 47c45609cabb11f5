"""Randomised requests against a real engine whose host tier and VRAM are far too small: are answers still right?

Prompts grow, fork, are shorter than a block, end at a boundary or beside it, are given up in the middle of their
prefill, and are pushed out while they run; now and then VRAM, or every cache, is emptied. Asked one at a time, each
answer must be the one computed without any cache (the same engine, with a salt of its own). Where the two part at a
token that was just as likely as the other, it is a tie: rounding decided, not the cache; ties are shown apart. Eight at
once, the first token's log-probability must be within what batching alone changes. Checksums of all slots are on
(`verify`).

How often rounding decides depends on the processor: behind a cached prefix, and among other requests, a prompt is
computed in other pieces. So an answer that differs is asked for again at the end, without any cache, in other pieces
and among the same requests in other orders. If the engine gives it by itself, it counts as rounding, and only
otherwise as wrong. `--policy none` asks everything of an engine without a host tier, whose differences are its own.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.demo.model import build_demo_model
from benchmarks.real_engine import HOST_TIER, metrics, parallel, running_engine
from benchmarks.torture_prompts import BLOCK, LONGEST, Prompts, Tokens

AT_ONCE = 8
#: An engine without any cache shows as much between alone and eight at once, for most prompts.
LOGPROB_TOLERANCE = 0.15
#: Within this, two first log-probabilities come from one way of computing.
SAME_LOGPROB = 0.05
#: How often the engine is asked whether it gives a differing answer by itself.
OPINIONS = 40
LIMIT_SECONDS = 600.0
#: 40 blocks of VRAM for tokens and states; 25 token slots and 6 state slots in the host tier.
FLAGS = {"kv-cache-memory-bytes": 16_000_000, "max-model-len": 6_144}
#: So that most sessions stay, where nothing brings them back.
ROOMY = {"kv-cache-memory-bytes": 60_000_000}
HOST_BYTES = 20_000_000
REFERENCE_TOKENS = 2_300
#: The engine lets its caches be emptied.
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}


def host_tier(**change: Any) -> dict[str, Any]:
    """The field report's configuration, too small, with checksums."""
    extra = {
        **HOST_TIER["kv_connector_extra_config"],
        "cpu_bytes_to_use": HOST_BYTES,
        "mamba_state_slots_reference_tokens": REFERENCE_TOKENS,
        "verify": True,
        **change,
    }
    return HOST_TIER | {"kv_connector_extra_config": extra}


@dataclass(frozen=True)
class Reply:
    """What came back: the tokens, and in the place of each the most probable ones with their log-probabilities."""

    tokens: Tokens
    likely: tuple[dict[int, float], ...]

    def gap(self, other: Reply) -> float:
        """By how much the other's token was less likely here, where the two part; 0 if they do not."""
        pairs = zip(self.tokens, other.tokens, self.likely, strict=True)
        parted = next(((mine, found, likely) for mine, found, likely in pairs if mine != found), None)
        if parted is None:
            return 0.0
        mine, found, likely = parted
        return likely[mine] - likely.get(found, float("-inf"))

    def first_difference(self, other: Reply) -> float:
        """How far apart both find the token that is the most likely first one here."""
        token, logprob = max(self.likely[0].items(), key=lambda item: item[1])
        return abs(other.likely[0].get(token, float("-inf")) - logprob)

    def same_beginning(self, other: Reply, answer_tokens: int) -> bool:
        """Whether both begin with the same tokens, and find the first as likely."""
        same_tokens = self.tokens[:answer_tokens] == other.tokens[:answer_tokens]
        return same_tokens and self.first_difference(other) <= SAME_LOGPROB


@dataclass(frozen=True)
class Doubt:
    """An answer that differs, and how to have the engine compute its first tokens anew, without any cache."""

    told: str
    found: Reply
    answer_tokens: int
    again: Callable[[], Reply]


@dataclass
class Report:
    """What happened, and what was wrong."""

    rounds: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    rounding: list[str] = field(default_factory=list)
    largest_logprob_difference: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def fine(self) -> bool:
        """Every answer was right, every slot held what was stored, and the tier was really in use."""
        kinds = ("hits", "evictions", "preemptions")
        return not self.wrong and not self.counters["verify_failures"] and all(self.counters[kind] for kind in kinds)


def ask(base_url: str, tokens: Tokens, answer_tokens: int, salt: str | None = None) -> Reply:
    """Greedy. A salt makes every block unknown to all caches."""
    body: dict[str, Any] = {
        "model": "demo",
        "prompt": list(tokens),
        "max_tokens": answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 5,
        # By number: several tokens of this vocabulary have the same text.
        "return_tokens_as_token_ids": True,
    }
    if salt is not None:
        body["cache_salt"] = salt
    response = httpx.post(f"{base_url}/v1/completions", json=body, timeout=LIMIT_SECONDS)
    response.raise_for_status()
    choice = response.json()["choices"][0]
    likely = [
        {int(token.removeprefix("token_id:")): logprob for token, logprob in place.items()}
        for place in choice["logprobs"]["top_logprobs"]
    ]
    return Reply(tuple(choice["token_ids"]), tuple(likely))


def give_up(base_url: str, tokens: Tokens, after_seconds: float) -> None:
    """Ask and hang up, most likely within the prefill."""
    body = {"model": "demo", "prompt": list(tokens), "max_tokens": 64, "ignore_eos": True, "stream": True}
    with contextlib.suppress(httpx.TimeoutException):
        httpx.post(f"{base_url}/v1/completions", json=body, timeout=after_seconds)


def empty(base_url: str, host_too: bool = False) -> bool:
    """Forget what VRAM has, and what the host tier has; False if VRAM was in use."""
    asked = {"reset_external": host_too}
    response = httpx.post(f"{base_url}/reset_prefix_cache", params=asked, timeout=LIMIT_SECONDS)
    response.raise_for_status()
    return bool(response.json()["success"])


class Torture:
    """Rounds against one engine. Two tokens whose log-probabilities are no more than `tie` apart may stand for one
    another: by default only if they are equal.
    """

    def __init__(self, base_url: str, seed: int, tie: float = 0.0) -> None:
        self.report = Report()
        self._base_url = base_url
        self._tie = tie
        # What is computed among others differs by rounding, and so does what goes on from it: kept apart.
        self._alone, self._together = Prompts(f"alone {seed}"), Prompts(f"together {seed}")
        self._cold: dict[tuple[Tokens, int], Reply] = {}
        self._salts = 0
        self.doubts: list[Doubt] = []
        self._again = random.Random(seed)  # noqa: S311 - nothing secret

    def run(self, rounds: int, limit_seconds: float = float("inf")) -> Report:
        """Half of them one at a time; every fourth round eight at once, every fourth with some given up.
        None begins after the limit.
        """
        began, before = time.monotonic(), metrics(self._base_url)
        for number in range(rounds):
            if time.monotonic() - began > limit_seconds:
                break
            kind = ("serial", "abort", "serial", "at once")[number % 4]
            {"serial": self._serial, "abort": self._abort, "at once": self._at_once}[kind]()
            self.report.rounds += 1
        self.report.seconds = time.monotonic() - began
        self.report.counters = _rises(before, metrics(self._base_url))
        self.settle()
        return self.report

    def settle(self) -> None:
        """What differs is wrong if the engine does not compute it without any cache, however often it is asked."""
        for doubt in self.doubts:
            own = any(doubt.found.same_beginning(doubt.again(), doubt.answer_tokens) for _ in range(OPINIONS))
            (self.report.rounding if own else self.report.wrong).append(doubt.told)
        self.doubts.clear()

    def _serial(self, count: int = 3) -> None:
        for _ in range(count):
            kind, tokens = self._alone.next()
            self.report.asked[kind] += 1
            if self._alone.rng.random() < 0.5:
                self._empty(host_too=self._alone.rng.random() < 0.05)
            self._compare(kind, tokens, ask(self._base_url, tokens, 8))

    def _empty(self, host_too: bool = False) -> None:
        """The host tier is emptied even while transfers are under way."""
        done = empty(self._base_url, host_too)
        self.report.asked["host tier emptied" if host_too else "VRAM emptied"] += done or host_too

    def _compare(self, kind: str, tokens: Tokens, found: Reply) -> None:
        cold = self._without_cache(tokens, 8)
        if found.tokens == cold.tokens:
            return
        gap = cold.gap(found)
        told = f"{kind}, {len(tokens)} tokens: {found.tokens} instead of {cold.tokens}, {gap:.3f} less likely"
        if gap <= self._tie:
            self.report.ties.append(told)
        else:
            self.doubts.append(Doubt(told, found, 8, lambda: self._in_pieces(tokens, 8)))

    def _abort(self) -> None:
        """One is given up and then asked for again; two are given up at once."""
        _, tokens = self._alone.next()
        give_up(self._base_url, tokens, self._alone.rng.uniform(0.02, 0.6))
        self._wait_until_idle()
        self._compare("after giving up", tokens, ask(self._base_url, tokens, 8))
        rng = self._together.rng
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(give_up, self._base_url, self._together.next()[1], rng.uniform(0.02, 0.6))
        self._wait_until_idle()
        self.report.asked["given up"] += 3
        self._serial(1)

    def _wait_until_idle(self) -> None:
        """The engine hears of a hang-up some steps later."""
        busy = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        while any(metrics(self._base_url)[name,] for name in busy):
            time.sleep(0.05)

    def _at_once(self) -> None:
        """More than VRAM holds, each about to need another block, so that some are pushed out."""
        source = self._together
        rng = source.rng
        prompts = [source.next()[1] for _ in range(AT_ONCE // 2)]
        prompts += [source.fresh(source.boundary_length(5) - 8) for _ in range(AT_ONCE - len(prompts))]
        answers = [rng.choice((8, 8, 24, 48)) for _ in prompts]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            replies = [pool.submit(ask, self._base_url, *asked) for asked in zip(prompts, answers, strict=True)]
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0.1, 2.0))
                self._empty(host_too=True)
            found = [reply.result() for reply in replies]
        self.report.asked["at once"] += len(prompts)
        for number, reply in enumerate(found):
            self._compare_first(tuple(zip(prompts, answers, strict=True)), number, reply)

    def _compare_first(self, asked: tuple[tuple[Tokens, int], ...], number: int, found: Reply) -> None:
        tokens = asked[number][0]
        difference = self._without_cache(tokens, 1).first_difference(found)
        self.report.largest_logprob_difference = max(self.report.largest_logprob_difference, difference)
        if difference > LOGPROB_TOLERANCE:
            told = f"at once, {len(tokens)} tokens: first log-probability differs by {difference:.3f}"
            self.doubts.append(Doubt(told, found, 1, lambda: self._among_others(asked, number)))

    def _without_cache(self, tokens: Tokens, answer_tokens: int) -> Reply:
        if (tokens, answer_tokens) not in self._cold:
            self._cold[tokens, answer_tokens] = ask(self._base_url, tokens, answer_tokens, self._salt())
        return self._cold[tokens, answer_tokens]

    def _in_pieces(self, tokens: Tokens, answer_tokens: int) -> Reply:
        """The beginning was computed by earlier requests: nothing but VRAM's own cache is of use."""
        salt, last = self._salt(), (len(tokens) - 1) // BLOCK
        for blocks in sorted(self._again.sample(range(1, last + 1), self._again.randint(0, last))):
            ask(self._base_url, tokens[: blocks * BLOCK + 1], 1, salt)
        return ask(self._base_url, tokens, answer_tokens, salt)

    def _among_others(self, asked: tuple[tuple[Tokens, int], ...], number: int) -> Reply:
        """All of them once more, in another order and not quite at the same moment."""
        order = self._again.sample(range(len(asked)), len(asked))
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            replies = {}
            for other in order:
                replies[other] = pool.submit(ask, self._base_url, *asked[other], self._salt())
                if self._again.random() < 0.3:
                    time.sleep(self._again.uniform(0, 0.3))
            found = {other: reply.result() for other, reply in replies.items()}
        return found[number]

    def _salt(self) -> str:
        self._salts += 1
        return f"salt {self._salts}"


def _rises(before: dict[tuple[str, ...], float], after: dict[tuple[str, ...], float]) -> dict[str, float]:
    wanted = {
        "hits": "vllm:external_prefix_cache_hits_total",
        "vram_hits": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
        "evictions": "tierdeck_host_evictions_total",
        "refused_stores": "tierdeck_host_refused_stores_total",
        "verify_failures": "tierdeck_host_verify_failures_total",
    }
    return {
        word: sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)
        for word, name in wanted.items()
    }


@contextlib.contextmanager
def telling(log: Path) -> Iterator[None]:
    """Print the engine's errors if the engine fails."""
    try:
        yield
    except httpx.HTTPError:
        print(*[line for line in log.read_text().splitlines() if "ERROR" in line][:80], sep="\n", file=sys.stderr)
        raise


def main() -> int:
    """Command line entry; non-zero when an answer was wrong or a slot was."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="lru", help="none: without a host tier, and with more VRAM")
    parser.add_argument("--workers", type=int, default=1, help="tensor parallel")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tierdeck-torture-") as directory:
        model = build_demo_model(Path(directory) / "demo")
        alone = arguments.policy == "none"
        tier, flags = (None, FLAGS | ROOMY) if alone else (host_tier(eviction_policy=arguments.policy), FLAGS)
        more_flags, more_environment = parallel(arguments.workers)
        flags |= more_flags | {"kv-cache-memory-bytes": flags["kv-cache-memory-bytes"] // arguments.workers}
        flags |= {"max-model-len": 2 * LONGEST}  # half as much VRAM could not hold a longer one
        log = Path(directory) / "engine.log"
        with running_engine(model, log, tier, ENVIRONMENT | more_environment, flags) as engine, telling(log):
            report = Torture(engine.base_url, arguments.seed).run(arguments.rounds, arguments.seconds)
    print(json.dumps(vars(report)) if arguments.json else text(report))
    return 0 if report.fine else 1


def text(report: Report) -> str:
    """For people."""
    asked = ", ".join(f"{count} {kind}" for kind, count in sorted(report.asked.items()))
    counted = ", ".join(f"{word.replace('_', ' ')} {value:.0f}" for word, value in report.counters.items())
    return "\n".join(
        [
            f"{report.rounds} rounds in {report.seconds:.0f} s: {asked}",
            counted,
            f"largest difference of a first log-probability, eight at once: {report.largest_logprob_difference:.3f}",
            *[f"tie: {told}" for told in report.ties],
            *[f"rounding, as without a cache: {told}" for told in report.rounding],
            *report.wrong,
            "fine" if report.fine else "NOT FINE",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
