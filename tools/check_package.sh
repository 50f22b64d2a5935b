#!/usr/bin/env bash
# Tries the Debian package of this checkout in a booted Debian 12: two commands to an answer, a restart and an upgrade
# under load that lose no request, a crash, and what a purge leaves. Needs root, debootstrap, systemd-nspawn (package
# systemd-container), what `make deb` needs, and port 8080 free. Prints PASS or FAIL for each case.
#
#   LAYERSTREAM_BOOT_ROOT=DIR        keep the system in DIR and use it again; it is never changed
#   LAYERSTREAM_DEBIAN_MIRROR=URL    default http://deb.debian.org/debian
#   LAYERSTREAM_LOAD_SECONDS=600     how long it is watched under load at the end
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
load=${LAYERSTREAM_LOAD_SECONDS:-600}
[ "$(id -u)" = 0 ] || { echo "check_package: run it as root" >&2; exit 2; }
for tool in debootstrap systemd-nspawn nsenter dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "check_package: $tool is missing" >&2; exit 2; }
done
! (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null || { echo "check_package: port 8080 is taken" >&2; exit 2; }

work=$(mktemp -d "${TMPDIR:-/tmp}/layerstream-package.XXXXXX")
root=$work/root
trap 'debian_halt; rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' HUP INT TERM
. "$here/tools/debian_root.sh"
base=${LAYERSTREAM_BOOT_ROOT:-$work/base}
debian_base "$base" usr/bin/dbus-daemon systemd,systemd-sysv,dbus,ca-certificates
debian_root "$base" "$root"

# The version of this checkout, and one before it.
cd "$here"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
architecture=$(dpkg --print-architecture)
package=layerstream_${version}_$architecture.deb
before=layerstream_${version}~before_$architecture.deb
[ -e "build/$package" ] || make deb
sh -ec 'dpkg-deb --raw-extract "build/$1" "$2/before"
    sed -i "s/^Version: .*/&~before/" "$2/before/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone --build "$2/before" "$2/root/srv/$3"' - "$package" "$work" "$before" >/dev/null
cp "build/$package" tools/closed_loop.py "$root/srv/"
debian_boot "$root"

address=127.0.0.1:8080
quiet_apt() { inside apt-get -qq -y -o Dpkg::Use-Pty=0 "$@"; }
is_cat() {
    inside python3.11 -c "import urllib.request as u
picture = open('/usr/share/doc/layerstream/examples/cat.png', 'rb').read()
print(u.urlopen('http://$address/v2/models/cifar10:classify', picture, 60).read().decode())" | tee "$work/answer" | grep -q '"cat"'
}
# COMMAND while eight clients ask for SECONDS: every answer is a 200.
under_load() { # SECONDS COMMAND...
    local seconds=$1 pid
    shift
    inside python3.11 /srv/closed_loop.py $address cifar10 8 "$seconds" >"$work/statuses" 2>&1 &
    pid=$!
    sleep 3
    "$@" || return 1
    wait "$pid" || true
    cat "$work/statuses"
    grep -Eq "^cifar10 \{'200': [0-9]+\}$" "$work/statuses"
}
says() { # PATTERN COMMAND...: it fails with one line, which matches
    local pattern=$1 told
    shift
    ! told=$("$@" 2>&1) || return 1
    echo "$told"
    [ "$(wc -l <<<"$told")" = 1 ] && grep -Eq "$pattern" <<<"$told"
}
try "apt-get update" quiet_apt update
try "apt install ./$before" quiet_apt install --no-install-recommends "/srv/$before"
try "nobody has started a server yet" says inactive inside systemctl is-active layerstream.service
examples=/usr/share/doc/layerstream/examples
try "the first command: compile" inside layerstream compile $examples/cifar10.onnx -o /var/lib/layerstream/models/cifar10 \
    --labels $examples/labels.txt --preprocess $examples/preprocess.toml
try "the second: an answer" is_cat
try "man page, completion" inside sh -ec 'gzip -dc /usr/share/man/man1/layerstream.1.gz | grep -q "layerstream serve"
    grep -q _LAYERSTREAM_COMPLETE /usr/share/bash-completion/completions/layerstream'
try "systemd-analyze verify" inside sh -ec 'test -z "$(systemd-analyze verify layerstream.service layerstream.socket 2>&1)"'
try "exposure at most 1.5" inside systemd-analyze security --threshold=15 layerstream.service

inside sh -c 'echo "queue_limit = 24" >>/etc/layerstream/layerstream.toml'
try "service install" inside layerstream service install --budget 128MiB
try "service install, twice" inside sh -ec 'layerstream service install --budget 128MiB | grep "is there already"'
try "service install, more than the machine has" says 'this machine has' inside layerstream service install --budget 900GiB
try "service install, by who may not" says 'Permission denied; run it as root' \
    inside setpriv --reuid nobody --clear-groups layerstream service install --budget 64MiB
try "compile, by who may not" says 'Permission denied' inside setpriv --reuid nobody --clear-groups \
    layerstream compile $examples/cifar10.onnx -o /var/lib/layerstream/models/other
inside sh -c 'sed "\$aqueu_limit = 3" /etc/layerstream/layerstream.toml >/tmp/wrong.toml'
try "an unknown key, by line" says '^layerstream: /tmp/wrong.toml:[0-9]+: queu_limit: no such setting' \
    inside layerstream serve --budget 128MiB --config /tmp/wrong.toml

try "restart under load: no request is lost" under_load 20 inside systemctl restart layerstream
sed 's/^/    /' "$work/statuses"
limits() { inside systemctl show layerstream --property MemoryMax,TasksMax,LimitNOFILE | tee "$work/limits" | grep -q 'MemoryMax=322961408'; }
try "with the limits of the drop-in" limits
heals() {
    local began
    inside systemctl kill --signal KILL layerstream
    began=$(date +%s%N)
    is_cat || return 1
    echo "$((($(date +%s%N) - began) / 1000000)) ms"
    [ $(($(date +%s%N) - began)) -lt 10000000000 ]
}
try "kill -9 is healed within 10 s" heals
sed 's/^/    /' "$work/log"

try "upgrade under load: no request is lost" under_load 90 quiet_apt install --no-install-recommends "/srv/$package"
sed 's/^/    /' "$work/statuses"
try "the upgrade is there, and has kept settings, budget and models" inside sh -ec "
    dpkg-query -W -f '\${Version}\n' layerstream | grep -x $version
    grep -x 'queue_limit = 24' /etc/layerstream/layerstream.toml
    grep BUDGET=128MiB /etc/systemd/system/layerstream.service.d/budget.conf
    test ! -e /opt/layerstream.previous && test -d /var/lib/layerstream/models/cifar10"
try "it serves" is_cat
restarts() { inside systemctl show layerstream --property NRestarts --value; }
mill() {
    local count
    count=$(restarts)
    under_load "$load" true || return 1
    [ "$(restarts)" = "$count" ]
}
try "$load s under load: MemoryMax is never hit" mill
sed 's/^/    /' "$work/statuses"

try "purge" quiet_apt purge layerstream
left() {
    inside sh -c "find / -xdev \( -path /proc -o -path /srv -o -path /sys \) -prune -o -iname '*layerstream*' -print |
        grep -v '^/var/log/\|^/var/lib/apt\|^/var/cache\|^/tmp/systemd-private\|^/run/\|^/var/tmp/systemd-private'
        getent passwd layerstream; getent group layerstream; systemctl list-units --all --no-legend 'layerstream*'
        find /var/lib/layerstream -nouser -o -nogroup" | tee "$work/left"
    [ "$(cat "$work/left")" = /var/lib/layerstream ] && inside test -d /var/lib/layerstream/models/cifar10
}
try "what is left are models" left
exit "$failed"
