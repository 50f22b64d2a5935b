#!/usr/bin/env bash
# Tries set-up, README's quick start in its smallest budget, and tests on an emulated arm64 Debian 12 whose cores are
# a Jetson AGX Xavier's as far as instructions go (ARMv8.2, no dot products), on the last commit of this checkout.
# Needs root, qemu-user-static and debootstrap. Prints PASS or FAIL for each case.
#
#   check_arm64.sh [FOLDER...]       folders and files of tests (default: those of kernels, packs and reading)
#   check_arm64.sh package           the Debian package (make deb ARCH=arm64) instead: two commands, an answer, a purge
#   LAYERSTREAM_ARM64_ROOT=DIR       keep the bare system in DIR and use it again; it is never changed
#   LAYERSTREAM_DEBIAN_MIRROR=URL    default http://deb.debian.org/debian
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
emulator=$(command -v qemu-aarch64-static) || { echo "check_arm64: qemu-aarch64-static is missing" >&2; exit 2; }

if [ -z "${LAYERSTREAM_ARM64_WORK:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "check_arm64: run it as root" >&2; exit 2; }
    formats=/proc/sys/fs/binfmt_misc own=
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/layerstream-arm64.XXXXXX")
    trap '[ -z "$own" ] || echo -1 >"$own"; rm -rf --one-file-system "$work"' EXIT
    trap 'exit 130' HUP INT TERM
    [ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats
    if ! grep -qs aarch64 $formats/*aarch64*; then
        # Opened now (F), so that it works in another root.
        head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
        mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
        printf '%s' ":layerstream-aarch64:M::$head:$mask:$emulator:F" >$formats/register
        own=$formats/layerstream-aarch64
    fi
    # Mounts live in a namespace of their own: none is left when the folder is removed.
    LAYERSTREAM_ARM64_WORK=$work unshare --mount bash "$here/tools/check_arm64.sh" "$@" </dev/null
    exit
fi

work=$LAYERSTREAM_ARM64_WORK
unset TMPDIR
base=${LAYERSTREAM_ARM64_ROOT:-$work/base}
root=$work/root

. "$here/tools/debian_root.sh"
arch=arm64
debian_base "$base" usr/bin/make python3,python3-venv,make,git,curl,ca-certificates,gcc,libc6-dev
debian_root "$base" "$root"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

# Qemu shows the host's processor. ONNX Runtime 1.32 crashes where none says who implemented a core.
features='fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm dcpop'
for core in 0 1; do
    printf 'processor\t: %s\nmodel name\t: ARMv8 Processor rev 0 (v8l)\nFeatures\t: %s\n' $core "$features"
    printf 'CPU implementer\t: 0x4e\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0x004\nCPU revision\t: 0\n\n'
done >"$work/cpuinfo"
mount -t proc proc "$root/proc"
mount --bind "$work/cpuinfo" "$root/proc/cpuinfo"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
sort -u "$work/paths" | while read -r path; do
    [ ! -d "$path" ] || { mkdir -p "$root$path" && mount --bind "$path" "$root$path"; }
    [ ! -f "$path" ] || [ -e "$root$path" ] || install -D -m 644 "$path" "$root$path"
done

git clone --quiet --no-hardlinks "$here" "$root/srv/layerstream"
settings=(PATH=/srv/layerstream/.venv/bin:/usr/bin:/bin HOME=/root GIT_CONFIG_COUNT=1)
settings+=(GIT_CONFIG_KEY_0=safe.directory 'GIT_CONFIG_VALUE_0=*')
for name in http_proxy https_proxy no_proxy; do
    [ -z "${!name:-}" ] || settings+=("$name=${!name}")
done

# A Cortex-A72 has no dot products either. Not a64fx: numpy has illegal instructions where its SVE is off.
try() { # CASE COMMAND
    local status=0
    chroot "$root" env -i "${settings[@]}" QEMU_CPU=cortex-a72 \
        bash -euo pipefail -c "cd /srv/layerstream; $2" >"$work/log" 2>&1 </dev/null || status=$?
    verdict "$status" "$1"
}

# What is there of the package: neither this checkout, nor logs, lists and archives, nor models by their own names.
ours='find / -xdev -iname "*layerstream*" ! -path "/proc/*" ! -path "/srv/*" ! -path "/var/log/*" ! -path "/var/lib/apt/*" \
    ! -path "/var/cache/*"; getent passwd layerstream || true'
if [ "${1:-}" = package ]; then
    cp "$here"/build/layerstream_*_arm64.deb "$root/srv/package.deb"
    examples=/usr/share/doc/layerstream/examples models=/var/lib/layerstream/models
    try "apt-get update" "apt-get -qq update"
    try "apt install ./layerstream_*_arm64.deb" "apt-get -qq -y install --no-install-recommends /srv/package.deb"
    try "the first command: compile" "layerstream compile $examples/cifar10.onnx -o $models/cifar10 \
        --labels $examples/labels.txt --preprocess $examples/preprocess.toml"
    try "the second: an answer" "layerstream run $models/cifar10 --image $examples/cat.png | grep cat"
    try "it serves" "layerstream serve --config /etc/layerstream/layerstream.toml --budget 64MiB --port 18080 &
        curl -fsS --retry 120 --retry-connrefused --retry-delay 1 localhost:18080/v2/health/ready
        curl -fsS --data-binary @$examples/cat.png 'localhost:18080/v2/models/cifar10:classify?top_k=1' | grep '\"cat\"'
        kill \$! && wait \$!"
    try "purge" "apt-get -qq -y purge layerstream"
    try "what is left are models" "[ \"\$($ours)\" = /var/lib/layerstream ] && test -d $models/cifar10"
    exit "$failed"
fi

try "tools/bootstrap.sh run" "sh tools/bootstrap.sh run"
try "quick start: compile, run" 'layerstream compile models/default/cifar10.onnx -o r/cifar10 \
    --labels models/default/labels.txt --preprocess models/default/preprocess.toml | tee told
    layerstream run r/cifar10 --image models/default/cat.png | grep cat'
try "quick start: serve in the smallest budget" 'budget=$(sed -n "s/.*--budget //p" told)
    layerstream serve --repository r --budget "$budget" --port 18080 &
    curl -fsS --retry 60 --retry-connrefused --retry-delay 1 localhost:18080/v2/health/ready
    curl -fsS --data-binary @models/default/cat.png "localhost:18080/v2/models/cifar10:classify?top_k=1" | grep \"cat\"
    kill $! && wait $!'
try "what tests need" "pip install -q pytest pytest-asyncio pytest-xdist hypothesis httpx jsonschema trustme"
[ $# -gt 0 ] || set -- tests/loader tests/models/packs tests/models/runtime tests/models/compiler/optimising \
    "tests/pipeline/devices --ignore=tests/pipeline/devices/cuda" tests/pipeline/export_c
for folder; do
    try "$folder" "python -m pytest -q -n 0 -o faulthandler_timeout=900 $folder"
    sed -n '$p' "$work/log"
done
exit "$failed"
