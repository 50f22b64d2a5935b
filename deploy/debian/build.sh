#!/bin/sh
# build.sh [amd64|arm64]   make build/layerstream_VERSION_ARCHITECTURE.deb of this checkout (`make deb`)
#
# Needs dpkg-deb, .venv (tools/bootstrap.sh run) with Python 3.11, and a C compiler: for another architecture than
# this machine's gcc-aarch64-linux-gnu or gcc-x86-64-linux-gnu. VERSION=... gives the package another version.
set -eu
cd "$(dirname "$0")/../.."
architecture=${1:-$(dpkg --print-architecture)}
case $architecture in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "build.sh: amd64 or arm64, not $architecture" >&2; exit 2 ;;
esac
[ "$machine" = "$(uname -m)" ] || { CC=$(echo $machine | tr _ -)-linux-gnu-gcc; export CC; }
command -v "${CC:-cc}" >/dev/null || { echo "build.sh: there is no ${CC:-cc}" >&2; exit 2; }
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
root=build/deb/$architecture
file=build/layerstream_${version}_$architecture.deb
rm -rf "$root"
mkdir -p "$root/DEBIAN"
sh deploy/tree.sh "$root/opt/layerstream" "$machine"

put() { install -D -m 644 "$1" "$root/$2"; }
put deploy/layerstream.service usr/lib/systemd/system/layerstream.service
put deploy/layerstream.socket usr/lib/systemd/system/layerstream.socket
put deploy/layerstream.sysusers usr/lib/sysusers.d/layerstream.conf
put deploy/layerstream.tmpfiles usr/lib/tmpfiles.d/layerstream.conf
put deploy/layerstream.toml etc/layerstream/layerstream.toml
put deploy/README.md usr/share/doc/layerstream/README.md
for page in docs/how-to/*.md; do put "$page" "usr/share/doc/layerstream/how-to/${page##*/}"; done
put CHANGELOG.md usr/share/doc/layerstream/CHANGELOG.md
gzip -9n "$root/usr/share/doc/layerstream/CHANGELOG.md"
cat >"$root/usr/share/doc/layerstream/copyright" <<COPYRIGHT
Copyright: The Layerstream authors
License: Apache-2.0, the text of which is in /usr/share/common-licenses/Apache-2.0. Libraries below /opt/layerstream
 have licences of their own, in the folders NAME-VERSION.dist-info beside them.
COPYRIGHT
ln -s /opt/layerstream/lib/python3.11/site-packages/models/default "$root/usr/share/doc/layerstream/examples"
mkdir -p "$root/usr/bin"
ln -s /opt/layerstream/bin/layerstream "$root/usr/bin/layerstream"

# From the command line itself, as the checkout has it.
layerstream=.venv/bin/layerstream
mkdir -p "$root/usr/share/man/man1"
.venv/bin/python deploy/debian/man.py | gzip -9n >"$root/usr/share/man/man1/layerstream.1.gz"
completion() { # SHELL FILE
    mkdir -p "$(dirname "$root/$2")"
    _LAYERSTREAM_COMPLETE=source_$1 "$layerstream" >"$root/$2"
}
completion bash usr/share/bash-completion/completions/layerstream
completion zsh usr/share/zsh/vendor-completions/_layerstream
completion fish usr/share/fish/vendor_completions.d/layerstream.fish

for script in preinst postinst prerm postrm; do
    install -m 755 "deploy/debian/$script" "$root/DEBIAN/$script"
done
echo /etc/layerstream/layerstream.toml >"$root/DEBIAN/conffiles"
(cd "$root" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | LC_ALL=C sort -z |
    xargs -0 md5sum >DEBIAN/md5sums)
# Python 3.11 and no other: the program has wheels and bytecode for it.
cat >"$root/DEBIAN/control" <<CONTROL
Package: layerstream
Version: $version
Architecture: $architecture
Maintainer: The Layerstream authors <layerstream@localhost>
Section: net
Priority: optional
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)
Depends: python3.11, libc6 (>= 2.34), libstdc++6 (>= 12), systemd (>= 249)
Recommends: ca-certificates
Description: CNN inference server inside one memory budget
 Weights of convolutional networks stream layer by layer from disk,
 activations lie in one planned arena.
 .
 The program with its libraries lies in /opt/layerstream, for Debian's
 Python 3.11 (Debian 12). It serves HTTP and gRPC.
CONTROL
export DPKG_DEB_COMPRESSOR_TYPE="${DPKG_DEB_COMPRESSOR_TYPE:-xz}" DPKG_DEB_COMPRESSOR_LEVEL=3
dpkg-deb --root-owner-group --build "$root" "$file" >/dev/null
echo "$file: $(du -k "$file" | cut -f1) KiB, installed $(sed -n 's/^Installed-Size: //p' "$root/DEBIAN/control") KiB"
