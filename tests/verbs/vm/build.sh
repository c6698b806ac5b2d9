#!/usr/bin/env bash
# Builds a small virtual machine with two soft-RoCE devices, in which the tests of RDMA verbs run; prints its folder.
#
# Everything comes from Debian's packages (92 MB), which are downloaded and unpacked, not installed. The folder
# ($VM, by default in the user's cache) is kept, and built again only if this script has changed.
# Exit status 77: this machine cannot build it; the reason is on stderr.
set -euo pipefail

VM=${VM:-${XDG_CACHE_HOME:-$HOME/.cache}/pycollectives/verbs-vm}
version=$(sha256sum "$0" | cut -c1-16)
[[ $(cat "$VM/version" 2>/dev/null) == "$version" ]] && { echo "$VM"; exit 0; }

impossible() {
    echo "no VM with RDMA devices: $1" >&2
    exit 77
}
[[ $(id -u) == 0 ]] || impossible "it shows the whole file system of this machine, which needs root"
[[ $(uname -m) == x86_64 ]] || impossible "it is built for x86-64 only, and this machine is $(uname -m)"
for tool in apt-get apt-cache dpkg-deb python3; do
    command -v $tool >/dev/null || impossible "it is made of Debian's packages, and there is no $tool"
done

# The stock kernel: the one for clouds has no rdma_rxe.
kernel_package() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}'; }
[[ $(kernel_package) ]] || apt-get update -qq >&2 || true
kernel=$(kernel_package)
[[ $kernel ]] || impossible "Debian's package linux-image-amd64 is not to be had"
version_of_kernel=${kernel#linux-image-}

not_installed() { apt-get install -s --no-install-recommends "$@" 2>/dev/null | awk '/^Inst/ {print $2}'; }
# What is installed already is used as it is: the VM sees this machine's files.
emulator=$(not_installed qemu-system-x86)
# Without what python3-pyverbs depends on, rdma-core, which depends on udev and systemd.
guest=$(printf '%s\n' $(not_installed ibverbs-providers ibverbs-utils perftest libibverbs-dev kmod iproute2) \
    python3-pyverbs kmod libkmod2 | sort -u)

mkdir -p "$VM/packages"
cd "$VM"
rm -rf version qemu guest kernel busybox initrd
(
    cd packages
    for package in $kernel $emulator $guest busybox-static; do
        compgen -G "${package}_*.deb" >/dev/null || echo "$package"
    done | xargs -r apt-get download -qq 2>&1 | grep -v '^W: Download is performed' >&2 || true
)

unpack() { # folder package…
    local folder=$1 package
    shift
    mkdir -p "$folder"
    for package; do
        dpkg-deb -x packages/"${package}"_*.deb "$folder" || impossible "the package $package cannot be fetched"
    done
    # As on a machine where /bin and /lib are links.
    for package in lib lib64 bin sbin; do
        [[ -d $folder/$package && ! -L $folder/$package ]] || continue
        mkdir -p "$folder/usr/$package"
        cp -a "$folder/$package/." "$folder/usr/$package/"
        rm -rf "${folder:?}/$package"
    done
}
# shellcheck disable=SC2086
{
    unpack qemu $emulator
    unpack guest $guest
}
unpack busybox busybox-static

# The kernel as an uncompressed ELF file, which qemu starts directly, and the few modules that are needed.
mkdir kernel
compgen -G "packages/${kernel}_*.deb" >/dev/null || impossible "the package $kernel cannot be fetched"
dpkg-deb --fsys-tarfile packages/"${kernel}"_*.deb | tar -x -C kernel ./boot ./lib/modules
python3 - "kernel/boot/vmlinuz-$version_of_kernel" >vmlinux <<'PYTHON'
import lzma, sys

image = open(sys.argv[1], "rb").read()
sys.stdout.buffer.write(lzma.LZMADecompressor().decompress(image[image.index(b"\xfd7zXZ\0") :]))
PYTHON
kmod() { LD_LIBRARY_PATH=guest/usr/lib/x86_64-linux-gnu bash -c 'exec -a "$0" guest/usr/bin/kmod "$@"' "$@"; }
kmod depmod -b kernel "$version_of_kernel"
with_dependencies() {
    local module
    for module; do
        kmod modprobe -d kernel -S "$version_of_kernel" --show-depends "$module"
    done | awk '/^insmod/ && !seen[$2]++ {print $2}'
}
modules=guest/usr/lib/modules/$version_of_kernel
for file in $(with_dependencies rdma_rxe crc32_generic crc32_pclmul ib_umad rdma_ucm veth dummy sch_netem); do
    to=$modules/${file#*/modules/"$version_of_kernel"/}
    mkdir -p "${to%/*}"
    cp "$file" "$to"
done
cp "kernel/lib/modules/$version_of_kernel"/modules.{builtin,order,builtin.modinfo} "$modules/"
kmod depmod -b guest/usr "$version_of_kernel"

# An initial RAM disk that mounts this machine's file system, read-only, with the packages and a RAM disk over it.
mkdir -p initrd/{bin,modules,proc,sys,dev,lower,layer,rw,root}
cp busybox/usr/bin/busybox initrd/bin/
for file in $(with_dependencies virtio_pci virtio_console 9pnet_virtio 9p overlay); do
    cp "$file" initrd/modules/
    basename "$file"
done >initrd/modules/order
cat >initrd/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc p /proc
mount -t sysfs s /sys
mount -t devtmpfs d /dev
while read module; do insmod /modules/$module; done </modules/order
options=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o $options,ro,cache=loose machine /lower &&
    mount -t 9p -o $options,ro,cache=loose packages /layer &&
    mount -t tmpfs t /rw && mkdir /rw/upper /rw/work &&
    mount -t overlay -o lowerdir=/layer:/lower,upperdir=/rw/upper,workdir=/rw/work o /root || poweroff -f
mkdir -p /root/proc /root/sys /root/dev /root/vmio
mount -t proc p /root/proc
mount -t sysfs s /root/sys
mount -t devtmpfs d /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts d /root/dev/pts
mount -t tmpfs t /root/dev/shm
mount -t tmpfs t /root/run
mount -t 9p -o $options,cache=none shared /root/vmio
umount /proc /sys /dev
exec switch_root /root /bin/bash /vmio/init </root/dev/hvc0 >/root/dev/hvc0 2>&1
INIT
chmod +x initrd/init
(cd initrd && find . | bin/busybox cpio -o -H newc 2>/dev/null | gzip -1) >initrd.gz
rm -rf kernel busybox initrd
echo "$version" >version
echo "built a VM with kernel $version_of_kernel: $(du -sh . | cut -f1)" >&2
echo "$VM"
