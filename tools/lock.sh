#!/bin/sh
# lock.sh   resolve requirements/run.txt and dev.txt anew: the newest versions that pyproject.toml allows, with hashes
#
# run.txt: what serving needs, and what builds the package. dev.txt: what is there beside that for tests and checks,
# and for those extras of the service that tests use.
set -eu
cd "$(dirname "$0")/.."
work=build/lock
rm -rf "$work"
"${PYTHON:-python3}" -m venv "$work"  # 3.11 or newer
"$work/bin/python" -m pip install -q --disable-pip-version-check uv
"$work/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")' >"$work/build.in"

# One version of each package, for every machine and every Python that is allowed. Arguments: those of uv.
resolve() {
    UV_CUSTOM_COMPILE_COMMAND='make lock' "$work/bin/uv" pip compile --quiet --no-annotate --generate-hashes --universal \
        --python-version "$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)" \
        --fork-strategy fewest "$@" pyproject.toml "$work/build.in"
}
tested='--extra dev --extra grpc --extra otel --extra place --extra search'
# shellcheck disable=SC2086  # several words
resolve $tested --output-file "$work/all.txt"
resolve --constraint "$work/all.txt" --output-file "$work/run.txt"
# shellcheck disable=SC2046,SC2086  # several words
resolve $tested --constraint "$work/all.txt" --output-file "$work/dev.txt" \
    $(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' "$work/run.txt")

mkdir -p requirements
cp "$work/run.txt" requirements/run.txt
{ echo '-r run.txt'; cat "$work/dev.txt"; } >requirements/dev.txt
