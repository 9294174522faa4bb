#!/usr/bin/env bash
# Makes .venv with a group of requirements/lock.txt (kernel, demo, or everything, which is the default), and the kernel
# and the plugins of that group in it, editable.
# Does nothing, and needs no network, while .venv has that group from the same lock, the same pyprojects and the same
# folder. An interrupted run leaves no stamp, so the next one goes on where it stopped.
#
# PYTHON=/path/to/python picks the interpreter; otherwise the first of python3.11, python3.12, python3.13, python3
# that is new enough and can make a virtual environment.
# ROLEMESH_TORCH=cpu, cuda or any picks torch's build; otherwise the NVIDIA driver decides, or what .venv has.
# ROLEMESH_TORCH_INDEX is a mirror of PyTorch's index of CPU builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH # of another Python, or they make each start of this one slower

venv=.venv
stamp=$venv/.rolemesh-installed
group=${1:-everything}
shopt -s nullglob
distributions=(. plugins/*/*/pyproject.toml)
distributions=("${distributions[@]%/pyproject.toml}")

# With ensurepip it has a pip of its own; without (Debian's python3 has none), the interpreter's pip can fill it.
able='import sys, venv, importlib.util as u; sys.exit(sys.version_info < (3, 11) or not any(map(u.find_spec, sys.argv[1:])))'
fits() { "$1" -c "$able" ensurepip pip >/dev/null 2>&1; }
alive() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

wanted=$({ pwd; for d in "${distributions[@]}"; do echo "$d"; cat "$d/pyproject.toml"; done
    cat requirements/*.txt requirements/*.sh requirements/*.py; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/rolemesh && -f $stamp ]] && alive "$venv/bin/python"; then
    read -r made has <"$stamp" || true
    if [[ $made == "$wanted" && (${has:-} == "$group" || ${has:-} == everything) &&
        (-z ${ROLEMESH_TORCH:-} || $ROLEMESH_TORCH == "$(cat $venv/.rolemesh-torch)") ]]; then
        exit 0
    fi
fi
if [[ ! -w . ]]; then
    echo "error: $PWD cannot be written, so .venv cannot be made there" >&2
    echo "  → git clone '$PWD' ~/rolemesh && cd ~/rolemesh && ${ROLEMESH_COMMAND:-make install}" >&2
    exit 2
fi
rm -f "$stamp"

if ! alive "$venv/bin/python"; then
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
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
    else
        "$python" -m venv --clear --without-pip "$venv"
    fi
    "$python" -c 'import sys; print(sys.executable)' >"$venv/.made-by"
fi
if [[ ! -x $venv/bin/pip ]]; then
    ROLEMESH_PIP=$(<"$venv/.made-by")
    export ROLEMESH_PIP
fi

"$venv/bin/python" requirements/install.py "$group"
printf '%s %s\n' "$wanted" "$group" >"$stamp.new"
mv "$stamp.new" "$stamp"
echo "installed: $venv/bin/rolemesh    (. $venv/bin/activate: then 'rolemesh' alone works)"
if [[ -d plugins/commands/base ]]; then
    "$venv/bin/rolemesh" doctor || {
        code=$?
        [[ $code == 1 ]] || exit 0
        echo "error: rolemesh doctor reports an error, above, with its remedy; everything is installed" >&2
        echo "  → ${ROLEMESH_COMMAND:-make install}    (again, goes on in spite of it)" >&2
        exit 1
    }
fi
