#!/usr/bin/env bash
# Guess: pyverbs of PyPI works with the libibverbs of the distribution, whose versioned symbols are stable for years.
# Seen: its module for devices needs a private symbol version, IBVERBS_PRIVATE_59, which only libibverbs of the same
#   release has: `import pyverbs.device` is an ImportError with that of Debian 12 (release 44), and works with the one
#   that was built beside it, which pip does not install. Modules without a device, such as the enumerations, do load.
# Version: pyverbs 59.0, libibverbs1 and librdmacm1 44.0-2 (Debian 12), CPython 3.11, Cython 3.0.12.
# Why it matters: an extra with "pyverbs" in it installs something that cannot be imported, unless the distribution has
#   the very same release. Take the pyverbs of the distribution.
# Needs cmake, libnl-3-dev and libnl-route-3-dev; compiles rdma-core, which takes minutes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for package in libibverbs1 librdmacm1; do
    apt-get download -qq "$package=44.0-2"
    dpkg-deb -x "$package"_*.deb debian
done
python3 -m venv venv
echo 'cython==3.0.12' >constraints
PIP_CONSTRAINT=$folder/constraints venv/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-deps \
    --config-settings=build-dir="$folder/build" pyverbs==59.0
with() { # folder with libraries, module
    (LD_LIBRARY_PATH=$1 venv/bin/python -c "import pyverbs.$2" 2>&1 || true) | tail -n 1
}
own=$(with build/lib device)
other=$(with debian/usr/lib/x86_64-linux-gnu device)
enumerations=$(with debian/usr/lib/x86_64-linux-gnu libibverbs_enums)
echo "with libibverbs 59: '$own'"
echo "with libibverbs 44: '$other'"
echo "its enumerations with libibverbs 44: '$enumerations'"
[[ -z $own && -z $enumerations && $other == *"version \`IBVERBS_PRIVATE_59' not found"* ]]
