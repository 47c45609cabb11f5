"""Causes and alerts that were kept in English, on a Chinese page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.alerts.machine import Memory, step
from app.alerts.rules import HostHitsLow, Observation
from app.rollouts.holds import Hold
from app.supervisor.backoff import RetryPolicy
from app.supervisor.causes import Cause
from app.supervisor.decide import Exited, RetryDue, Situation, Stop, decide
from app.supervisor.faults import Exit, Fault
from app.supervisor.log_causes import LogCause
from app.supervisor.signatures import SIGNATURES, FaultScanner, Signature
from app.supervisor.states import EngineState
from app.web.i18n import languages
from app.web.retold import retold, templates
from engine.residency_place import shortage
from tests.fakes import fake_deck
from tests.unit.supervisor.test_signatures import CASES
from tests.unit.web.conftest import BEARER, HTML, running

POLICY = RetryPolicy(equal_limit=2)
PLACE = re.compile(r"%\((\w+)\)s")
#: What a Chinese sentence has in Latin letters: names of programs, files and flags, and units.
NAMES = re.compile(
    r"token|UTC|max-model-len|config\.json|torchvision|torch|vLLM|worker|rank|/dev/shm|/health|JSON|HTTP|SIGSTOP|force"
)


def chinese(text: str) -> str:
    return retold(text, languages()["zh"].gettext)


def english(text: str) -> str:
    return retold(text, languages()["en"].gettext)


def causes() -> list[str]:
    """Of an engine that crashes, is tried, crashes again, is given up; of one that is stopped."""
    ready = Situation(EngineState.READY, 0.0, Cause.SERVES % {"seconds": "12"})
    failed = decide(1.0, ready, Exited(Exit(signal=9), None, None), POLICY)
    tried = decide(2.0, failed, RetryDue(), POLICY)
    crashed = decide(3.0, tried, Exited(Exit(code=1), None, None), POLICY)
    again = decide(4.0, crashed, RetryDue(), POLICY)
    given_up = decide(5.0, again, Exited(Exit(code=1), None, None), POLICY)
    drained = decide(1.0, ready, Stop(), POLICY)
    assert given_up.state is EngineState.FAILED
    left = f"{drained.cause} {Cause.STILL_IN_FLIGHT % {'count': 2}}"
    return [ready.cause, failed.cause, tried.cause, given_up.cause, drained.cause, left]


def alerts() -> list[str]:
    """Each sentence of a rule on its way: too few, bad, about to fire, fired, a gap, about to resolve, fine."""
    rule, memory, told = HostHitsLow(), Memory(), [Memory().sentence]
    seen = [
        Observation(0.0, None, None, 0),
        Observation(10.0, 0.0, 0.5, 1_000),
        *(Observation(at, 0.001, 0.452, 300_000) for at in (20.0, 80.0, 140.0)),
        Observation(200.0, None, None, None, "the engine does not run"),
        Observation(260.0, 0.6, 0.1, 300_000),
    ]
    for one in seen:
        made = step(memory, rule.judge(one), one.at, rule.hold_seconds)
        memory = made.memory
        told += [memory.sentence, *([made.flip.sentence] if made.flip else [])]
    assert memory.is_firing
    return told


@pytest.mark.parametrize("text", [*causes(), *alerts()])
def test_all_of_it_is_told(text: str) -> None:
    """Every word of what is made of templates alone; in English it is what it was."""
    assert english(text) == text
    assert english_words(chinese(text)) == [], chinese(text)


def english_words(text: str) -> list[str]:
    """Those that no Chinese sentence has."""
    return re.findall(r"[a-z]{4,}", NAMES.sub("", text))


def numbered(template: str) -> tuple[str, list[str]]:
    """`template` with a number of its own at each place, and those numbers."""
    values = {name: f"{index + 101}" for index, name in enumerate(PLACE.findall(template))}
    return template % values, list(values.values())


@pytest.mark.parametrize("template", sorted(templates()))
def test_every_template_is_told_with_its_values(template: str) -> None:
    """Of logs, causes, holds and alerts: no English left, and each number where it belongs."""
    text, numbers = numbered(template)
    assert english(text) == text
    assert english_words(chinese(text)) == [] and not chinese(text).isascii(), chinese(text)
    assert sorted(re.findall(r"10[1-9]", chinese(text))) == numbers, chinese(text)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda one: f"{one.code}-{one.sentence.name}")
@pytest.mark.parametrize("is_fatal", [True, False])
def test_a_cause_from_the_log_is_told_whatever_is_around_it(signature: Signature, is_fatal: bool) -> None:
    """Of an engine that failed at once, or was given up after equal failures and tried again."""
    sentence, numbers = numbered(signature.sentence)
    crash = Exited(Exit(code=1), Fault(signature.code, sentence, is_fatal), None)
    once = decide(1.0, Situation(EngineState.STARTING, 0.0, Cause.START.value), crash, POLICY)
    again = once if is_fatal else decide(2.0, once, RetryDue(), POLICY)
    ended = once if is_fatal else decide(3.0, again, crash, POLICY)
    assert ended.state is EngineState.FAILED
    for text in (once.cause, again.cause, ended.cause):
        assert english_words(chinese(text)) == [], chinese(text)
        assert all(number in chinese(text) for number in numbers)


@pytest.mark.parametrize("lines", [lines for lines, *_ in CASES])
def test_what_real_logs_give_is_told(lines: list[str]) -> None:
    """Whatever an engine writes at the places of its sentence, the template is found again."""
    scanner = FaultScanner()
    for line in lines:
        scanner.feed(line)
    assert scanner.fault is not None
    told = chinese(scanner.fault.sentence)
    assert not told.isascii() and english(scanner.fault.sentence) == scanner.fault.sentence
    assert all(number in told for number in re.findall(r"\d+(?:\.\d+)?", scanner.fault.sentence))


def test_what_the_engine_s_half_says_of_shared_memory_is_told(tmp_path: Path) -> None:
    """Its words are its own: they have to be those of the deck's template."""
    short = shortage(tmp_path / "tier", 1 << 60)
    told = chinese(Cause.SHARED_MEMORY_FULL % {"why": short})
    assert told.startswith(f"共享内存不足以容纳主机层：{tmp_path} 中需要 {1 << 60} 字节，但只有 ")


def test_the_engine_s_own_words_survive() -> None:
    """In the places of a sentence stands what the engine wrote; numbers, names, quotes and brackets as they were."""
    text = LogCause.INVALID_JSON % {"why": "key must be a string at line 1 column 2"}
    assert chinese(text) == "引擎拒绝了此配置：JSON 无效，key must be a string at line 1 column 2。"
    text = LogCause.HANDLER_DEAD % {"why": LogCause.LOG_IS_SILENT.value}
    assert chinese(text).startswith("已降级：输出处理任务已终止（其日志没有说明原因）。")
    text = LogCause.ARCHITECTURE % {"names": "['NopeForCausalLM']"}
    assert chinese(text) == "引擎不支持此模型的架构 ['NopeForCausalLM']。"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("The engine exited with code 1 while starting: ValueError: no", "引擎在启动时以代码 1 退出：ValueError: no"),
        ("Stop asked for. Nothing is in flight.", "已要求停止。 没有进行中的请求。"),
        ("ValueError: 90 % of it (all) is gone.", "ValueError: 90 % of it (all) is gone."),
        (
            "one was given up: Its port is free again. two is stalled: x",
            "one 已被放弃：它的端口又空闲了。 two 已停滞：x",
        ),
        ("", ""),
    ],
)
def test_what_is_not_known_stays(text: str, told: str) -> None:
    """The engine's own last words are told as they are, what is around them is translated."""
    assert chinese(text) == told
    assert english(text) == text


def test_a_long_chain_ends() -> None:
    """Tries that name the try before stand within each other without end."""
    text = "x"
    for number in range(50):
        text = Cause.TRY % {"number": number, "cause": text}
    assert chinese(text).startswith("第 49 次尝试，此前：第 48 次尝试") and english(text) == text


async def test_pages_tell_them_in_chinese_and_rest_in_english(tmp_path: Path) -> None:
    """An engine that was given up, on each page that tells why."""
    app = fake_deck.build(tmp_path, "down")
    async with running(app) as client:
        for path in ("/", "/engines/main-1", "/fleets"):
            page = (await client.get(path, headers={**BEARER, **HTML, "accept-language": "zh"})).text
            assert "/models/qwen 处没有模型：路径不存在。" in page, path
        told = (await client.get("/api/v1/engines/main-1", headers={**BEARER, "accept-language": "zh"})).json()
        assert told["cause"] == "There is no model at /models/qwen: the path does not exist."


async def test_a_held_engine_says_so_in_chinese(tmp_path: Path) -> None:
    """On its page; who asks by REST or looks at the probe reads English."""
    app = fake_deck.build(tmp_path)
    async with running(app) as client:
        held = Hold.CHANGES % {"id": 7, "engine": "main-1", "version": "agents v3"}
        app.state.deck.engines.hold("main-1", held)
        page = (await client.get("/engines/main-1", headers={**BEARER, **HTML, "accept-language": "zh"})).text
        probe = (await client.get("/readyz", headers={"accept-language": "zh"})).json()
    assert "发布 7 正在将引擎 main-1 切换到 agents v3。" in page
    assert probe["held"] == {"main-1": held}
