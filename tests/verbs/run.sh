#!/usr/bin/env bash
# run.sh COMMAND…: runs COMMAND in the VM with RDMA devices, or here if this machine has some, or cannot have the VM.
# In the last case the tests are skipped, each with its reason.
set -u
vm=$(dirname "$0")/vm
grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state && exec "$@"
"$vm/build.sh" >/dev/null
case $? in
0) exec "$vm/boot.sh" "$@" ;;
77) exec "$@" ;;
*) exit 1 ;;
esac
