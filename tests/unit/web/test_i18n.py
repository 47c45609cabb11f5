"""Two languages, complete."""

from __future__ import annotations

import ast
import json
import re

import pytest
from babel.messages.catalog import Message
from babel.messages.extract import extract_from_dir

from app import errors
from app.config import PROJECT_ROOT
from app.derive import strict_json
from app.derive.profile_text import DECK_FLAGS
from app.web.i18n import choose, read_catalog
from app.web.retold import templates
from engine.config import UNSERVED

PLACEHOLDER = re.compile(r"%\((\w+)\)s")
METHODS = [("app/web/**.py", "python"), ("templates/**.html", "jinja2"), ("static/js/**.js", "javascript")]
OPTIONS = {"templates/**.html": {"newstyle_gettext": "true", "trimmed": "true"}}
#: Where sentences are made as template and values, for the pages to tell in the reader's language.
SAID_IN = (
    "app/fleets/content.py",
    "app/fleets/devices.py",
    "app/fleets/room.py",
    "app/planner/*.py",
    "app/profiles/*.py",
    "app/rollouts/*.py",
    "app/services/canary.py",
    "app/services/rollout*.py",
    "app/services/deep_checks.py",
    "app/services/engine_probe.py",
    "app/services/engines.py",
    "app/services/fleets.py",
    "app/services/planning.py",
    "app/services/preview.py",
    "app/services/profiles.py",
    "app/services/surroundings.py",
    "app/store/queries/profiles.py",
    "app/web/api/*.py",
    "app/web/deps.py",
    "app/web/errors.py",
    "app/web/planner.py",
    "app/web/profile_facts.py",
    "app/web/rollout_preview.py",
    "engine/config.py",
)
ERRORS = frozenset(name for name, one in vars(errors).items() if isinstance(one, type))
KEYWORDS = {"_": None, "t": None, "gettext": None, "ngettext": (1, 2)}


def messages_in_use() -> set[str]:
    """Every message of the code, the templates and the scripts; of plural ones the singular."""
    return {one for directory in ("app/web", "templates", "static/js") for one in messages_in(directory)} | (
        sentences_of_findings()
    )


def messages_in(directory: str) -> set[str]:
    """Of one directory of the project."""
    found = set()
    for _, _, message, _, _ in extract_from_dir(
        PROJECT_ROOT / directory,
        [(pattern.removeprefix(directory + "/"), method) for pattern, method in METHODS],
        {pattern.removeprefix("templates/"): options for pattern, options in OPTIONS.items()},
        keywords=KEYWORDS,
    ):
        found.add(message if isinstance(message, str) else message[0])
    return found


def sentences_of_findings() -> set[str]:
    """Templates of findings, previews and refusals, labels of fixes, and the words that are put into them."""
    unread = {one for name, one in vars(strict_json).items() if name.isupper() and isinstance(one, str) and " " in one}
    found: set[str] = {*DECK_FLAGS.values(), *UNSERVED.values(), *templates(), *unread}
    for path in (path for pattern in SAID_IN for path in PROJECT_ROOT.glob(pattern)):
        for node in ast.walk(ast.parse(path.read_text())):
            for part in _told_parts(node):
                found |= {n.value for n in ast.walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found


def _told_parts(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=[ast.Name(id="sentence" | "label")], value=value):
            return [value]
        case ast.AnnAssign(target=ast.Name(id="_CHOICES" | "MISSING" | "NOT_VALID"), value=ast.Constant() as said):
            return [said]
        case ast.FunctionDef(name="_limits", body=body):
            return [one.value for one in ast.walk(ast.Module(body, [])) if isinstance(one, ast.Return) and one.value]
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=values)) if name.endswith("_WORDS"):
            return values
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(values=values)) if name.endswith("_WORDS"):
            return values
        case ast.Call(func=ast.Name(id="error" | "warning" | "note"), args=[_, ast.Constant() as said, *_]):
            return [said, *(word.value for word in node.keywords if word.arg == "wanted")]
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str()) as said, *_]) if name in ERRORS:
            return [said]
        case ast.Call(func=ast.Name(id="_fault") | ast.Attribute(attr="fault"), args=[_, ast.Constant() as said, *_]):
            return [said]
        case ast.Call(func=ast.Name(id="say" | "fix" | "Fix"), args=[ast.Constant() as said, *_]):
            return [said]
        case ast.keyword(arg="wanted", value=ast.Constant() as said):
            return [said]
    return []


def translated() -> dict[str, Message]:
    """The Chinese messages by their English singular."""
    return {(m.id if isinstance(m.id, str) else m.id[0]): m for m in read_catalog("zh") if m.id}


def test_extraction_sees_all_three_kinds_of_files() -> None:
    """The tests below look at what they should."""
    assert {
        "The cache works: %(share)s of input tokens came from cache.",
        "Skip to content",
        "Try again",
        "Prefix caching is off: the connector would store blocks that no request can find again.",
    } <= messages_in_use()


def test_the_scripts_are_given_every_message_that_they_use() -> None:
    """A page hands its scripts those that the catalogue has for them; what it leaves out would stay English."""
    given = json.loads(choose("zh", None).script_messages)
    assert not messages_in("static/js") - set(given)


def test_every_message_has_a_translation() -> None:
    """Nobody meets an English word in the middle of a Chinese page."""
    known = translated()
    assert sorted(message for message in messages_in_use() if message not in known) == []
    assert [key for key, message in known.items() if not message.string or message.fuzzy] == []


def test_no_translation_is_left_over() -> None:
    """What is not shown any more is not kept."""
    assert sorted(translated().keys() - messages_in_use()) == []


def test_placeholders_match() -> None:
    """Every number and name of the sentence is in both languages."""
    for source, message in translated().items():
        text = message.string if isinstance(message.string, str) else message.string[0]
        assert sorted(PLACEHOLDER.findall(source)) == sorted(PLACEHOLDER.findall(text)), source


@pytest.mark.parametrize(
    ("cookie", "header", "code"),
    [
        (None, "", "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "zh-TW", "zh"),
        (None, "en-GB,zh;q=0.5", "en"),
        (None, "en;q=0.1,zh;q=0.7", "zh"),
        (None, "fr,de;q=0.5", "en"),
        (None, "*", "en"),
        (None, "zh;q=nonsense,,;", "en"),
        ("en", "zh-CN", "en"),
        ("zh", "en", "zh"),
        ("klingon", "zh", "zh"),
    ],
)
def test_language_is_the_reader_s(cookie: str | None, header: str, code: str) -> None:
    """The switch wins, then the browser, then English."""
    assert choose(cookie, header).code == code
