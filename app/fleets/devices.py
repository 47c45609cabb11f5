"""The devices of a fleet: a group for each engine. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.errors import InvalidInput

#: As CUDA_VISIBLE_DEVICES takes them: a number, or what `nvidia-smi -L` calls it.
DEVICE: Final = re.compile(r"\d{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{4,80}")
PATH: Final = "devices"

Group = tuple[str, ...]


def read_devices(value: Any, each: int) -> tuple[Group, ...]:
    """Groups as written (`[["0", "1"], ["2"]]`, `0,1; 2`), or one list (`[0, 1, 2, 3]`) dealt out by `each`.

    Raises InvalidInput.
    """
    groups, is_flat = _split(value)
    if is_flat:
        groups = _dealt(groups[0], each)
    for group in groups:
        _check(group, each)
    return groups


def group_for(groups: Sequence[Group], used: Sequence[Group]) -> Group | None:
    """The first group that no engine has yet; None when all are taken. Without groups an engine sees every device."""
    left = [*groups]
    for group in used:
        if group in left:
            left.remove(group)
    return left[0] if left else None


def dealt_anew(groups: Sequence[Group], engines: Mapping[str, Group]) -> dict[str, Group]:
    """A group for each engine, by name: its own where it is still there, else the first that is free.

    Raises InvalidInput when there are fewer groups than engines.
    """
    if not groups:
        return dict.fromkeys(engines, ())
    if len(groups) < len(engines):
        sentence = "The fleet has %(engines)s engines: write a group of devices for each, not %(groups)s."
        raise InvalidInput(sentence, path=PATH, values={"engines": len(engines), "groups": len(groups)})
    left, dealt = [*groups], {}
    for name, own in engines.items():
        if own in left:
            left.remove(own)
            dealt[name] = own
    return {name: dealt.get(name) or left.pop(0) for name in engines}


def as_text(groups: Sequence[Group]) -> str:
    """As `read_devices` reads it: `0,1; 2,3`. One group alone ends in a semicolon, or it would be dealt out."""
    text = "; ".join(",".join(group) for group in groups)
    return f"{text};" if len(groups) == 1 else text


def _split(value: Any) -> tuple[tuple[Group, ...], bool]:
    """Groups, and whether it was one list that is still to be dealt out."""
    if value is None or value in ("", [], ()):
        return (), False
    if isinstance(value, str):
        parts = [part for part in value.split(";") if part.strip()]
        return tuple(_named(part.split(",")) for part in parts), ";" not in value
    if not isinstance(value, list | tuple):
        raise _not_devices()
    if any(isinstance(one, list | tuple) for one in value):
        return tuple(_named(one) for one in value), False
    return (_named(value),), True


def _named(items: Any) -> Group:
    if not isinstance(items, list | tuple):
        raise _not_devices()
    return tuple(_device(item) for item in items)


def _device(item: Any) -> str:
    name = str(item).strip()
    if isinstance(item, bool) or not isinstance(item, int | str) or not DEVICE.fullmatch(name):
        sentence = "%(name)s is no device: write numbers such as 0,1; 2,3, a group for each engine."
        raise InvalidInput(sentence, path=PATH, values={"name": name or "''"})
    return name


def _dealt(devices: Group, each: int) -> tuple[Group, ...]:
    if len(devices) % each:
        sentence = "%(count)s devices cannot be dealt out to engines that take %(each)s each."
        raise InvalidInput(sentence, path=PATH, values={"count": len(devices), "each": each})
    return tuple(devices[start : start + each] for start in range(0, len(devices), each))


def _check(group: Group, each: int) -> None:
    if len(set(group)) != len(group):
        sentence = "A device is twice in the group %(group)s."
        raise InvalidInput(sentence, path=PATH, values={"group": ",".join(group)})
    if len(group) < each:
        sentence = "The group %(group)s is too small: an engine takes %(each)s devices."
        raise InvalidInput(sentence, path=PATH, values={"group": ",".join(group) or "[]", "each": each})


def _not_devices() -> InvalidInput:
    return InvalidInput("Write devices such as 0,1; 2,3: a group for each engine.", path=PATH)
