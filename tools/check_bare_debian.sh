#!/usr/bin/env bash
# Tries `make demo`, `make test` and all of README.md on a bare Debian 12, as root and as an ordinary user,
# on the last commit of this checkout. Needs root and debootstrap. Prints PASS or FAIL for each case.
#
#   check_bare_debian.sh readme [PORT]  only README.md; it takes port 8080 of this machine, or PORT
#   LAYERSTREAM_BARE_ROOT=DIR        keep the bare system in DIR and use it again; it is never changed
#   LAYERSTREAM_DEBIAN_MIRROR=URL    default http://deb.debian.org/debian
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

if [ -z "${LAYERSTREAM_BARE_WORK:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "check_bare_debian: run it as root" >&2; exit 2; }
    for tool in debootstrap git unshare; do
        command -v "$tool" >/dev/null || { echo "check_bare_debian: $tool is missing" >&2; exit 2; }
    done
    work=$(mktemp -d "${TMPDIR:-/tmp}/layerstream-bare.XXXXXX")
    # Mounts and processes live in namespaces of their own and vanish with them: no mount is left
    # when the folder is removed.
    child=
    trap '[ -z "$child" ] || { kill -KILL "$child"; wait; sleep 1; } 2>/dev/null
        rm -rf --one-file-system "$work"' EXIT
    trap 'exit 130' HUP INT TERM
    LAYERSTREAM_BARE_WORK=$work unshare --mount --pid --fork --kill-child --mount-proc \
        bash "$here/tools/check_bare_debian.sh" "$@" </dev/null &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    exit "$status"
fi

work=$LAYERSTREAM_BARE_WORK
# A folder of this machine: programs in the bare system would look for it there.
unset TMPDIR
base=${LAYERSTREAM_BARE_ROOT:-$work/base}
root=$work/root

. "$here/tools/debian_root.sh"
debian_base "$base" usr/bin/make python3,make,git,curl,ca-certificates
debian_root "$base" "$root"

sort -u "$work/paths" | while read -r path; do
    if [ -d "$path" ]; then
        mkdir -p "$root$path"
        mount --bind "$path" "$root$path"
        mount -o remount,bind,ro "$root$path"
    elif [ -f "$path" ] && [ ! -e "$root$path" ]; then
        install -D -m 644 "$path" "$root$path"
    fi
done

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
chroot "$root" useradd --create-home --uid 1000 tester

settings=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CI=true)
for name in http_proxy https_proxy no_proxy; do
    [ -z "${!name:-}" ] || settings+=("$name=${!name}")
done

# As USER in FOLDER, with hardly any environment, no HOME and no standard input.
as() { # USER FOLDER COMMAND...
    local user=$1 folder=$2
    shift 2
    timeout -k 20 900 chroot --userspec="$user:$user" "$root" env -i "${settings[@]}" \
        sh -c 'cd "$1" && shift && exec "$@"' - "$folder" "$@" </dev/null
}

# A fresh clone that belongs to the ordinary user; git refuses other people's folders unless told.
printf '[safe]\n\tdirectory = *\n' >"$work/gitconfig"
clone() { # FOLDER
    GIT_CONFIG_GLOBAL=$work/gitconfig git clone --quiet --no-hardlinks "$here" "$root$1"
    chroot "$root" chown -R tester:tester "$1"
}

try() { # CASE USER FOLDER COMMAND...
    local case=$1 status=0
    shift
    as "$@" >"$work/log" 2>&1 || status=$?
    verdict "$status" "$case"
}

user='/home/tester/layer stream'
if [ "${1:-}" != readme ]; then
    # The first case, since all others install system packages.
    clone "$user"
    status=0
    as tester "$user" make demo >"$work/log" 2>&1 && status=1
    # One line beside make's own, and the command before it.
    [ "$(grep -vcE '^(make: |$)' "$work/log")" = 1 ] && grep -q '^layerstream: .*python3-venv$' "$work/log" || status=1
    verdict "$status" "ordinary user without python3-venv: one line says what to install"
fi

clone /srv/readme
try "root: README.md, every block from top to bottom" root /srv/readme \
    python3 -m tests.check_readme --here --port "${2:-8080}"
[ "${1:-}" != readme ] || exit "$failed"

theirs='/srv/layer stream'
clone "$theirs"
try "root, in another user's clone: make demo" root "$theirs" make demo
try "root, in another user's clone: make test" root "$theirs" make test

as root "$theirs" sh tools/bootstrap.sh packages python3-venv >/dev/null 2>&1 || true
try "ordinary user with python3-venv: make demo" tester "$user" make demo
try "ordinary user with python3-venv: make test" tester "$user" make test
exit "$failed"
