#!/usr/bin/env bash
# Makes .venv with everything in requirements/lock.txt, the kernel and every plugin (editable) in it.
# Does nothing, and needs no network, while .venv was made from the same lock, the same pyprojects and in the same
# folder. An interrupted run leaves no stamp, so the next one goes on where it stopped.
#
# PYTHON=/path/to/python picks the interpreter; otherwise the first of python3.11, python3.12, python3.13, python3
# that is new enough and can make a virtual environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.rolemesh-installed
shopt -s nullglob
distributions=(. plugins/*/*/pyproject.toml)
distributions=("${distributions[@]%/pyproject.toml}")

fits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

wanted=$({ pwd; for d in "${distributions[@]}"; do echo "$d"; cat "$d/pyproject.toml"; done
    cat requirements/*.txt requirements/*.sh requirements/*.py; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/rolemesh && -f $stamp && $(<"$stamp") == "$wanted" ]] && fits "$venv/bin/python"; then
    exit 0
fi
rm -f "$stamp"

if ! fits "$venv/bin/python"; then
    python=
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        if [[ -n $candidate ]] && fits "$candidate"; then python=$candidate; break; fi
    done
    if [[ -z $python ]]; then
        echo "error: no Python 3.11 or newer that can make a virtual environment was found (tried" \
            "${PYTHON:+$PYTHON, }python3.11, python3.12, python3.13, python3)." \
            "Install one, with its venv module (Debian: apt-get install python3 python3-venv), or name it: make install PYTHON=/path/to/python3.11" >&2
        exit 2
    fi
    echo "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

# Two --quiet leave errors only: one would print a line per package for each index that does not have it.
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --quiet --no-deps --no-build-isolation)
echo "installing the $(grep -c == requirements/lock.txt) packages of requirements/lock.txt (the first time this downloads about a gigabyte)"
"${pip[@]}" "$(grep '^setuptools==' requirements/lock.txt)"
"${pip[@]}" --requirement requirements/lock.txt
if ! "${pip[@]}" --requirement requirements/compiled.txt 2>/dev/null; then
    echo "warning: no C compiler or Python headers here, so pycosat could not be built:" \
        "reasoning-gym's task zebra_puzzles will not work, everything else does" >&2
    cp requirements/stand_ins/pycosat.py "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
fi
echo "installing rolemesh and the plugins in plugins/, editable"
editables=()
for d in "${distributions[@]}"; do editables+=(--editable "./$d"); done
"${pip[@]}" "${editables[@]}"
"$venv/bin/python" requirements/check.py

printf '%s\n' "$wanted" >"$stamp.new"
mv "$stamp.new" "$stamp"
echo "installed: $venv/bin/rolemesh"
