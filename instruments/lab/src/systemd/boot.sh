#!/bin/sh
# Boots this host's systemd on an overlay of its root, in namespaces of its own but for the network:
#
#     boot.sh DIRECTORY CGROUP
#
# DIRECTORY is empty, CGROUP a new group of the cgroup2 hierarchy. Nothing outside changes.
set -eu
directory=$1
if [ $# -gt 1 ]; then
    echo $$ >"$2/cgroup.procs"
    # The manager is process 1 of its namespace: with it goes whatever it started.
    exec unshare --mount --pid --ipc --uts --cgroup --fork --kill-child=SIGKILL sh "$0" "$directory"
fi

mount --make-rprivate /
mount -t tmpfs tmpfs "$directory"
root=$directory/root
mkdir "$directory/upper" "$directory/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup" 2>/dev/null || true
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf -o mode=0700 bpf "$root/sys/fs/bpf"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"

# None of the host's own services.
rm -rf "$root/etc/systemd/system"
mkdir "$root/etc/systemd/system"
: >"$root/etc/fstab"
cat >"$root/etc/systemd/system/lab.target" <<END
[Unit]
Description=Lab
Wants=systemd-journald.service
END

cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
hostname lab
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/lib/systemd/systemd --system --unit=lab.target systemd.unified_cgroup_hierarchy=1 \
    --log-target=console --log-level=notice --show-status=false
