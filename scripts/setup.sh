#!/usr/bin/env bash
# Make .venv and bring it up to what the project asks for. A finished environment is recognised by a
# stamp and costs nothing.
#
#   scripts/setup.sh run    the deck and an engine
#   scripts/setup.sh test   the same, what the checks need, and a Chromium for the browser tests
#
# ENGINE=cpu|gpu|none says which engine to install. Without it: gpu where there is an NVIDIA driver,
# none where TIERDECK_ENGINE_PYTHON names an interpreter that has its own engine, else cpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly purpose="${1:-run}"
readonly venv=.venv
readonly python="$venv/bin/python"
# Left behind by a set-up that was killed: what is installed then cannot be trusted.
readonly unfinished="$venv/unfinished-setup"
readonly torch_cpu_index=https://download.pytorch.org/whl/cpu

say() { printf '%s\n' "$*"; }
fail() { printf 'Set-up stopped: %s\n' "$*" >&2; exit 1; }

# --- which interpreter, which engine --------------------------------------------------------------

is_new_enough() {
    "$1" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null
}

# The versions the tests run on come first.
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed, and none of python3.11 to python3.14 and python3 on PATH is one."
}

has_nvidia_gpu() {
    [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1
}

choose_engine() {
    if [ -n "${ENGINE:-}" ]; then
        say "$ENGINE"
    elif [ -n "${TIERDECK_ENGINE_PYTHON:-}" ] && [ "$purpose" = run ]; then
        say none
    elif has_nvidia_gpu; then
        say gpu
    else
        say cpu
    fi
}

extras_of() {
    local extras=()
    if [ "$1" != none ]; then extras+=("$1"); fi
    if [ "$purpose" = test ]; then extras+=(dev); fi
    (IFS=,; [ ${#extras[@]} -eq 0 ] || printf '[%s]' "${extras[*]}")
}

# --- the stamp ------------------------------------------------------------------------------------

# What the environment was made from and where it lies: a moved environment does not work.
fingerprint() {
    { printf '%s\n' "$PWD" "$1"; cat pyproject.toml constraints.txt scripts/setup.sh scripts/mend_torch_extras.py; } | cksum
}

stamp_file() { printf '%s/set-up-for-%s' "$venv" "$1"; }

is_set_up() {
    [ -x "$python" ] && [ "$(cat "$(stamp_file "$1")" 2>/dev/null)" = "$2" ]
}

# --- packages -------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo --non-interactive "$@"; fi
}

# install_system_packages REASON PACKAGE...
install_system_packages() {
    local reason=$1; shift
    local wish="$reason; install it (on Debian: apt-get install $*) and try again."
    command -v apt-get >/dev/null || fail "$wish"
    say "Installing $* from the system's packages."
    { as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -qq -y --no-install-recommends "$@" >/dev/null; } || fail "$wish"
}

make_venv() {
    if [ -e "$unfinished" ]; then
        say "The last set-up was cut off; starting over."
        rm -rf "$venv"
    fi
    if ! { is_new_enough "$python" && "$python" -m pip --version; } >/dev/null 2>&1; then
        local base
        base=$(find_python)
        say "Making $venv with $("$base" --version)."
        "$base" -c 'import ensurepip' 2>/dev/null ||
            install_system_packages "this Python cannot make virtual environments" \
                "$("$base" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        "$base" -m venv --clear "$venv"
    fi
}

pip_install() {
    local quiet=(--quiet --progress-bar off)
    if [ -t 1 ]; then quiet=(); fi
    local status=0
    "$python" -m pip install --disable-pip-version-check --no-input "${quiet[@]}" "$@" || status=$?
    if was_killed "$status"; then exit "$status"; fi
    return "$status"
}

was_killed() { [ "$1" -gt 128 ]; }

install_packages() {
    trap 'exit 130' INT TERM # a subshell runs this; without it, Ctrl-C would go on to the second try
    local engine=$1 wanted=("--editable" ".$2")
    # The pins are of the CPU build's environment; the GPU build brings its own torch and its own pins.
    if [ "$engine" != gpu ]; then wanted+=(--constraint constraints.txt); fi
    if pip_install "${wanted[@]}"; then return; fi
    [ "$engine" = cpu ] || fail "pip could not install the packages; its message is above."
    say "Trying again with PyTorch's own index, which has the CPU build of torch."
    pip_install --extra-index-url "$torch_cpu_index" "${wanted[@]}" ||
        fail "pip could not install the packages; its message is above."
}

check_engine_libraries() {
    "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        install_system_packages "the CPU engine needs libnuma" libnuma1
}

find_chromium() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$name" >/dev/null; then return; fi
    done
    return 1
}

# --- the whole ------------------------------------------------------------------------------------

set_up() {
    local engine=$1 extras=$2
    make_venv
    if [ "$engine" = cpu ]; then check_engine_libraries; fi
    rm -f "$venv"/set-up-for-*
    # pip undoes what it began when it fails; only a kill leaves halves behind.
    : >"$unfinished"
    trap 'exit 130' INT TERM
    case $engine in
        none) say "Installing the deck." ;;
        *) say "Installing the deck and the $engine build of the engine: a few minutes, done once." ;;
    esac
    local status=0
    (install_packages "$engine" "$extras") || status=$?
    if [ "$status" -ne 0 ]; then
        was_killed "$status" || rm -f "$unfinished"
        exit "$status"
    fi
    if [ "$engine" != none ]; then "$python" scripts/mend_torch_extras.py; fi
    rm -f "$unfinished"
    trap - INT TERM
}

main() {
    case $purpose in run | test) ;; *) fail "unknown purpose '$purpose'; it is run or test" ;; esac
    [ "$(uname -s)" = Linux ] || fail "the engine and its supervisor need Linux."
    local engine extras wanted
    engine=$(choose_engine)
    case $engine in cpu | gpu | none) ;; *) fail "ENGINE is cpu, gpu or none, not '$engine'." ;; esac
    extras=$(extras_of "$engine")
    wanted=$(fingerprint "$engine")
    if ! is_set_up "$purpose" "$wanted"; then
        # Two set-ups at once would spoil each other; the second one finds the work done.
        if command -v flock >/dev/null; then exec 9>.setup.lock; flock 9; fi
        is_set_up "$purpose" "$wanted" || {
            set_up "$engine" "$extras"
            printf '%s\n' "$wanted" >"$(stamp_file run)"
            if [ "$purpose" = test ]; then printf '%s\n' "$wanted" >"$(stamp_file test)"; fi
        }
    fi
    if [ "$purpose" = test ]; then
        find_chromium || install_system_packages "the browser tests need Chromium" chromium fonts-wqy-zenhei
    fi
}

main
