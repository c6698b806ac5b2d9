#!/usr/bin/env bash
# boot.sh COMMAND [ARGUMENT…]: runs COMMAND as root in the VM that build.sh makes, in this folder, and exits with its
# exit status. Status 77: there is no VM, see build.sh; 124: COMMAND took longer than LIMIT seconds; 125: the VM failed.
#
# The VM has two soft-RoCE devices, rxe0 (10.77.0.1) and rxe1 (10.77.0.2), joined by the pair of interfaces veth0 and
# veth1. It sees the file system of this machine; what it writes is lost, but for /vmio, which is VMIO here.
# Settings: LIMIT (seconds), CPUS, MEM (MiB), VMIO (a folder), ACCEL (kvm or tcg). Without ACCEL it is KVM if that boots
# this kernel here, which is tried once; otherwise the processor is emulated (tcg), about twenty times slower. Which one
# it is stands on stderr.
set -uo pipefail

VM=$("$(dirname "$0")/build.sh") || exit
CPUS=${CPUS:-2}
MEM=${MEM:-4096}
LIMIT=${LIMIT:-600}

# Not every /dev/kvm boots this kernel: one that does without the processor's help for virtual machines hangs.
kvm_boots() {
    [[ -w /dev/kvm ]] && grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo &&
        ACCEL=kvm LIMIT=30 VMIO='' "$0" true >/dev/null 2>&1
}
if [[ ! ${ACCEL:-} ]]; then
    this_boot=$(cat /proc/sys/kernel/random/boot_id)
    read -r tried_in ACCEL 2>/dev/null <"$VM/accelerator" || true
    if [[ ${tried_in:-} != "$this_boot" ]]; then
        ACCEL=tcg
        kvm_boots && ACCEL=kvm
        echo "$this_boot $ACCEL" >"$VM/accelerator"
    fi
fi
echo "VM with two soft-RoCE devices, $CPUS processors, run by $ACCEL" >&2

io=${VMIO:-$(mktemp -d)}
[[ ${VMIO:-} ]] || trap 'rm -rf "$io"' EXIT
mkdir -p "$io"
rm -f "$io/status"

cat >"$io/init" <<'INIT'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
stty raw -echo 2>/dev/null
/bin/bash /vmio/job </dev/null
echo $? >/vmio/status
sync
echo o >/proc/sysrq-trigger
while :; do sleep 1; done
INIT
{
    cat <<'JOB'
export HOME=/root TERM=dumb LC_ALL=C.UTF-8
ip link set lo up
modprobe veth
ip link add veth0 type veth peer name veth1
# Two hosts in one kernel: packets from one address to the other leave by one interface and come in by the other.
ip rule add pref 10 iif veth0 lookup local
ip rule add pref 11 iif veth1 lookup local
ip rule add pref 100 lookup local
ip rule del pref 0
modprobe -a rdma_rxe ib_umad rdma_ucm || exit 125
for i in 0 1; do
    ip addr add 10.77.0.$((i + 1))/24 dev veth$i
    ip link set veth$i mtu 4200 up
    echo 0 >/proc/sys/net/ipv4/conf/veth$i/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/veth$i/accept_local
    ip rule add pref 2$i from 10.77.0.$((i + 1)) to 10.77.0.$((2 - i)) lookup 10$i
    ip route add 10.77.0.$((2 - i)) dev veth$i table 10$i
    rdma link add rxe$i type rxe netdev veth$i || exit 125
    # One processor receives what comes to a device, in order. Otherwise each receives what was sent on it, and soft-RoCE,
    # which then sends again, ends connections with "remote invalid request" after some minutes.
    echo $((1 << i)) >/sys/class/net/veth$i/queues/rx-0/rps_cpus
done
ulimit -l unlimited
has_gid() { grep -q "0a4d:000$(($1 + 1))" "/sys/class/infiniband/rxe$1/ports/1/gids/1"; }
for attempt in $(seq 50); do
    has_gid 0 && has_gid 1 && break
    sleep 0.1
done
JOB
    printf 'export PATH=%q:/usr/sbin:/usr/bin:/sbin:/bin\n' "$PATH"
    export -p | grep -E '^declare -x (COLLECTIVES_|PYTEST_|PYTHON|PYVERBS=)' || true
    printf 'cd %q || exit 125\n' "$PWD"
    printf '%q ' "$@"
    echo
} >"$io/job"

folders=()
if qemu=$(command -v qemu-system-x86_64); then
    libraries=${LD_LIBRARY_PATH:-}
else
    qemu=$VM/qemu/usr/bin/qemu-system-x86_64
    folders=(-L "$VM/qemu/usr/share/qemu" -L "$VM/qemu/usr/share/seabios")
    libraries=$VM/qemu/usr/lib/x86_64-linux-gnu
fi
share() { # tag folder options
    echo -fsdev "local,id=$1,path=$2,security_model=none$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
}
# With emulated AVX2 (QEMU 7.2), NumPy 2.4 sorts wrongly (findings/qemu-numpy-argsort.sh).
accelerator=(-accel "tcg,thread=multi,tb-size=256" -cpu "max,la57=off,avx2=off")
[[ $ACCEL == kvm ]] && accelerator=(-accel kvm -cpu host)
# shellcheck disable=SC2046
LD_LIBRARY_PATH=$libraries timeout -k 5 "$LIMIT" "$qemu" "${folders[@]}" "${accelerator[@]}" \
    -smp "$CPUS" -m "$MEM" -machine q35 -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$VM/vmlinux" -initrd "$VM/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=1" \
    -serial "file:$io/console" -device virtio-serial -chardev stdio,id=c,signal=off -device virtconsole,chardev=c \
    $(share machine / ,readonly=on,multidevs=remap) $(share packages "$VM/guest" ,readonly=on,multidevs=remap) \
    $(share shared "$io" "") </dev/null
status=$?
[[ $status == 124 ]] && exit 124
if [[ ! -f $io/status ]]; then
    echo "the VM ended without an exit status (qemu: $status); the last words of its kernel:" >&2
    tail -n 20 "$io/console" >&2
    exit 125
fi
exit "$(cat "$io/status")"
