"""Findings and errors in the reader's language; findings as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.errors import TierdeckError
from app.profiles.finding import Finding, Fix, filled
from app.services.deep_checks import Checkup
from app.web.i18n import Gettext, Language


def findings_json(findings: Iterable[Finding], _: Gettext) -> list[dict[str, Any]]:
    """`fix` is the change to take first, null where only the reader knows; `other_fixes` are alternatives."""
    return [_finding(finding, _) for finding in findings]


def said(sentence: str, values: dict[str, Any], _: Gettext) -> str:
    """A template and the words in it in the reader's language; what is not known there stays English."""
    return filled(_(sentence), {key: _(value) if isinstance(value, str) else value for key, value in values.items()})


def told_error(error: TierdeckError, _: Gettext) -> str:
    """An error's sentence in the reader's language; one that is not known there stays English."""
    return said(error.sentence, dict(error.values), _)


def depth_summary(told: Checkup, language: Language) -> str:
    """Who was asked, and the numbers of a dry run; empty for a check of the text alone."""
    _ = language.gettext
    if told.interpreter is None:
        return ""
    parts = [_("vLLM %(version)s, Python %(python)s, %(platform)s") % _who(told)]
    parts += [text % {"value": told.numbers[key]} for key, text in number_words(_).items() if key in told.numbers]
    return " · ".join(parts)


def number_words(_: Gettext) -> dict[str, str]:
    """What the numbers of a dry run are called; templates with `value`."""
    return {
        "block_size": _("block of %(value)s tokens"),
        "kv_cache_groups": _("%(value)s groups"),
        "kv_tokens": _("%(value)s tokens in VRAM"),
    }


def _who(told: Checkup) -> dict[str, str]:
    return {
        "version": str(told.against["engine_version"]),
        "python": told.versions.get("python", "?"),
        "platform": str(told.context.platform or "?"),
    }


def _finding(finding: Finding, _: Gettext) -> dict[str, Any]:
    fixes = [_fix(one, _) for one in finding.fixes]
    return {
        "severity": finding.severity,
        "path": finding.path,
        "message": said(finding.sentence, dict(finding.values), _),
        "line": finding.line,
        "column": finding.column,
        "fix": fixes[0] if fixes else None,
        "other_fixes": fixes[1:],
    }


def _fix(fix: Fix, _: Gettext) -> dict[str, Any]:
    edit = fix.edit
    return {
        "label": said(fix.label, dict(fix.values), _),
        "patch": [operation.as_json() for operation in fix.operations],
        "edit": None
        if edit is None
        else {"field": edit.field, "start": edit.start, "end": edit.end, "text": edit.text},
    }
