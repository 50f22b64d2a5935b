#!/bin/sh
# lock.sh   resolve requirements/run.txt, dev.txt and docs.txt anew: the newest versions that pyproject.toml allows, with hashes
#
# run.txt: what serving needs, and what builds the package. dev.txt: what is there beside that for tests and checks,
# and for those extras of the service that tests use. docs.txt: what makes a site of docs/, alone.
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
inputs="pyproject.toml $work/build.in"
resolve() {
    # shellcheck disable=SC2086  # several files
    UV_CUSTOM_COMPILE_COMMAND='make lock' "$work/bin/uv" pip compile --quiet --no-annotate --generate-hashes --universal \
        --python-version "$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)" \
        --fork-strategy fewest "$@" $inputs
}
tested='--extra dev --extra grpc --extra otel --extra place --extra search --extra sound --extra text'
# shellcheck disable=SC2086  # several words
resolve $tested --output-file "$work/all.txt"
resolve --constraint "$work/all.txt" --output-file "$work/run.txt"
# shellcheck disable=SC2046,SC2086  # several words
resolve $tested --constraint "$work/all.txt" --output-file "$work/dev.txt" \
    $(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' "$work/run.txt")

"$work/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["docs"], sep="\n")' >"$work/docs.in"
inputs="$work/docs.in" resolve --constraint "$work/all.txt" --output-file "$work/docs.txt"

mkdir -p requirements
cp "$work/docs.txt" requirements/docs.txt
cp "$work/run.txt" requirements/run.txt
{ echo '-r run.txt'; cat "$work/dev.txt"; } >requirements/dev.txt
