#!/usr/bin/env bash
# Guess: the wheel of UCX, a library for RDMA networks, has its transports for RDMA, which wait for a device.
# Seen: libucx-cu12 has no module for InfiniBand or RoCE (libuct_ib), only for shared memory, TCP and CUDA. Told to use
#   the transport rc, UCX says that there is none.
# Version: libucx-cu12 1.22.0 (1.15.0.post2, 1.17.0, 1.18.1, 1.19.0, 1.20.0 and 1.21.0 have no such module, either).
# Why it matters: ranks over UCX from PyPI are no measure of an RDMA network. Take the distribution's package.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip install -q --disable-pip-version-check --no-deps --target . libucx-cu12==1.22.0
chmod +x libucx/bin/ucx_info
modules=$(cd libucx/lib/ucx && echo libuct_*.so)
said=$( (UCX_TLS=rc LD_LIBRARY_PATH=$PWD/libucx/lib libucx/bin/ucx_info -e -u t 2>&1 | grep -o "transport 'rc' .*" || true) | head -n 1)
echo "modules of transports: $modules"
echo "asked for rc: $said"
[[ $modules == "libuct_cma.so libuct_cuda.so" && $said == "transport 'rc' is not available, please use "*" tcp" ]]
