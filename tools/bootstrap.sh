#!/bin/sh
# bootstrap.sh run|dev           install the project into .venv, unless that is done, with the locked versions of what
#                                it needs (requirements/); `dev` adds the tools
# bootstrap.sh newest            install it into build/newest, with the newest versions that its bounds allow
# bootstrap.sh docs              install what makes a site of docs/ into build/docs, with the locked versions
# bootstrap.sh packages NAME...  install Debian packages, as root, without starting their services
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)

say() { printf 'layerstream: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

apt_get() {
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -y \
        -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# The package lists are fetched only when it does not work without.
apt_install() {
    say "apt-get install $*"
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 1' HUP INT TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt_get install --no-install-recommends "$@" >/dev/null 2>&1 || {
        apt_get update >/dev/null && apt_get install --no-install-recommends "$@" >/dev/null
    }
}

# Sets `python` to one that can make a virtual environment; else, `bare` to one that lacks only that.
find_python() {
    python='' bare=''
    for name in "${PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        # The interpreter behind a virtual environment: the one in .venv may be about to go.
        found=$("$name" -c 'import sys
if sys.version_info >= (3, 11): print(sys._base_executable)' 2>/dev/null) || continue
        [ -n "$found" ] || continue
        if "$found" -c 'import ensurepip, venv' 2>/dev/null; then
            python=$found
            return
        fi
        bare=${bare:-$found}
    done
    return 1
}

need_python() {
    find_python && return
    if can_apt; then
        apt_install python3 python3-venv ca-certificates || die "apt-get could not install python3-venv"
        find_python && return
        # An older default; newer ones have their own packages.
        apt_install python3.11 python3.11-venv && find_python && return
    fi
    if [ -z "$bare" ]; then
        die "no Python 3.11 or newer here; install it, or name one with PYTHON=/path/to/python3"
    elif command -v apt-get >/dev/null; then
        die "python3 -m venv does not work here; install it with: sudo apt-get install $(basename "$bare")-venv"
    else
        die "$bare -m venv does not work here; install venv and ensurepip for it"
    fi
}

# What an installation depends on. Fails when .venv cannot be used.
state() {
    .venv/bin/python -I -c '
import hashlib, pip, sys, tomllib
from pathlib import Path
sys.path.insert(0, ".")
with open("pyproject.toml", "rb") as file:
    config = tomllib.load(file)
from loader.native.building import sources_digest as reads_digest
from pipeline.devices.elementwise.building import sources_digest
locked = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path("requirements").iterdir())))
print(sys.version, sys.prefix, config["project"], config["tool"]["hatch"], locked.hexdigest(), sources_digest(), reads_digest())
' 2>/dev/null
}

# A folder that was moved has scripts that point elsewhere.
usable() {
    state >/dev/null || return 1
    case "$(.venv/bin/pip --version 2>/dev/null)" in *"$here/.venv/"*) ;; *) return 1 ;; esac
}

# Have the environment $1 install what the other arguments of pip say.
pip_install() {
    unset PIP_PREFIX PIP_TARGET PYTHONHOME
    export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
    export PIP_RETRIES="${PIP_RETRIES:-5}" PIP_DEFAULT_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-60}"
    [ -n "${HOME:-}" ] || export PIP_NO_CACHE_DIR=1
    environment=$1
    shift
    set -- "$environment/bin/python" -m pip install -qq --progress-bar off "$@"
    # Once more: pip does not retry a download that breaks off.
    "$@" </dev/null || { say "trying once more" && "$@" </dev/null; } || die "pip install failed"
}

setup() {
    stamps=".venv/.layerstream-dev"
    [ "$1" = dev ] || stamps="$stamps .venv/.layerstream-run"
    if now=$(state); then
        for stamp in $stamps; do
            if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ]; then return; fi
        done
    fi
    if command -v flock >/dev/null; then
        exec 9<pyproject.toml
        flock 9
    fi
    if [ ! -w . ] || { [ -e .venv ] && [ ! -w .venv ]; }; then
        die "no right to write $here/.venv; use a clone of your own"
    fi
    if ! usable; then
        need_python
        if [ -e .venv ] || [ -L .venv ]; then say ".venv does not work; making a new one"; fi
        rm -rf .venv
        "$python" -m venv .venv || die "$python could not make .venv"
    fi
    rm -f .venv/.layerstream-*
    say "installing requirements/$1.txt into .venv"
    pip_install .venv --require-hashes --requirement "requirements/$1.txt"
    # What builds it is among these.
    pip_install .venv --no-deps --no-build-isolation --editable .
    state >".venv/.layerstream-$1"
    # Pip keeps quiet about it.
    .venv/bin/python -m pipeline.devices.elementwise || true
}

newest() {
    need_python
    rm -rf build/newest
    "$python" -m venv build/newest || die "$python could not make build/newest"
    say "installing the newest versions into build/newest"
    pip_install build/newest --editable '.[dev,grpc,otel,search]'
}

docs() {
    locked=$(cksum <requirements/docs.txt)
    if [ "$(cat build/docs/.layerstream 2>/dev/null)" = "$locked" ]; then return; fi
    need_python
    rm -rf build/docs
    "$python" -m venv build/docs || die "$python could not make build/docs"
    say "installing requirements/docs.txt into build/docs"
    pip_install build/docs --require-hashes --requirement requirements/docs.txt
    echo "$locked" >build/docs/.layerstream
}

case "${1:-}" in
    run | dev) setup "$1" ;;
    newest) newest ;;
    docs) docs ;;
    packages)
        shift
        can_apt || die "these packages are missing: $*"
        apt_install "$@" || die "apt-get could not install $*"
        ;;
    *) die "usage: bootstrap.sh run|dev|newest|docs|packages NAME..." ;;
esac
