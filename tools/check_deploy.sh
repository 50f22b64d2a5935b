#!/usr/bin/env bash
# Follows the pages on production by copy and paste in a booted Debian 12, on the last commit of this checkout, with a
# Prometheus beside it: every block works as printed; at rest and under load no alert fires and nothing fills
# the journal; alerts fire for real faults; a unit that is killed at every start is left failed.
# Needs root, git, debootstrap, systemd-nspawn (package systemd-container), and ports 8080 and 9090 free: the
# container has the network of this machine. Prints PASS or FAIL for each case.
#
#   LAYERSTREAM_BOOT_ROOT=DIR        keep the system in DIR and use it again; it is never changed
#   LAYERSTREAM_DEBIAN_MIRROR=URL    default http://deb.debian.org/debian
#   LAYERSTREAM_REST_SECONDS=600     how long it is watched at rest
#   LAYERSTREAM_LOAD_SECONDS=600     and under load
#   LAYERSTREAM_NETWORKS="resnet50"  networks of the zoo that are served, too; the first has a profile
#   LAYERSTREAM_LOAD_BUDGET=64       MiB that all of them share while they are watched, so that weights stream
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
rest=${LAYERSTREAM_REST_SECONDS:-600}
load=${LAYERSTREAM_LOAD_SECONDS:-600}
budget=${LAYERSTREAM_LOAD_BUDGET:-64}
read -r -a networks <<<"${LAYERSTREAM_NETWORKS-resnet50}"

[ "$(id -u)" = 0 ] || { echo "check_deploy: run it as root" >&2; exit 2; }
for tool in debootstrap git systemd-nspawn nsenter; do
    command -v "$tool" >/dev/null || { echo "check_deploy: $tool is missing" >&2; exit 2; }
done
for port in 8080 9090; do
    ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "check_deploy: port $port is taken" >&2; exit 2; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/layerstream-deploy.XXXXXX")
root=$work/root
prober=
trap 'stop; rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' HUP INT TERM

stop() {
    [ -z "$prober" ] || kill "$prober" 2>/dev/null || true
    debian_halt
}

. "$here/tools/debian_root.sh"
base=${LAYERSTREAM_BOOT_ROOT:-$work/base}
debian_base "$base" usr/bin/dbus-daemon systemd,systemd-sysv,dbus,ca-certificates
debian_root "$base" "$root"
printf '[safe]\n\tdirectory = *\n' >"$work/gitconfig"
GIT_CONFIG_GLOBAL=$work/gitconfig git clone --quiet --no-hardlinks "$here" "$root/srv/layerstream"
install -m 755 "$here/tools/closed_loop.py" "$root/srv/closed_loop.py"

# ---- The container.
debian_boot "$root"

# ---- The pages, block by block.
pages=("$here"/docs/how-to/{production,access,monitoring,runbooks,upgrade}.md)
awk -v folder="$work" '/^```sh$/ { inside = 1; file = sprintf("%s/block%02d", folder, count++); next }
    /^```$/ { inside = 0 } inside { print > file }' "${pages[@]}"
blocks=("$work"/block*)
paste_block() { # BLOCK
    echo "$(grep -v '^#' "$1" | sed '/^$/d' | head -n 1)"
    inside timeout -k 10 900 bash -euo pipefail -c "$(cat "$1")"
}
for block in "${blocks[@]:0:${#blocks[@]}-1}"; do
    try "pages: $(grep -v '^#' "$block" | sed '/^$/d' | head -n 1)" paste_block "$block"
done

# ---- A server as it is meant to be: weights stream, and `auto` fills the budget.
drop_in() { # NAME TEXT
    inside sh -c 'mkdir -p /etc/systemd/system/layerstream.service.d
        printf "%b\n" "$2" >/etc/systemd/system/layerstream.service.d/"$1".conf' - "$1" "$2"
    inside systemctl daemon-reload
}
without_drop_in() { # NAME
    inside rm -f "/etc/systemd/system/layerstream.service.d/$1.conf"
    inside systemctl daemon-reload
}
# Its start may find the limit on starts reached, by those that came before.
restart() {
    inside systemctl reset-failed layerstream.socket layerstream 2>/dev/null || true
    inside systemctl restart layerstream
}
serve_networks() {
    local models=/var/lib/layerstream/models name number=0
    inside systemctl stop layerstream.socket layerstream
    for name in "${networks[@]}"; do
        inside sh -ec "layerstream zoo build $name -o /tmp/$name.onnx
            layerstream compile /tmp/$name.onnx -o $models/$name; rm /tmp/$name.onnx"
        [ "$((number++))" != 0 ] || inside layerstream profile --iterations 2 "$models/$name"
    done
    inside sh -ec "chown -R root:layerstream $models && chmod -R u=rwX,g=rX,o= $models"
    drop_in zz-load "[Service]\nEnvironment=LAYERSTREAM_BUDGET=${budget}MiB\nMemoryMax=$((budget + 180))M"
    restart
}
try "serves ${networks[*]:-nothing else} in ${budget}MiB" serve_networks

metrics() { inside curl -sf http://127.0.0.1:8080/metrics; }
metric() { metrics | awk -v name="$1" '$1 == name { printf "%d\n", $2 }'; }
query() { # PROMQL: the result's labels and values, one a line
    inside curl -sfG http://127.0.0.1:9090/api/v1/query --data-urlencode "query=$1" |
        python3 -c 'import json, sys
for item in json.load(sys.stdin)["data"]["result"]:
    print(item["metric"], item["value"][1])'
}
fires() { query "ALERTS{alertname=\"$1\",alertstate=\"firing\"}" | grep -q .; }
lines() { inside journalctl -q -u layerstream --since "@$1" -o cat | wc -l; }

# Nobody is told more than once that all is well, however often probes ask.
probe() {
    while sleep 1; do
        for path in health/ready health/live models/cifar10/ready; do
            inside curl -s -o /dev/null "http://127.0.0.1:8080/v2/$path" || true
        done
    done
}
silent_since() { # EPOCH
    local seconds=$(($(date +%s) - $1)) found
    found=$(query "max_over_time(ALERTS{alertstate=\"firing\"}[${seconds}s])")
    echo "$found"
    query "max by (model) (layerstream_predicted_seconds)"
    query "max by (model) (rate(layerstream_sweep_seconds_sum[5m]) / rate(layerstream_sweep_seconds_count[5m]))"
    query 'sum by (model, outcome) (increase(layerstream_requests_total[10m])) > 0'
    metrics | grep -E '^layerstream_(process|cgroup|budget)_'
    [ -z "$found" ] && query "count_over_time(up{job=\"layerstream\"}[${seconds}s])" | grep -q .
}
few_lines_since() { # EPOCH
    inside journalctl -q -u layerstream --since "@$1" -o cat | tail -n 20
    [ "$(lines "$1")" -le 3 ]
}
until_true 60 inside curl -sf -o /dev/null http://127.0.0.1:8080/v2/health/ready || true
sleep 20
probe &
prober=$!
began=$(date +%s)
sleep "$rest"
try "$rest s at rest: no alert" silent_since "$began"
[ -z "${LAYERSTREAM_VERBOSE:-}" ] || sed 's/^/    /' "$work/log"
try "$rest s at rest: the journal stays empty" few_lines_since "$began"

began=$(date +%s)
for name in cifar10 "${networks[@]}"; do
    inside python3 /srv/closed_loop.py 127.0.0.1:8080 "$name" 4 "$load" >"$work/load-$name" 2>&1 &
done
sleep "$load"
try "$load s under load: no alert" silent_since "$began"
[ -z "${LAYERSTREAM_VERBOSE:-}" ] || sed 's/^/    /' "$work/log"
try "$load s under load: the journal stays empty" few_lines_since "$began"

# ---- Faults, and the alerts that they are to raise.
alert() { # SECONDS ALERT
    until_true "$1" fires "$2"
}
post() { inside curl -sf -X POST "http://127.0.0.1:8080/v2/repository/models/$1"; }

provoke_refused() {  # a budget in which only the small model fits
    drop_in zz-load "[Service]\nEnvironment=LAYERSTREAM_BUDGET=12MiB LAYERSTREAM_REQUEST_MEMORY=4MiB\nMemoryMax=192M"
    restart
    alert 60 LayerstreamModelRefused
}
[ "${#networks[@]}" = 0 ] || try "LayerstreamModelRefused fires: a budget that is too small" provoke_refused
without_drop_in zz-load
restart

provoke_not_ready() {  # the pack is changed under the model
    local pack=/var/lib/layerstream/models/cifar10
    inside sh -c "cp -a $pack /root/saved; touch $pack/*/weights.bin; truncate -s -4096 $pack/*/weights.bin"
    restart || true
    alert 240 LayerstreamModelNotReady
}
if [ "${#networks[@]}" != 0 ]; then
    try "LayerstreamModelNotReady fires: a damaged pack" provoke_not_ready
    began=$(date +%s)
    sleep 60
    try "60 s with a model that does not serve: the journal stays empty" few_lines_since "$began"
    inside sh -c 'rm -r /var/lib/layerstream/models/cifar10; mv /root/saved /var/lib/layerstream/models/cifar10'
fi
restart

provoke_limit() {
    inside systemctl set-property --runtime layerstream \
        "MemoryMax=$(($(metric layerstream_cgroup_held_bytes) + (24 << 20)))"
    metrics | grep cgroup_
    alert 240 LayerstreamMemoryLimitNear
}
try "LayerstreamMemoryLimitNear fires: a MemoryMax just above what is held" provoke_limit
inside rm -r /run/systemd/system.control/layerstream.service.d
inside systemctl daemon-reload

comes_back() {
    local before
    before=$(inside systemctl show layerstream --property MainPID --value)
    inside systemctl kill --signal KILL layerstream
    until_true 60 inside sh -c "[ \"\$(systemctl show layerstream --property MainPID --value)\" != $before ] &&
        curl -sf -o /dev/null http://127.0.0.1:8080/v2/health/ready"
    sleep 20  # a scrape sees it
}
provoke_restarts() {
    local _
    for _ in 1 2 3; do comes_back; done
    alert 60 LayerstreamRestarts
}
restart
try "killed three times it comes back, and LayerstreamRestarts fires" provoke_restarts

provoke_down() {
    inside systemctl stop layerstream.socket layerstream
    alert 150 LayerstreamDown
}
try "LayerstreamDown fires: stopped" provoke_down

# ---- A unit that is killed at every start.
left_failed() {
    inside systemctl reset-failed layerstream.socket layerstream || true
    inside systemctl start layerstream || true
    local status=0
    until_true "$1" inside sh -c '[ "$(systemctl show layerstream --property ActiveState --value)" = failed ] && sleep 5 &&
        [ "$(systemctl show layerstream --property ActiveState --value)" = failed ]' || status=$?
    inside systemctl status layerstream --no-pager --full || true
    inside systemctl show layerstream --property Result,NRestarts,StatusText
    return "$status"
}
killed() { # DROP-IN SECONDS PATTERN
    drop_in zz-kill "$1"
    left_failed "$2" >"$work/status" 2>&1 || { cat "$work/status"; return 1; }
}
try "killed by MemoryMax at every start: left failed" killed "[Service]\nMemoryMax=60M" 180
sed 's/^/    /' "$work/status"
try "systemctl status says that memory was the reason" grep -Eq 'oom-kill|memory limit 60.0 MiB' "$work/status"
try "killed by a signal at every start: left failed" killed \
    "[Service]\nExecStartPost=+/bin/sh -c 'kill -KILL \$MAINPID'" 180
sed 's/^/    /' "$work/status"
try "a repository that is not there: left failed" killed "[Service]\nEnvironment=LAYERSTREAM_REPOSITORY=/nowhere" 180
sed 's/^/    /' "$work/status"
try "systemctl status says what is missing" grep -q 'Status: .*/nowhere' "$work/status"
without_drop_in zz-kill
inside systemctl reset-failed layerstream.socket layerstream || true

try "pages: the upgrade" paste_block "${blocks[-1]}"
try "it serves again" until_true 60 inside curl -sf -o /dev/null http://127.0.0.1:8080/v2/health/ready
exit "$failed"
