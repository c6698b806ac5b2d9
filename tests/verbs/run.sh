#!/usr/bin/env bash
# run.sh COMMAND…: runs COMMAND in the VM with RDMA devices, or here if this machine has some, or cannot have the VM.
# In the last case the tests are skipped, each with its reason. Without COMMAND: prints the VM's folder, or nothing where
# COMMAND would run here.
set -u
vm=$(dirname "$0")/vm
here() {
    [[ $# == 0 ]] || exec "$@"
    exit 0
}
grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state && here "$@"
folder=$("$vm/build.sh")
case $? in
0) [[ $# == 0 ]] || exec "$vm/boot.sh" "$@" ;;
77) here "$@" ;;
*) exit 1 ;;
esac
echo "$folder"
