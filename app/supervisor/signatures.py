"""What the log of a run says about why it ended. Pure: lines in, one fault out.

The texts are those of vLLM 0.32 and of the libraries under it, as they stand in real logs. A rule
that is specific wins over the catch-all ones, and the first match over later ones: what broke first
is the cause, what follows are consequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.supervisor.faults import Fault


@dataclass(frozen=True)
class Signature:
    """A line that explains an end. `sentence` may use the named groups of `pattern`."""

    code: str
    pattern: re.Pattern[str]
    sentence: Callable[[dict[str, str | None]], str]
    fatal: bool = True


def _says(template: str) -> Callable[[dict[str, str | None]], str]:
    return lambda groups: template.format(**groups)


def _kv_memory(groups: dict[str, str | None]) -> str:
    sentence = (
        f"One request of {groups['length']} tokens needs {groups['needed']} GiB of KV cache, "
        f"but only {groups['available']} GiB is available; lower max-model-len"
    )
    fitting = f" (at most {groups['fitting']} fits)" if groups["fitting"] else ""
    return f"{sentence}{fitting} or give it more memory."


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        "kv_memory",
        re.compile(
            r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the "
            r"available KV cache memory \((?P<available>[\d.]+) GiB\)"
            r"(?:.*?estimated maximum model length is (?P<fitting>\d+))?"
        ),
        _kv_memory,
    ),
    Signature(
        "kv_memory",
        re.compile(r"No available memory for the cache blocks"),
        _says("No memory is left for the KV cache after the weights are loaded."),
    ),
    Signature(
        "device_memory_busy",
        re.compile(
            r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*?"
            r"less than .*?\([\d.]+, (?P<wanted>[\d.]+) GiB\)"
        ),
        _says(
            "Only {free} of {total} GiB is free on device {device}, but the profile asks for {wanted} GiB; "
            "another process still holds memory there."
        ),
        fatal=False,  # memory of an engine that just ended comes back after a while
    ),
    Signature(
        "worker_died",
        re.compile(r"Worker proc (?P<name>\S+) died unexpectedly \(exit code: (?P<exit>-?\d+)\)"),
        _says("Its worker process {name} died (exit code {exit})."),
        fatal=False,
    ),
    Signature(
        "core_died",
        re.compile(r"engine core exited unexpectedly"),
        _says("Its engine core process died."),
        fatal=False,
    ),
    Signature(
        "unsupported_architecture",
        re.compile(r"Model architectures (?P<names>\[.*?\]) are not supported"),
        _says("The engine does not support this model's architecture {names}."),
    ),
    Signature(
        "model_not_found",
        re.compile(
            r"Invalid repository ID or local directory specified: '?(?P<model>[^'\n]+?)'?\.?$"
            r"|(?P<model2>\S+) is not a local folder and is not a valid model identifier"
            r"|Repo id must (?:be|use) .*?: '(?P<model3>[^']+)'"
            r"|(?P<model4>\S+) does not appear to have (?:a file named|files named)"
        ),
        lambda groups: (
            f"No model was found at {next(filter(None, groups.values()))!r}: "
            "it is neither a directory with a config.json nor the name of a model that can be reached."
        ),
    ),
    Signature(
        "model_not_found",
        re.compile(r"LocalEntryNotFoundError: "),
        _says("The model is not on this machine, and the engine is not allowed to download it."),
    ),
    Signature(
        "unknown_argument",
        re.compile(r"error: unrecognized arguments: (?P<arguments>.+)"),
        _says("The engine does not know the flag {arguments}."),
    ),
    Signature(
        "unknown_argument",
        re.compile(r"error: ambiguous option: (?P<arguments>.+)"),
        _says("The engine cannot tell which flag is meant: {arguments}."),
    ),
    Signature(
        "config_rejected",
        re.compile(r"Invalid JSON: (?P<why>.+?)(?: \[type=|$)"),
        _says("The engine rejected the configuration: invalid JSON, {why}."),
    ),
    Signature(
        "config_rejected",
        re.compile(r"\bengine\.config\.ConfigError: (?P<why>.+)"),
        _says("The connector rejected the configuration: {why}"),
    ),
    Signature(
        "config_rejected",
        re.compile(r"(?:Unsupported connector type: |Unknown offloading spec)(?P<why>.*)"),
        lambda groups: f"The engine does not know the connector of this profile: {(groups['why'] or '').strip(' :.')}.",
    ),
    Signature(
        "out_of_memory",
        re.compile(r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)"),
        _says("The device ran out of memory: {size} more was asked for."),
    ),
    Signature(
        "out_of_memory",
        re.compile(r"can't allocate memory: you tried to allocate (?P<size>\d+) bytes"),
        _says("This machine ran out of memory: {size} bytes more was asked for."),
    ),
    Signature(
        "out_of_memory",
        re.compile(r"^(?:\(.*?\) )?(?:\w+ [\d: -]+\[\S+\] )?(?:MemoryError|torch\.\w*\.?OutOfMemoryError)\b"),
        _says("The engine ran out of memory."),
    ),
    Signature(
        "port_in_use",
        re.compile(r"\[Errno 98\].*[Aa]ddress already in use"),
        _says("The engine's port is in use by another program."),
    ),
    Signature(
        "shared_memory_full",
        re.compile(r"OSError: \[Errno (?:28|14)\] (?P<why>No space left on device|Bad address)(?P<where>.*)"),
        _says("No shared memory (/dev/shm) or disk space is left ({why}{where})."),
        fatal=False,
    ),
    Signature(
        "torchvision_broken",
        re.compile(r"operator torchvision::nms does not exist"),
        _says(
            "The torchvision installed beside the engine does not fit its torch, so nothing can be imported; "
            "uninstall torchvision or install the matching version."
        ),
    ),
    Signature(
        "engine_not_installed",
        re.compile(r"No module named '?vllm\b"),
        _says("vLLM is not installed for the interpreter that starts this engine."),
    ),
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
        self._validation: list[str] | None = None

    def feed(self, line: str) -> None:
        """Take one clean line of the log."""
        if self._specific is not None:
            return
        text = _PREFIX.sub("", line, count=1)
        self._specific = match_signature(text)
        self._collect_validation(text)
        if self._exception is None and (found := _EXCEPTION.match(text)) and not _CONSEQUENCES.search(text):
            self._exception = f"{found['type']}: {found['why']}"[:300]

    @property
    def fault(self) -> Fault | None:
        """The cause by a known signature; None when no line had one."""
        return self._specific or self._rejected

    @property
    def last_words(self) -> str | None:
        """The first exception that was printed, for an end that no signature explains."""
        return self._exception

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
            sentence = f"The engine rejected a flag: {argument['why'].rstrip('.')}."
            self._rejected = Fault("config_rejected", sentence, fatal=True)


def match_signature(text: str) -> Fault | None:
    """The fault that this one line names."""
    if not any(hint in text for hint in _HINTS):
        return None
    for signature in SIGNATURES:
        if found := signature.pattern.search(text):
            return Fault(signature.code, signature.sentence(found.groupdict()), signature.fatal)
    return None


def _rejection(what: str, lines: list[str]) -> str:
    why = ": ".join(line for line in lines if line)
    return f"The engine rejected the configuration ({what}): {why.rstrip('.')}."


#: R11's pair: the task that hands tokens to clients has died, while HTTP goes on answering.
_HANDLER_FAILED = re.compile(r"AsyncLLM output_handler failed")


def output_handler_died(line: str) -> bool:
    """True for the line after which no request will ever be answered (unless a stop was asked for)."""
    return _HANDLER_FAILED.search(line) is not None
