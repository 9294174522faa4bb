#!/usr/bin/env bash
# Installs everything for each Python from 3.11 on that is found (or that is named: interpreters.sh /path/to/python …), in
# a clone below a temporary folder. Runs there the quick tests of the folders below, and one step of the GRPO example.
# Prints a table at the end; its exit code is 1 if any of it failed.
#
# Where no index has torch's CPU build for an interpreter, its CUDA build computes on the CPU (ROLEMESH_TORCH=any).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quick="tests/unit tests/conformance plugins/backends plugins/commands/base plugins/engines plugins/observe/console plugins/stores"
tests=(${ROLEMESH_QUICK_TESTS:-$quick})
marks='not ray and not slow and not more and not soak'

pythons=("$@")
if [[ $# == 0 ]]; then
    shopt -s nullglob
    for minor in 11 12 13; do
        for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python; do
            if "$candidate" -c "import sys, venv; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
                pythons+=("$(command -v "$candidate")")
                break
            fi
        done
    done
fi

failed=0
table=()
for python in "${pythons[@]}"; do
    version=$("$python" -c 'import platform; print(platform.python_version())')
    checkout=$work/$version
    git clone --quiet --no-hardlinks "$here" "$checkout" || exit 2
    cd "$checkout" || exit 2
    export PYTHON=$python ROLEMESH_COMMAND="make interpreters"
    began=$SECONDS torch=none installed=failed tested=- stepped=-
    if requirements/install.sh || ROLEMESH_TORCH=any requirements/install.sh; then
        installed="$((SECONDS - began)) s"
        torch=$(.venv/bin/python -c 'import torch; print(torch.__version__)')
        tested=failed stepped=failed
        if .venv/bin/python -m pytest -q -p no:cacheprovider -n 2 -m "$marks" "${tests[@]}" >"$work/$version.log"; then
            tested=passed
        fi
        tail -n 30 "$work/$version.log"
        if .venv/bin/python examples/grpo/prepare.py "${ROLEMESH_MODELS:-$here/.cache}" >/dev/null &&
            mkdir -p .cache && ln -sfn "${ROLEMESH_MODELS:-$here/.cache}"/* .cache/ &&
            .venv/bin/rolemesh run examples/grpo/job.yaml steps=1 --backend local; then
            stepped=done
        fi
    fi
    table+=("$(printf '%-8s  torch %-13s  installed %-8s  quick tests %-7s  a step of GRPO %s' \
        "$version" "$torch" "$installed" "$tested" "$stepped")")
    [[ $tested == passed && $stepped == done ]] || failed=1
    cd "$here" && rm -rf "$checkout"
done
printf '%s\n' "${table[@]}"
exit $failed
