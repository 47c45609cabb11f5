"""Reasons, read from logs as vLLM 0.32 writes them."""

from __future__ import annotations

import pytest

from app.supervisor.signatures import FaultScanner, HandlerScanner

KV = (
    "(EngineCore pid=9) ERROR 11-30 01:02:03 [core.py:1180] ValueError: To serve at least one request with the "
    "model's max seq len (262144), (4.02 GiB KV cache is needed, which is larger than the available KV cache memory "
    "(0.06 GiB). Based on the available memory, the estimated maximum model length is 4096. Try increasing `gpu_m`"
)
FREE = (
    "ValueError: Free memory on device cuda:0 (0.41/79.1 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
CASES = [
    ([KV], "kv_memory", True, ["262144", "4.02", "0.06", "4096"]),
    (
        ["(APIServer pid=1) WARNING 11-30 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly; st"],
        "core_died",
        False,
        [],
    ),
    (
        ["(EngineCore pid=2) ERROR 11-30 [x.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shut"],
        "worker_died",
        False,
        ["VllmWorker-0", "-9"],
    ),
    (["ValueError: No available memory for the cache blocks. Try increasing"], "kv_memory", True, []),
    ([FREE], "device_memory_busy", False, ["0.41", "79.1", "71.2", "cuda:0"]),
    (
        [
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "  Value error, Model architectures ['NopeForCausalLM'] are not supported for now. Supported archi",
        ],
        "unsupported_architecture",
        True,
        ["NopeForCausalLM"],
    ),
    (
        [
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "  Value error, Invalid repository ID or local directory specified: '/tmp/empty'.",
            "Please verify the following requirements:",
        ],
        "model_not_found",
        True,
        ["/tmp/empty"],
    ),
    (
        [
            "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name "
            "cannot start or end with '-' or '.' and the maximum length is 96: '/nonexistent'."
        ],
        "model_not_found",
        True,
        ["/nonexistent"],
    ),
    (
        ["OSError: org/name does not appear to have a file named config.json. Checkout 'https://hf.co'"],
        "model_not_found",
        True,
        ["org/name"],
    ),
    (
        ["OSError: no/such is not a local folder and is not a valid model identifier listed on 'https://hf.co'"],
        "model_not_found",
        True,
        ["no/such"],
    ),
    (
        ["huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"],
        "model_not_found",
        True,
        ["not on this machine"],
    ),
    (["api_server.py: error: unrecognized arguments: --no-such 5"], "unknown_argument", True, ["--no-such 5"]),
    (
        [
            "api_server.py: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig",
            "  Invalid JSON: key must be a string at line 1 column 2 [type=json_invalid, input_value='{k', inpu",
        ],
        "config_rejected",
        True,
        ["key must be a string at line 1 column 2"],
    ),
    (
        [
            "api_server.py: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig",
            "bogus",
            "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1, input_type=int]",
            "    For further information visit https://errors.pydantic.dev/2.14/v/unexpected_keyword_argument",
        ],
        "config_rejected",
        True,
        ["KVTransferConfig", "bogus: Unexpected keyword argument."],
    ),
    (
        ["api_server.py: error: argument --max-model-len: invalid human_readable_int value: 'abc'"],
        "config_rejected",
        True,
        ["--max-model-len", "'abc'"],
    ),
    (["(EngineCore pid=1) engine.config.ConfigError: a.b must be positive"], "config_rejected", True, ["a.b"]),
    (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"], "out_of_memory", True, ["20.00"]),
    (
        [
            "RuntimeError: [enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"
        ],
        "out_of_memory",
        True,
        ["68719476736"],
    ),
    (["MemoryError"], "out_of_memory", True, []),
    (["OSError: [Errno 98] Address already in use"], "port_in_use", True, []),
    (["OSError: [Errno 28] No space left on device: '/psm_1'"], "shared_memory_full", False, ["/psm_1"]),
    (["OSError: [Errno 14] Bad address"], "shared_memory_full", False, ["Bad address"]),
    (["RuntimeError: operator torchvision::nms does not exist"], "torchvision_broken", True, []),
    (["ModuleNotFoundError: No module named 'vllm'"], "engine_not_installed", True, []),
    (["/x/python: Error while finding module (No module named 'vllm')"], "engine_not_installed", True, []),
]


@pytest.mark.parametrize(("lines", "code", "fatal", "parts"), CASES)
def test_known_reasons(lines: list[str], code: str, fatal: bool, parts: list[str]) -> None:
    """Each known end becomes one sentence with its numbers, and says whether trying again can help."""
    scanner = FaultScanner()
    for line in ["(APIServer pid=1) INFO 11-30 01:29:47 [api_utils.py:286] non-default args: {}", *lines]:
        scanner.feed(line)
    fault = scanner.fault
    assert fault is not None and (fault.code, fault.fatal) == (code, fatal)
    assert all(part in fault.sentence for part in parts), fault.sentence
    assert "\n" not in fault.sentence and fault.sentence.endswith((".", "memory.", "positive"))


def test_first_cause_wins() -> None:
    """What broke first is the cause; what follows are its consequences."""
    scanner = FaultScanner()
    for line in [KV, "OSError: [Errno 98] Address already in use", "RuntimeError: Engine core initialization failed."]:
        scanner.feed(line)
    assert scanner.fault is not None and scanner.fault.code == "kv_memory"


def test_last_words() -> None:
    """An end without a known reason shows the first exception, not the front end's echo of it."""
    scanner = FaultScanner()
    scanner.feed("(EngineCore pid=1) ERROR 11-30 01:00:00 [core.py:1] ValueError: the moon is full")
    scanner.feed("RuntimeError: Engine core initialization failed. See root cause above.")
    assert scanner.fault is None and scanner.last_words == "ValueError: the moon is full"
    echo_only = FaultScanner()
    echo_only.feed("RuntimeError: Engine core initialization failed. See root cause above.")
    assert echo_only.last_words is None


CORE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "


def test_a_killed_core_is_told_by_name_and_signal() -> None:
    """What broke in the front end by that is its consequence."""
    scanner = FaultScanner()
    scanner.feed("(EngineCore_DP0 pid=4711) INFO 11-30 01:00:00 [core.py:1] Initializing a V1 LLM engine")
    scanner.feed("(APIServer pid=1) BrokenPipeError: [Errno 32] Broken pipe")
    assert (
        scanner.last_words == "another of its processes had ended before it (BrokenPipeError: [Errno 32] Broken pipe)"
    )
    scanner.feed(f"(APIServer pid=1) {CORE_FAILED}{{'EngineCore_DP0': -9}}")
    assert scanner.last_words is not None
    assert scanner.last_words.startswith("its process EngineCore_DP0 (pid 4711) was killed by signal 9 (SIGKILL")


def test_a_root_cause_wins_over_what_broke_by_it() -> None:
    """Whichever was printed first."""
    scanner = FaultScanner()
    scanner.feed("(APIServer pid=1) BrokenPipeError: [Errno 32] Broken pipe")
    scanner.feed("(EngineCore pid=2) ERROR 11-30 01:00:00 [core.py:1] ValueError: the moon is full")
    scanner.feed(f"(APIServer pid=1) {CORE_FAILED}{{'EngineCore': 1}}")
    assert scanner.last_words == "ValueError: the moon is full"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) INFO 11-30 01:00:00 [x.py:1] Available KV cache memory: 3.2 GiB",
        "(APIServer pid=1) WARNING 11-30 01:00:00 [x.py:1] max_num_batched_tokens exceeds memory",
        'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK',
        "DeprecationWarning: `vllm.entrypoints.openai.api_server` is deprecated",
    ],
)
def test_ordinary_lines(line: str) -> None:
    """An ordinary line is no reason."""
    scanner = FaultScanner()
    scanner.feed(line)
    assert scanner.fault is None and scanner.last_words is None


HANDLER = "(APIServer pid=1) ERROR 11-30 01:00:00 [async_llm.py:7] "


def test_output_handler_and_why() -> None:
    """The pair of lines, however many lines of traceback lie between: the exception is told."""
    scanner = HandlerScanner()
    assert scanner.feed("output_handler started") is None
    assert scanner.feed(f"{HANDLER}AsyncLLM output_handler failed.") is None
    assert scanner.feed(f"{HANDLER}Traceback (most recent call last):") is None
    assert scanner.feed(f"{HANDLER}    self.counter.inc(-1)") is None
    fault = scanner.feed(f"{HANDLER}ValueError: Counters can only be incremented by non-negative amounts.")
    assert fault is not None and fault.code == "output_handler_dead"
    assert fault.sentence.startswith(
        "Degraded: output handler dead (ValueError: Counters can only be incremented by non-negative amounts.)"
    )
    assert scanner.feed(f"{HANDLER}ValueError: another one") is None, "told once"


def test_output_handler_of_an_engine_that_is_ending() -> None:
    """A dead core ends the front end too: the end itself is the news."""
    scanner = HandlerScanner()
    scanner.feed(f"{HANDLER}AsyncLLM output_handler failed.")
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    assert scanner.feed(f"{HANDLER}{dead}") is None
    assert scanner.feed_nothing() is None and scanner.feed_nothing() is None


def test_output_handler_without_a_word_why() -> None:
    """Nothing more is written: the line alone counts, a moment later."""
    scanner = HandlerScanner()
    assert scanner.feed_nothing() is None and scanner.feed_nothing() is None
    scanner.feed(f"{HANDLER}AsyncLLM output_handler failed.")
    assert scanner.feed_nothing() is None
    assert scanner.feed_nothing() is not None
