#!/usr/bin/env bash
# Every check, then the tests in the directories given. All of it runs; the status is 0 if all passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=()

check() {
    local name=$1; shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
}

check "ruff" .venv/bin/ruff check .
check "mypy" .venv/bin/mypy
if [ $# -gt 0 ]; then check "pytest" .venv/bin/python -m pytest "$@"; fi

if [ ${#failed[@]} -gt 0 ]; then
    printf '\nFailed: %s\n' "${failed[*]}"
    exit 1
fi
printf '\nAll checks passed.\n'
