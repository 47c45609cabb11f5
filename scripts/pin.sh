#!/usr/bin/env bash
# Write constraints.txt from what is installed in .venv (made by `make test` on a machine without a GPU).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

{
    cat <<'HEADER'
# The versions that the tests ran with, on the CPU build of the engine. Written by `make constraints`.
# torch has no "+cpu" here, so that the pin fits the wheel of either index.
HEADER
    .venv/bin/python -m pip freeze --exclude-editable | sed -e 's/+cpu$//'
} >constraints.txt.new
mv constraints.txt.new constraints.txt
