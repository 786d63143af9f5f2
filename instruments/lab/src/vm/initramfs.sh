#!/bin/sh
# Makes an initramfs of a kernel's modules, this host's tools and programs under test.
#
#     initramfs.sh KERNELS RELEASE OUTPUT STEPS SOURCE=TARGET...
#
# KERNELS is what fetch.sh filled; STEPS a script that runs inside, in which `step NAME SECONDS COMMAND...`
# runs one thing and tells what became of it.
set -eu
kernels=$1 release=$2 output=$3 steps=$4
shift 4
PATH=$PATH:/usr/sbin:/sbin:$kernels/tools/usr/sbin

root=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$root"' EXIT
for directory in bin dev etc lib/modules proc root run sys tmp usr/bin usr/sbin var; do
    mkdir -p "$root/$directory"
done

# What tests need beyond what is built in, with what that needs.
modules="virtio_pci virtio_blk virtio_net vmxnet3 e1000e ext4 veth bridge sch_ingress cls_bpf act_gact dummy tun 8021q macvlan udp_diag"
modules="$modules ip_gre xfrm_interface xfrm_user ip_vti esp4 esp6 authenc cbc hmac sha1_generic aesni_intel aes_generic"
modules="$modules vrf ppp_async vxlan geneve ipip sit ip6_gre ip6_tunnel ip6_vti macsec gcm ipvlan bonding nlmon vcan"
modules="$modules echainiv seqiv drbg ctr jitterentropy_rng sha512_generic wireguard bareudp team mpls_iptunnel mpls_router cls_u32 act_tunnel_key"
for module in $modules; do
    modprobe -D -d "$kernels/$release" -S "$release" $module 2>/dev/null | awk '$1 == "insmod" { print $2 }'
done | sort -u | while read -r file; do
    target=$root/lib/modules/$release/${file##*/}
    mkdir -p "${target%/*}"
    case $file in
    *.xz) xz --decompress --stdout "$file" >"${target%.xz}" ;;
    *.zst) zstd --quiet --decompress --stdout "$file" >"${target%.zst}" ;;
    *) cp "$file" "$target" ;;
    esac
done
cp "$kernels/$release/lib/modules/$release"/modules.builtin* "$root/lib/modules/$release/"
depmod -b "$root" "$release" 2>/dev/null

# A program with its libraries, without what debuggers want.
put() {
    mkdir -p "$root/${2%/*}"
    strip -o "$root/$2" "$1" 2>/dev/null || cp "$1" "$root/$2"
    chmod 755 "$root/$2"
    ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        [ -e "$root/$library" ] || { mkdir -p "$root/${library%/*}" && cp -L "$library" "$root/$library"; }
    done
}

busybox=$(command -v busybox)
put "$busybox" /bin/busybox
for applet in sh mount mkdir modprobe poweroff timeout uname cat cp rm sleep true date; do
    ln -s busybox "$root/bin/$applet"
done
for tool in ip bridge tc ethtool socat pppd; do
    file=$(command -v $tool) || continue
    put "$(readlink -f "$file")" "/usr/sbin/$tool"
done
echo "export MCR_TEST_SCALE=${MCR_TEST_SCALE:-1}" >"$root/environment"
for program; do
    put "${program%%=*}" "${program#*=}"
done
cp "$steps" "$root/steps"

cat >"$root/init" <<'END'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RUST_BACKTRACE=0
. /environment
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /run/netns /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
ln -s /run /var/run
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
echo /bin/modprobe >/proc/sys/kernel/modprobe
for module in MODULES; do
    modprobe $module 2>/dev/null
done
[ ! -b /dev/vda ] || mount -t ext4 /dev/vda /var
ip link set lo up
step() {
    name=$1 seconds=$2
    shift 2
    echo "@begin $name"
    timeout -k 10 "$seconds" "$@" 2>&1
    echo "@end $name $?"
}
echo "@kernel $(uname -r)"
. /steps
echo "@done"
poweroff -f
END
sed -i "s/ MODULES;/ $modules;/" "$root/init"
chmod +x "$root/init"
mkdir -p "$root/etc/ppp"
touch "$root/etc/ppp/options"
(cd "$root" && find . | cpio --quiet --create --format=newc --owner=0:0) | gzip -1 >"$output"
