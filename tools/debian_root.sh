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
