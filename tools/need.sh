#!/bin/sh
# Sees that what make needs from the system is there: tools/need.sh [--optional] python|compiler|redis|openssl|iproute2|doctest|ccache ...
#
# What is missing is installed where we may (Debian or Ubuntu, as root or with sudo that asks no password; not if
# APT=no). Otherwise this says what to install and fails, or with --optional goes on.
set -eu

PYTHON=${PYTHON:-python3}
optional=no
[ "${1:-}" = --optional ] && { optional=yes; shift; }

# The path of the real interpreter, and the Debian package of its headers.
interpreter() { readlink -f "$(command -v "$PYTHON")" 2>/dev/null || echo none; }
headers() {
    case $(interpreter) in
    "$(readlink -f /usr/bin/python3)") echo python3-dev ;;
    *) echo "$(basename "$(interpreter)")-dev" ;;
    esac
}

has_python() { command -v "$PYTHON" >/dev/null; }
has_venv() { "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; }
has_headers() {
    "$PYTHON" -c 'import os, sysconfig as s, sys; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))'
}
has_compiler() { command -v "${CXX:-c++}" >/dev/null; }
has_doctest() { echo '#include <doctest/doctest.h>' | "${CXX:-c++}" -x c++ -E - >/dev/null 2>&1; }

# One line for each thing that is missing: Debian's package, then what it is for.
missing() {
    for thing; do
        case $thing in
        python)
            if ! has_python; then
                echo "python3-venv a Python interpreter, with venv"
                echo "python3-dev Python's headers"
            else
                has_venv || echo "python3-venv Python's venv"
                has_headers || echo "$(headers) Python's headers (Python.h)"
            fi
            ;;
        compiler) has_compiler || echo "g++ a C++ compiler" ;;
        redis) command -v redis-server >/dev/null || echo "redis-server a Redis server" ;;
        openssl) command -v openssl >/dev/null || echo "openssl the openssl program, for the tests' certificates" ;;
        iproute2) command -v ip >/dev/null || echo "iproute2 the ip program, for the tests between hosts" ;;
        ccache) command -v ccache >/dev/null || echo "ccache a cache of compiled files" ;;
        doctest) has_doctest || echo "doctest-dev the framework of the C++ tests" ;;
        *) echo "need.sh: unknown: $thing" >&2; exit 2 ;;
        esac
    done
}

lacking=$(missing "$@")
if [ -n "$lacking" ]; then
    packages=$(echo "$lacking" | cut -d' ' -f1 | tr '\n' ' ' | sed 's/ $//')
    root=none
    if [ "${APT:-yes}" = yes ] && command -v apt-get >/dev/null; then
        if [ "$(id -u)" = 0 ]; then root=; elif sudo -n true 2>/dev/null; then root=sudo; fi
    fi
    if [ "$root" != none ]; then
        echo "Installing from the system's packages: $packages"
        # shellcheck disable=SC2086
        { $root apt-get update -qq &&
            $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages; } \
            >/dev/null || echo "apt-get failed" >&2
        lacking=$(missing "$@")
    fi
fi
if [ -n "$lacking" ]; then
    {
        echo "Missing here:"
        echo "$lacking" | sed 's/^[^ ]* /  - /'
        echo "On Debian or Ubuntu, install it with"
        echo
        echo "    apt-get install $(echo "$lacking" | cut -d' ' -f1 | tr '\n' ' ' | sed 's, $,,')"
        echo
    } >&2
    [ $optional = yes ] || exit 1
fi
if [ $optional = no ] && has_python && ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$PYTHON is $("$PYTHON" -V); 3.10 or newer is needed: make PYTHON=python3.12" >&2
    exit 1
fi
