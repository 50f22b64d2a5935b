#!/bin/sh
# check_dist.sh   make dist/layerstream-VERSION.tar.gz and the wheel, and try both (`make dist`)
#
# The sdist must make the same wheel; that, alone in a new environment, must compile, run and be imported.
set -eu
cd "$(dirname "$0")/.."
here=$PWD
python=$here/.venv/bin/python
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
grep -q "^## $version " CHANGELOG.md || { echo "check_dist.sh: CHANGELOG.md says nothing of $version" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$python" -m hatchling build -d dist >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
wheel=$here/dist/layerstream-$version-py3-none-any.whl

tar -xzf "dist/layerstream-$version.tar.gz" -C "$work"
(cd "$work/layerstream-$version" && "$python" -m hatchling build -t wheel -d "$work/again") >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
names() { "$python" -m zipfile -l "$1" | awk '{ print $1 }' | LC_ALL=C sort; }
names "$wheel" >"$work/one"
names "$work/again/$(basename "$wheel")" >"$work/other"
diff "$work/one" "$work/other" || { echo "check_dist.sh: the sdist makes another wheel" >&2; exit 1; }

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$wheel"
cd "$work"
export PATH="$work/venv/bin:$PATH"
layerstream --version | grep -F "$version"
layerstream zoo build squeezenet1.1 -o net.onnx
layerstream compile net.onnx -o packs/net
layerstream run packs/net --image "$here/models/photographs/coffee.jpg" --budget 8MiB
python -c '
import layerstream
with layerstream.open("packs/net", budget="8MiB") as model:
    print(model.name, sum(model.memory.values()), "bytes")'
ls -l "$wheel" "${wheel%-py3-none-any.whl}.tar.gz"
