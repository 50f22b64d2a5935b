#!/bin/sh
# gpu.sh PYTHON-ARGUMENTS...   run Python with CuPy on the NVIDIA GPU of this machine; one line where there is none
#
# LAYERSTREAM_GPU_PYTHON names an interpreter that has what is needed; without it .venv gets CuPy for the driver.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'layerstream: %s\n' "$*" >&2; }

# The CUDA version of the driver, e.g. 12, "old" behind it for Volta; nothing without a driver or a device.
driver_major() {
    "$1" -c '
import ctypes
library = ctypes.CDLL("libcuda.so.1")
version, count = ctypes.c_int(), ctypes.c_int()
if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    raise SystemExit(1)
library.cuDriverGetVersion(ctypes.byref(version))
device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
library.cuDeviceGet(ctypes.byref(device), 0)
library.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
library.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
old = version.value >= 13000 and (major.value, minor.value) < (7, 5)
print(str(version.value // 1000) + ("old" if old else ""))' 2>/dev/null
}

# The last CuPy for CUDA 11, and the toolkit as wheels where wheels of it exist. 13 no longer knows Volta.
cupy_for() {
    case $1 in
        11) echo 'cupy-cuda11x>=13.6,<14' ;;
        12 | *old) echo 'cupy-cuda12x[ctk]>=14,<15' ;;
        *) echo 'cupy-cuda13x[ctk]>=14,<15' ;;
    esac
}

found=${LAYERSTREAM_GPU_PYTHON:-$(command -v python3 || true)}
if [ -n "$found" ] && ! command -v "$found" >/dev/null; then
    say "LAYERSTREAM_GPU_PYTHON: $found: no such interpreter: nothing was run"
    exit 1
fi
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
