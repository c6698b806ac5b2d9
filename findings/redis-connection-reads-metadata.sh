#!/usr/bin/env bash
# redis-py: what it costs to make one more Connection object, before anything is sent.
#
# What one would guess: a few attributes are set; the package's own version is a constant, or is looked up once a process.
# What happens: each Connection searches the installed packages for redis-py and reads its METADATA file from disk, to
# send the version to the server with CLIENT SETINFO. It takes about a millisecond, more than to connect over loopback.
# Version: redis 8.1.0.
# Why it matters: a program that opens many connections, e.g. one for each of 1 024 ranks, spends seconds of processor
# time on this. With driver_info=None nothing is read, and two requests less are sent for each connection.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q redis==8.1.0
cat >"$dir/count.py" <<'PY'
import sys

import redis

reads = 0


def count(event, arguments):
    global reads
    if event == "open" and str(arguments[0]).endswith("METADATA"):
        reads += 1


sys.addaudithook(count)
print("redis", redis.__version__)
for options in ({}, {"driver_info": None}):
    reads = 0
    for _ in range(3):
        redis.Connection(**options)  # connects later
    print(f"{options}: METADATA read {reads} times for 3 connections")
PY
"$dir/venv/bin/python" "$dir/count.py" | tee "$dir/out"
grep -q "^{}: METADATA read 3 times" "$dir/out"
grep -q "^{'driver_info': None}: METADATA read 0 times" "$dir/out"
