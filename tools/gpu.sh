#!/bin/sh
# gpu.sh PYTHON-ARGUMENTS...   run Python with CuPy on the NVIDIA GPU of this machine; one line where there is none
#
# LAYERSTREAM_GPU_PYTHON names an interpreter that has what is needed; without it .venv gets CuPy for the driver.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'layerstream: %s\n' "$*" >&2; }

# The CUDA version of the driver, e.g. 12; nothing without a driver or a device.
driver_major() {
    "$1" -c '
import ctypes
library = ctypes.CDLL("libcuda.so.1")
version, count = ctypes.c_int(), ctypes.c_int()
if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    raise SystemExit(1)
library.cuDriverGetVersion(ctypes.byref(version))
print(version.value // 1000)' 2>/dev/null
}

# The last CuPy for CUDA 11, and the toolkit as wheels where wheels of it exist.
cupy_for() {
    case $1 in
        11) echo 'cupy-cuda11x>=13.6' ;;
        12) echo 'cupy-cuda12x[ctk]>=14' ;;
        *) echo 'cupy-cuda13x[ctk]>=14' ;;
    esac
}

found=${LAYERSTREAM_GPU_PYTHON:-$(command -v python3 || true)}
major=$([ -n "$found" ] && driver_major "$found") || {
    say "no NVIDIA GPU that this user can reach: nothing was run"
    exit 0
}
if [ -z "${LAYERSTREAM_GPU_PYTHON:-}" ]; then
    sh tools/bootstrap.sh dev
    found=.venv/bin/python
    "$found" -c 'import cupy' 2>/dev/null || {
        say "installing $(cupy_for "$major") into .venv"
        "$found" -m pip install -qq --disable-pip-version-check "$(cupy_for "$major")"
    }
fi
exec "$found" "$@"
