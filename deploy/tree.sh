#!/bin/sh
# tree.sh FOLDER [MACHINE]   make FOLDER what /opt/layerstream is on a machine: an environment for /usr/bin/python3.11
#                            with the locked wheels, this checkout, and kernels for MACHINE (x86_64, aarch64)
#
# For another machine $CC must name a compiler for it (aarch64-linux-gnu-gcc). Nothing of FOLDER names a place but
# /opt/layerstream, so that it may be made anywhere. Needs .venv (tools/bootstrap.sh run).
set -eu
cd "$(dirname "$0")/.."
tree=$1 machine=${2:-$(uname -m)}
packages=$tree/lib/python3.11/site-packages
python=.venv/bin/python
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    { echo "tree.sh: .venv must have Python 3.11, whose bytecode is packed" >&2; exit 2; }

rm -rf "$tree"
mkdir -p "$packages" "$tree/bin"
set -- --python-version 3.11 --implementation cp --only-binary :all:
for glibc in 34 28 27 24 17; do set -- "$@" --platform "manylinux_2_${glibc}_$machine"; done
set -- "$@" --platform "manylinux2014_$machine" --target "$packages" --no-compile --no-deps
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$python" -m pip install -q "$@" --require-hashes --requirement requirements/run.txt
# gRPC, sounds and tokenizers are extras, and tests use them: their versions are among theirs.
sed -n '/^\(grpcio\(-health-checking\|-reflection\)\{0,1\}\|tokenizers\|soundfile\|soxr\|cffi\)==/,/[^\\]$/p' requirements/dev.txt >"$wheels/extras.txt"
"$python" -m pip install -q "$@" --require-hashes --requirement "$wheels/extras.txt"

# The wheel has no libraries in C, since its compiler fails: those of MACHINE follow.
CC=false "$python" -m pip wheel -q --no-deps --no-build-isolation --wheel-dir "$wheels" .
"$python" -m pip install -q "$@" --upgrade "$wheels"/layerstream-*.whl
"$python" -c 'import sys
from pathlib import Path
from loader.native import building as reads
from pipeline.devices.elementwise import building as elementwise
packages, machine = Path(sys.argv[1]), sys.argv[2]
reads.build(packages / "loader/native/built", machine=machine)
elementwise.build(packages / "pipeline/devices/elementwise/built", machine=machine)' "$packages" "$machine"

# What builds the wheel is no part of the program, nor are the scripts of libraries and their tests.
rm -rf "$packages/bin" "$packages/hatchling" "$packages/trove_classifiers" "$packages"/hatchling-* \
    "$packages"/trove_classifiers-* "$packages"/numpy/*/tests "$packages/numpy/tests" "$packages/onnx/backend/test"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n' >"$tree/pyvenv.cfg"
ln -s /usr/bin/python3.11 "$tree/bin/python"
printf '#!/opt/layerstream/bin/python\nimport sys\n\nfrom cli.__main__ import start\n\nsys.exit(start())\n' >"$tree/bin/layerstream"
# Bytecode is never looked up against its source: the service may not write a newer one, and times of files vary.
# That without docstrings is a server's.
"$python" -m compileall -q -o 0 -o 2 --invalidation-mode unchecked-hash -s "$tree" -p /opt/layerstream "$packages" >/dev/null
find "$tree" -type d -exec chmod 755 {} +
find "$tree" -type f -exec chmod 644 {} +
chmod 755 "$tree/bin/layerstream"
