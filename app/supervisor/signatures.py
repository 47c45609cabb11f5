"""What the log of a run says about why it ended. Pure: lines in, one fault out.

The texts are those of vLLM 0.32 and of the libraries under it, as they stand in real logs. A rule
that is specific wins over the catch-all ones, and the first match over later ones: what broke first
is the cause, what follows are consequences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.supervisor.causes import Cause
from app.supervisor.faults import Exit, Fault
from app.supervisor.log_causes import LogCause


@dataclass(frozen=True)
class Signature:
    """A line that explains an end. `sentence` may name the groups of `pattern`; `why1` and `why2` are `why`."""

    code: str
    pattern: re.Pattern[str]
    sentence: LogCause
    fatal: bool = True

    def match(self, text: str) -> Fault | None:
        """The fault that `text` names, if it is of this kind."""
        if (found := self.pattern.search(text)) is None:
            return None
        values = {name.rstrip("0123456789"): value for name, value in found.groupdict().items() if value is not None}
        return Fault(self.code, self.sentence % values, self.fatal)


_KV_NEEDED = (
    r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the "
    r"available KV cache memory \((?P<available>[\d.]+) GiB\)"
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        "kv_memory",
        re.compile(_KV_NEEDED + r".*?estimated maximum model length is (?P<fitting>\d+)"),
        LogCause.KV_NEEDED_FITTING,
    ),
    Signature("kv_memory", re.compile(_KV_NEEDED), LogCause.KV_NEEDED),
    Signature("kv_memory", re.compile(r"No available memory for the cache blocks"), LogCause.KV_NOTHING_LEFT),
    Signature(
        "device_memory_busy",
        re.compile(
            r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*?"
            r"less than .*?\([\d.]+, (?P<wanted>[\d.]+) GiB\)"
        ),
        LogCause.DEVICE_BUSY,
        fatal=False,  # memory of an engine that just ended comes back after a while
    ),
    Signature(
        "worker_died",
        re.compile(r"Worker proc (?P<name>\S+) died unexpectedly \(exit code: (?P<exit>-?\d+)\)"),
        LogCause.WORKER_DIED,
        fatal=False,
    ),
    Signature("core_died", re.compile(r"engine core exited unexpectedly"), LogCause.CORE_DIED, fatal=False),
    Signature(
        "unsupported_architecture",
        re.compile(r"Model architectures (?P<names>\[.*?\]) are not supported"),
        LogCause.ARCHITECTURE,
    ),
    Signature(
        "model_not_found",
        re.compile(
            r"Invalid repository ID or local directory specified: '?(?P<model1>[^'\n]+?)'?\.?$"
            r"|(?P<model2>\S+) is not a local folder and is not a valid model identifier"
            r"|Repo id must (?:be|use) .*?: '(?P<model3>[^']+)'"
            r"|(?P<model4>\S+) does not appear to have (?:a file named|files named)"
        ),
        LogCause.MODEL_NOT_FOUND,
    ),
    Signature("model_not_found", re.compile(r"LocalEntryNotFoundError: "), LogCause.MODEL_NOT_HERE),
    Signature(
        "unknown_argument",
        re.compile(r"error: unrecognized arguments: (?P<arguments>.+)"),
        LogCause.UNKNOWN_FLAG,
    ),
    Signature(
        "unknown_argument",
        re.compile(r"error: ambiguous option: (?P<arguments>.+)"),
        LogCause.AMBIGUOUS_FLAG,
    ),
    Signature("config_rejected", re.compile(r"Invalid JSON: (?P<why>.+?)(?: \[type=|$)"), LogCause.INVALID_JSON),
    Signature(
        "config_rejected",
        re.compile(r"\bengine\.config\.ConfigError: (?P<why>.+)"),
        LogCause.CONNECTOR_REJECTED,
    ),
    Signature(
        "config_rejected",
        re.compile(r"(?:Unsupported connector type: |Unknown offloading spec)[ :.]*(?P<why>.*?)[ :.]*$"),
        LogCause.UNKNOWN_CONNECTOR,
    ),
    Signature(
        "out_of_memory",
        re.compile(r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)"),
        LogCause.DEVICE_OUT_OF_MEMORY,
    ),
    Signature(
        "out_of_memory",
        re.compile(r"can't allocate memory: you tried to allocate (?P<size>\d+) bytes"),
        LogCause.MACHINE_OUT_OF_MEMORY,
    ),
    Signature(
        "out_of_memory",
        re.compile(r"^(?:\(.*?\) )?(?:\w+ [\d: -]+\[\S+\] )?(?:MemoryError|torch\.\w*\.?OutOfMemoryError)\b"),
        LogCause.OUT_OF_MEMORY,
    ),
    Signature("port_in_use", re.compile(r"\[Errno 98\].*[Aa]ddress already in use"), LogCause.PORT_IN_USE),
    Signature(
        "shared_memory_full",
        re.compile(r"OSError: \[Errno (?:28|14)\] (?P<why>(?:No space left on device|Bad address).*)"),
        LogCause.NO_SPACE,
        fatal=False,
    ),
    Signature("torchvision_broken", re.compile(r"operator torchvision::nms does not exist"), LogCause.TORCHVISION),
    Signature("engine_not_installed", re.compile(r"No module named '?vllm\b"), LogCause.NOT_INSTALLED),
)

#: Every line that a signature matches holds one of these. Lines are many, and this look is cheap.
_HINTS = (
    "KV cache",
    "cache blocks",
    "Free memory on",
    "not supported",
    "repository ID",
    "local folder",
    "Repo id",
    "appear to have",
    "Error",
    "rror: ",
    "Invalid JSON",
    "connector type",
    "offloading spec",
    "memory",
    "Errno",
    "does not exist",
    "No module named",
    "unexpectedly",
)

#: The front end's word for "some process of mine failed": true, and no explanation.
_CONSEQUENCES = re.compile(r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError")
#: What breaks because another process is gone: told only where nothing else was.
_ECHOES = re.compile(r"^(?:BrokenPipe|ConnectionReset|ConnectionRefused|EOF)Error\b")
#: With it the front end tells how the others ended: {'EngineCore_DP0': -9}.
_FAILED_PROCESSES = re.compile(r"Failed core proc\(s\): \{(?P<ends>[^}]*)\}")
_KILLED_PROCESS = re.compile(r"'(?P<name>[^']+)': -(?P<signal>\d+)")
_WRITER = re.compile(r"^\((?P<name>\S+) pid=(?P<pid>\d+)\) ")
_WRITERS_KEPT = 64
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<type>[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): ?(?P<why>.+)")
_ARGUMENT = re.compile(r"error: argument (?P<why>.+)")
_VALIDATION = re.compile(r"\d+ validation errors? for (?P<what>\w+)")
_PYDANTIC_TAIL = re.compile(r"\s*\[type=.*")
_PREFIX = re.compile(r"^(?:\(\S+ pid=\d+\) )?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_VALIDATION_LINES = 4


class FaultScanner:
    """Remembers, of all the lines fed to it, what explains an end best. Constant memory."""

    def __init__(self) -> None:
        self._specific: Fault | None = None
        self._rejected: Fault | None = None
        self._exception: str | None = None
        self._killed: str | None = None
        self._echo: str | None = None
        self._pids: dict[str, str] = {}
        """Of the processes that wrote."""
        self._validation: list[str] | None = None

    def feed(self, line: str) -> None:
        """Take one clean line of the log."""
        if self._specific is not None:
            return
        if (writer := _WRITER.match(line)) and (writer["name"] in self._pids or len(self._pids) < _WRITERS_KEPT):
            self._pids[writer["name"]] = writer["pid"]
        text = _PREFIX.sub("", line, count=1)
        self._specific = match_signature(text)
        self._collect_validation(text)
        self._killed = self._killed or self._killed_process(text)
        if (found := _EXCEPTION.match(text)) and not _CONSEQUENCES.search(text):
            words = f"{found['type']}: {found['why']}"[:300]
            if _ECHOES.match(words):
                self._echo = self._echo or Cause.ANOTHER_ENDED % {"why": words}
            else:
                self._exception = self._exception or words

    @property
    def fault(self) -> Fault | None:
        """The cause by a known signature; None when no line had one."""
        return self._specific or self._rejected

    @property
    def last_words(self) -> str | None:
        """For an end that no signature explains: the first exception, else who was killed, else what broke by that."""
        return self._exception or self._killed or self._echo

    def _killed_process(self, text: str) -> str | None:
        """By the front end's last words, which are no reason where it ended by itself."""
        ends = _FAILED_PROCESSES.search(text)
        if ends is None or (one := _KILLED_PROCESS.search(ends["ends"])) is None:
            return None
        pid = self._pids.get(one["name"])
        who = f"{one['name']} (pid {pid})" if pid else one["name"]
        return Cause.PROCESS_ENDED % {"who": who, "end": Exit(signal=int(one["signal"])).describe()}

    def _collect_validation(self, text: str) -> None:
        """Pydantic spreads a rejected setting over several lines: what, where, why."""
        if self._validation is not None:
            self._validation.append(_PYDANTIC_TAIL.sub("", text).strip())
            if len(self._validation) > _VALIDATION_LINES or "[type=" in text:
                what, *rest = self._validation
                self._rejected = Fault("config_rejected", _rejection(what, rest), fatal=True)
                self._validation = None
        elif self._rejected is None and (found := _VALIDATION.search(text)):
            self._validation = [found["what"]]
        elif self._rejected is None and (argument := _ARGUMENT.search(text)):
            sentence = LogCause.FLAG_REJECTED % {"why": argument["why"].rstrip(".")}
            self._rejected = Fault("config_rejected", sentence, fatal=True)


def match_signature(text: str) -> Fault | None:
    """The fault that this one line names."""
    if not any(hint in text for hint in _HINTS):
        return None
    return next((fault for signature in SIGNATURES if (fault := signature.match(text)) is not None), None)


def _rejection(what: str, lines: list[str]) -> str:
    why = ": ".join(line for line in lines if line)
    return LogCause.CONFIG_REJECTED % {"what": what, "why": why.rstrip(".")}


_HANDLER_FAILED = re.compile(r"AsyncLLM output_handler failed")
#: Words for an engine that is ending: the process follows, and tells better why.
_ENDING = frozenset({"EngineDeadError", "CancelledError"})
_QUIET_LOOKS = 2


class HandlerScanner:
    """Notices that the task has died which hands tokens to clients, while HTTP goes on being answered.

    The engine says so in one line, and why in the traceback behind it. Every stop of an engine brings
    that line, too; whether one was asked for, its owner knows.
    """

    def __init__(self) -> None:
        self._quiet_looks: int | None = None
        """Since the line; None before it."""

    def feed(self, line: str) -> Fault | None:
        """Take one clean line of the log; the fault once it is certain."""
        if _HANDLER_FAILED.search(line):
            self._quiet_looks = 0
        elif self._quiet_looks is not None and (found := _EXCEPTION.match(_PREFIX.sub("", line, count=1))):
            self._quiet_looks = None
            return None if found["type"] in _ENDING else _handler_dead(f"{found['type']}: {found['why']}"[:300])
        return None

    def feed_nothing(self) -> Fault | None:
        """No line has come since the last look; without a reason for long, the line alone is enough."""
        if self._quiet_looks is None:
            return None
        self._quiet_looks += 1
        if self._quiet_looks < _QUIET_LOOKS:
            return None
        self._quiet_looks = None
        return _handler_dead(LogCause.LOG_IS_SILENT.value)


def _handler_dead(why: str) -> Fault:
    return Fault("output_handler_dead", LogCause.HANDLER_DEAD % {"why": why}, fatal=False)
