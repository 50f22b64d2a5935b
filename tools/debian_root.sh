# Bare Debian 12 systems for the checks beside this file, which source it. Needs root and debootstrap, and the
# variables ``here`` (this checkout) and ``work`` (a folder for files that pass); ``arch``, if it is another one.
suite=bookworm

# Makes BASE, unless it has FILE already: a minimal system with PACKAGES, separated by commas.
debian_base() { # BASE FILE PACKAGES
    [ ! -e "$1/$2" ] || return 0
    echo "debootstrap $suite"
    mkdir -p "$1"
    debootstrap ${arch:+"--arch=$arch"} --variant=minbase --include="$3" "$suite" "$1" \
        "${LAYERSTREAM_DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log"; exit 1; }
}

# Copies BASE to ROOT and tells it how this machine reaches the network and its package sources. Leaves the local
# paths among them, which the caller mounts, in $work/paths.
debian_root() { # BASE ROOT
    local root=$2 file
    cp -a --reflink=auto "$1" "$root"
    for file in /etc/resolv.conf /etc/hosts; do
        [ ! -e "$file" ] || cp -L "$file" "$root$file"
    done
    if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
        cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
        chroot "$root" update-ca-certificates >"$work/log" 2>&1 ||
            { tail -n 20 "$work/log"; echo "update-ca-certificates fails in $root"; exit 1; } >&2
    fi
    debian_apt "$root"
    debian_pip "$root"
}

debian_apt() { # ROOT
    local file
    command -v apt-config >/dev/null || return 0
    apt-config dump | grep '^Acquire::' | grep -v 'IndexTargets' >"$1/etc/apt/apt.conf.d/99host" || true
    cp -a /etc/apt/auth.conf* "$1/etc/apt/" 2>/dev/null || true
    grep -q "^VERSION_CODENAME=$suite$" /etc/os-release || return 0
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ ! -s "$file" ] || { rm -f "$1/etc/apt/sources.list"; cp "$file" "$1$file"; }
    done
}

# pip's settings, from files and environment, go into one file; the local paths in them are printed.
debian_pip() { # ROOT
    local python
    : >"$work/paths"
    for python in "$here/.venv/bin/python" python3; do
        "$python" -m pip --version >/dev/null 2>&1 || continue
        "$python" - "$1/etc/pip.conf" >"$work/paths" <<'PYTHON'
import ast, configparser, subprocess, sys

config = configparser.RawConfigParser()
listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
# The environment wins over files, so it is written last.
for line in sorted(listing.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
    name, _, value = line.partition("=")
    section, _, key = name.rpartition(".")
    section, value = section.replace(":env:", "global"), ast.literal_eval(value)
    if key == "config-file":
        continue
    if not config.has_section(section):
        config.add_section(section)
    config.set(section, key, value)
    for word in value.split():
        path = word.removeprefix("file://")
        if path.startswith("/"):
            print(path.removesuffix("/").removesuffix("/simple"))
with open(sys.argv[1], "w") as file:
    config.write(file)
PYTHON
        break
    done
}

# Boots ROOT with the network of this machine; it ends with debian_halt, which the caller's trap calls.
container=
debian_boot() { # ROOT
    local binds=() path _
    while read -r path; do
        if [ -d "$path" ]; then
            binds+=("--bind-ro=$path")
        elif [ -f "$path" ] && [ ! -e "$1$path" ]; then
            install -D -m 644 "$path" "$1$path"
        fi
    done < <(sort -u "$work/paths")
    setsid systemd-nspawn --quiet --boot --directory="$1" --machine="layerstream-$$" --register=no --keep-unit \
        "${binds[@]}" </dev/null >"$work/boot" 2>&1 &
    container=$!
    leader=
    for _ in $(seq 100); do
        sleep 0.2
        leader=$(pgrep --parent "$container" | head -n 1) && [ -n "$leader" ] && break
    done
    [ -n "$leader" ] || { cat "$work/boot"; exit 1; }
    # `systemctl is-system-running --wait` returns when all units of the boot have been started.
    for _ in $(seq 50); do
        inside systemctl is-system-running --wait >"$work/log" 2>&1 && break
        grep -q '^degraded' "$work/log" && break
        sleep 0.5
    done
    # With control groups of version 1 systemd-nspawn hands the controllers in read-only, and systemd looks once for
    # those that it can use. Without this there would be no MemoryMax.
    if [ -d /sys/fs/cgroup/memory ]; then
        nsenter --target "$leader" --mount --root mount -o remount,bind,rw /sys/fs/cgroup/memory
        inside systemctl daemon-reexec
    fi
}

debian_halt() {
    [ -n "$container" ] || return 0
    # SIGTERM ends a container that was booted as its power button would.
    kill -TERM "$container" 2>/dev/null || true
    wait "$container" || true
    container=
}

# As root in the booted system, in its checkout if it has one, with hardly any environment and no standard input.
inside() { # COMMAND...
    local settings=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root) name
    settings+=(DEBIAN_FRONTEND=noninteractive)
    for name in http_proxy https_proxy no_proxy; do
        [ -z "${!name:-}" ] || settings+=("$name=${!name}")
    done
    nsenter --target "$leader" --all --root --wd env -i "${settings[@]}" \
        sh -c 'cd /srv/layerstream 2>/dev/null; exec "$@"' - "$@" </dev/null
}

# What every case ends with; $work/log has what it printed.
failed=0
verdict() { # STATUS CASE
    if [ "$1" = 0 ]; then
        echo "PASS $2"
    else
        failed=1
        sed 's/^/    /' "$work/log" | tail -n 40
        echo "FAIL $2"
    fi
}

try() { # CASE COMMAND...
    local case=$1 status=0
    shift
    "$@" >"$work/log" 2>&1 || status=$?
    verdict "$status" "$case"
}
# Until COMMAND succeeds, for at most SECONDS.
until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 1
    done
}
