#!/usr/bin/env bash
# Builds sdist and wheel of the kernel and of every plugin in plugins/: requirements/dist.sh PYTHON FOLDER
# PYTHON is one that has what requirements/lock.txt says; what an earlier run left in FOLDER is replaced.
#
# Each is built from a copy that holds its sources and the license, and nothing else. So nothing that an earlier build
# left (build/lib, the list of files in an .egg-info) gets into a wheel, and nothing is left in the checkout. The wheel
# is built from the sdist.
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: requirements/dist.sh PYTHON FOLDER" >&2; exit 2; }
python=$(realpath --no-symlinks "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! "$python" -c 'import build' 2>/dev/null; then
    echo "error: $1 has no module build, which requirements/lock.txt pins; make install brings it" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # FOLDER SOURCES...: sdist and wheel of the distribution in FOLDER, which is made of its folders SOURCES
    local copy
    copy=$(mktemp -d "$work/XXXXXX")
    cp LICENSE "$1/pyproject.toml" "$1/README.md" "$copy"
    tar --create --directory "$1" --exclude=__pycache__ --exclude='*.egg-info' "${@:2}" | tar --extract --directory "$copy"
    if ! "$python" -m build --no-isolation --outdir "$work/out" "$copy" >"$copy.log" 2>&1; then
        echo "error: $1 cannot be built:" >&2
        cat "$copy.log" >&2
        return 1
    fi
}

running=() failed=0
finish() { wait "${running[0]}" || failed=1; running=("${running[@]:1}"); }
build . core cookiecutter & running+=($!)
for pyproject in plugins/*/*/pyproject.toml; do
    ((${#running[@]} < $(nproc))) || finish  # as many at once as there are cores
    build "$(dirname "$pyproject")" src & running+=($!)
done
while ((${#running[@]})); do finish; done
((failed == 0)) || exit 1

rm -f "$out"/*.whl "$out"/*.tar.gz
mv "$work"/out/* "$out"
ls -lh "$out" | awk 'NR > 1 {print $5, $9}'
