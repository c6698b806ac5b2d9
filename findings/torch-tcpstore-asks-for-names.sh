#!/usr/bin/env bash
# torch.distributed: a TCPStore on 127.0.0.1 where the name server does not answer.
#
# What one would guess: an address is given, so no name is looked up; and /etc/hosts has the name of 127.0.0.1.
# What happens: the constructor looks up the name of its peer's address, only to print it in messages. The socket is an
# IPv6 one, so the address is ::ffff:127.0.0.1, for which the C library does not look into the lines of /etc/hosts for
# 127.0.0.1. It asks the name server. Without an answer the constructor returns after 10 s, with a warning and a store
# that works.
# Version: torch 2.13.0, glibc 2.36.
# Why it matters: on cluster nodes and in containers without a name server, every process of a job starts 10 s later. A
# measurement of how fast processes meet through TCPStore measures the name server unless look-ups are local.
# Needs user namespaces (unshare -r), in which the network and /etc/resolv.conf are replaced.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cat >"$dir/names.py" <<'PY'
import socket

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.9", 53))
print("listening", flush=True)
while True:  # read questions, and never answer
    question, _ = server.recvfrom(2000)
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    print("asked for", ".".join(labels), flush=True)
PY
cat >"$dir/store.py" <<'PY'
import socket, time
from datetime import timedelta

import torch
import torch.distributed as dist

began = time.monotonic()
print("name of 127.0.0.1:", socket.getnameinfo(("127.0.0.1", 0), 0)[0], f"after {time.monotonic() - began:.0f} s")
began = time.monotonic()
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=60))
seconds = time.monotonic() - began
store.set("key", "value")
assert store.get("key") == b"value"
print(f"torch {torch.__version__}: a TCPStore on 127.0.0.1 after {seconds:.0f} s")
PY
echo "nameserver 127.0.0.9" >"$dir/resolv.conf"
echo "127.0.0.1 localhost" >"$dir/hosts"
echo "hosts: files dns" >"$dir/nsswitch.conf"
unshare -rmn bash -euc '
ip link set lo up
for name in resolv.conf hosts nsswitch.conf; do mount --bind "$1/$name" "/etc/$name"; done
"$1/venv/bin/python" "$1/names.py" >"$1/asked" &
until grep -q listening "$1/asked"; do sleep 0.1; done
"$1/venv/bin/python" "$1/store.py" 2>/dev/null
kill $!' bash "$dir" | tee "$dir/out"
cat "$dir/asked"
grep -q "^name of 127.0.0.1: localhost after 0 s" "$dir/out"
grep -qE "TCPStore on 127.0.0.1 after [0-9]{1,2} s" "$dir/out"
[[ $(grep -oE "after [0-9]+ s$" "$dir/out" | tail -n 1 | grep -oE "[0-9]+") -ge 5 ]]
grep -q "^asked for 1.0.0.127.in-addr.arpa" "$dir/asked"
