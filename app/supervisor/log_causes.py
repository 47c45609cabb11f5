"""What an engine's log says about its end: templates like those of `app.supervisor.causes`. A leaf.

What stands in the places may be the engine's own words, which no page can translate.
"""

from __future__ import annotations

from enum import StrEnum


class LogCause(StrEnum):
    """Fill one in with `LogCause.X % {...}`."""

    KV_NEEDED = (
        "One request of %(length)s tokens needs %(needed)s GiB of KV cache, but only %(available)s GiB is available; "
        "lower max-model-len or give it more memory."
    )
    KV_NEEDED_FITTING = (
        "One request of %(length)s tokens needs %(needed)s GiB of KV cache, but only %(available)s GiB is available; "
        "lower max-model-len (at most %(fitting)s fits) or give it more memory."
    )
    KV_NOTHING_LEFT = "No memory is left for the KV cache after the weights are loaded."
    DEVICE_BUSY = (
        "Only %(free)s of %(total)s GiB is free on device %(device)s, but the profile asks for %(wanted)s GiB; "
        "another process still holds memory there."
    )
    WORKER_DIED = "Its worker process %(name)s died (exit code %(exit)s)."
    CORE_DIED = "Its engine core process died."
    ARCHITECTURE = "The engine does not support this model's architecture %(names)s."
    MODEL_NOT_FOUND = (
        "No model was found at '%(model)s': "
        "it is neither a directory with a config.json nor the name of a model that can be reached."
    )
    MODEL_NOT_HERE = "The model is not on this machine, and the engine is not allowed to download it."
    UNKNOWN_FLAG = "The engine does not know the flag %(arguments)s."
    AMBIGUOUS_FLAG = "The engine cannot tell which flag is meant: %(arguments)s."
    FLAG_REJECTED = "The engine rejected a flag: %(why)s."
    INVALID_JSON = "The engine rejected the configuration: invalid JSON, %(why)s."
    CONFIG_REJECTED = "The engine rejected the configuration (%(what)s): %(why)s."
    CONNECTOR_REJECTED = "The connector rejected the configuration: %(why)s"
    UNKNOWN_CONNECTOR = "The engine does not know the connector of this profile: %(why)s."
    DEVICE_OUT_OF_MEMORY = "The device ran out of memory: %(size)s more was asked for."
    MACHINE_OUT_OF_MEMORY = "This machine ran out of memory: %(size)s bytes more was asked for."
    OUT_OF_MEMORY = "The engine ran out of memory."
    PORT_IN_USE = "The engine's port is in use by another program."
    NO_SPACE = "No shared memory (/dev/shm) or disk space is left (%(why)s)."
    TORCHVISION = (
        "The torchvision installed beside the engine does not fit its torch, so nothing can be imported; "
        "uninstall torchvision or install the matching version."
    )
    NOT_INSTALLED = "vLLM is not installed for the interpreter that starts this engine."
    HANDLER_DEAD = (
        "Degraded: output handler dead (%(why)s). The engine still answers HTTP, but finishes no request; "
        "drain it and restart it."
    )
    LOG_IS_SILENT = "its log does not say why"
