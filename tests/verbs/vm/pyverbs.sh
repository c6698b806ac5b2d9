#!/usr/bin/env bash
# pyverbs.sh VERSION FOLDER: builds pyverbs VERSION (57.0, 59.0) of PyPI, which brings its own rdma-core, for the tests
# of pyverbs: PYVERBS=FOLDER make test-verbs ARGS=tests/verbs/test_pyverbs.py. It takes a minute or two.
#
# FOLDER gets site (what pip installs) and lib (the libraries of that rdma-core, which pip does not install).
# PYTHON: the Python that is to import pyverbs. Needs cmake, libnl-3-dev and libnl-route-3-dev.
set -euo pipefail
version=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
python=${PYTHON:-$(dirname "$0")/../../../.venv/bin/python}
[[ -x $python ]] || python=python3

# Cython 3.2 and later do not compile these versions.
echo 'cython<3.2' >"$folder/constraints"
PIP_CONSTRAINT=$folder/constraints "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-binary pyverbs --config-settings=build-dir="$folder/build" --target "$folder/site" "pyverbs==$version"
mkdir -p "$folder/lib"
cp -P "$folder"/build/lib/*.so* "$folder/lib"
echo "$folder"
