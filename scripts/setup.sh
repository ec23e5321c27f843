#!/bin/sh
# Sets up .venv for `make demo` and `make test`. Needs Python >= 3.10 with venv and headers, and a
# C++ compiler. Safe to run again, and to interrupt: the stamp that says "done" is written last.
# PYTHON=python3.12 chooses another interpreter.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "setup: $1" >&2
    exit 1
}

python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.setup-done
log=$venv/setup.log

command -v "$python" >/dev/null 2>&1 ||
    fail "'$python' was not found. Install Python 3.10 or newer (Debian: apt-get install python3 python3-venv python3-dev), or set PYTHON."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "'$python' is $("$python" -V 2>&1), but 3.10 or newer is needed. Install it, or set PYTHON to a newer one."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' has no venv module. Install it (Debian: apt-get install python3-venv)."
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    fail "the headers of '$python' (Python.h) are missing. Install them (Debian: apt-get install python3-dev)."
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 ||
    fail "no C++ compiler ('$compiler') was found. Install one (Debian: apt-get install g++), or set CXX."

wanted=$(cat pyproject.toml setup.py ./*.pth scripts/constraints.txt scripts/setup.sh | cksum)
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

echo "setup: installing into $venv (some minutes, once; log: $log)" >&2
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" ||
    fail "'$python -m venv $venv' failed. Remove $venv and check that this folder can be written."
rm -f "$stamp"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
    --constraint scripts/constraints.txt torch >"$log" 2>&1 &&
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
        --constraint scripts/constraints.txt --config-settings editable_mode=compat --editable '.[recipes,deepspeed,dev,docs]' >>"$log" 2>&1 &&
    # For tests/contract: the first asks for older releases of its dependencies than the others have,
    # the second for torchao, which its fp8 does not use and other libraries would.
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps litgpt==0.5.13 \
        'neural_compressor_pt==3.10; python_version >= "3.11"' prettytable==3.18.0 wcwidth==0.9.4 >>"$log" 2>&1 ||
    fail "installing packages failed: $(grep -m 1 -i error "$log" || tail -n 1 "$log"). Check the network and the free disk space; the whole log is $log."
echo "$wanted" >"$stamp"
