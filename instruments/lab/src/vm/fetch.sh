#!/bin/sh
# Fetches Debian's kernels by name and unpacks them, for tests that boot them.
#
#     fetch.sh [--newer] DIRECTORY VERSION...
#
# VERSION is the beginning of a version (6.1, 6.12) or newest; with -rt behind it, PREEMPT_RT, with -all
# the kernel that has all kinds of devices. A kernel
# that is in DIRECTORY is taken as it is; --newer looks whether there is a later one. Prints a line for
# each: VERSION found RELEASE, or VERSION missing and why. Kernel and modules of RELEASE then lie in
# DIRECTORY/RELEASE/vmlinuz and DIRECTORY/RELEASE/lib/modules/RELEASE.
#
# With a kernel that has all kinds of devices comes pppd, of this machine's distribution, into
# DIRECTORY/tools if it has none installed: where it cannot be had its tests skip.
#
# Those that fetch into one directory at the same time wait for each other: the second finds what the
# first has fetched.
#
# apt is used with lists of its own, below DIRECTORY: the machine's stay as they are, and it needs no
# root. Cloud kernels, as they are a third of the size and have all that most tests use.
set -eu

newer=
if [ "$1" = --newer ]; then
    newer=yes
    shift
fi
mkdir -p "$1/lists/partial" "$1/archives/partial"
directory=$(cd "$1" && pwd)
shift
exec 9>"$directory/lock"
flock 9

none_of() {
    reason=$1
    shift
    for version; do
        echo "$version missing $reason"
    done
    exit 0
}

# Where Debian has that version. What is not here can be had nowhere: 5.15, 6.6 and 6.8 were never in
# a release of Debian's.
suite_of() {
    case $1 in
    5.10) echo bullseye ;;
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    6.1[6-9] | 7.* | newest) echo trixie-backports ;;
    esac
}

# The mirror that this machine uses, if it is Debian's.
mirror() {
    # shellcheck disable=SC2016  # apt's variables
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }'
}

write_sources() {
    mirror=$(mirror)
    : >"$directory/sources.list"
    for suite; do
        echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian/} $suite main"
    done | sort -u >"$directory/sources.list"
    cat >"$directory/apt.conf" <<END
Dir::Etc::SourceList "$directory/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$directory/lists";
Dir::Cache "$directory";
Dir::Cache::Archives "$directory/archives";
APT::Architecture "amd64";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Retries "2";
APT::Sandbox::User "";
END
}

# The image packages of a version and flavour, the latest first.
images_of() {
    case $1 in
    newest) start='[0-9]*\.' ;;
    *) start="$(echo "$1" | sed 's/\./\\./g')\\." ;;
    esac
    apt-cache pkgnames linux-image- | grep -E "^linux-image-${start}[^-]*(-[0-9][^-]*)?-$2\$" |
        sort -rV
}

# An image with the packages it is split into from Linux 7.1 on. One in angle brackets is in the archive
# no more. A kernel boots without linux-base, which has its configuration.
parts_of() {
    echo "$1"
    apt-cache depends --no-recommends --no-suggests "$1" |
        awk '$1 == "Depends:" && $2 ~ /^<?linux-(binary|modules)-[0-9]/ { print $2 }'
}

# The latest image of a version and flavour that the archive has whole, else the latest.
image_of() {
    latest=
    for image in $(images_of "$1" "$2"); do
        latest=${latest:-$image}
        case $(parts_of "$image") in
        *'<'*) ;;
        *)
            echo "$image"
            return
            ;;
        esac
    done
    echo "$latest"
}

unpack() {
    release=$1
    partial="$directory/$release.partial"
    rm -rf "$partial"
    mkdir "$partial"
    for package in "$directory"/archives/*.deb; do
        dpkg-deb --extract "$package" "$partial"
        rm "$package"
    done
    if [ ! -d "$partial/lib/modules" ]; then
        mkdir -p "$partial/lib"
        mv "$partial/usr/lib/modules" "$partial/lib/modules"
    fi
    for image in "$partial/boot/vmlinuz-$release" "$partial/lib/modules/$release/vmlinuz"; do
        [ ! -e "$image" ] || mv "$image" "$partial/vmlinuz"
    done
    rm -rf "${partial:?}/usr" "${partial:?}/boot" "${partial:?}/etc"
    depmod -b "$partial" "$release"
    rm -rf "${directory:?}/$release"
    mv "$partial" "$directory/$release"
}

# As an ordinary user PATH often lacks the directories of system programs.
PATH=$PATH:/usr/sbin:/sbin

keys=/usr/share/keyrings/debian-archive-keyring.gpg
for tool in apt-get dpkg-deb depmod; do
    command -v $tool >/dev/null 2>&1 || none_of "there is no $tool here" "$@"
done
[ "$(dpkg --print-architecture)" = amd64 ] || none_of "only kernels of amd64 are booted" "$@"
[ -e $keys ] || none_of "$keys is missing (package debian-archive-keyring)" "$@"

# Before apt is told to go by other lists than the machine's.
get_pppd() {
    command -v pppd >/dev/null 2>&1 || [ -e "$directory/tools/usr/sbin/pppd" ] && return
    (cd "$directory/archives" && apt-get download --quiet=2 ppp >&2 && dpkg-deb --extract ppp_*.deb "$directory/tools") ||
        echo "fetch.sh: pppd cannot be had" >&2
    rm -f "$directory"/archives/ppp_*.deb
}
case " $* " in
*-all\ *) get_pppd ;;
esac

suites=
for version; do
    if [ -n "$newer" ] || [ ! -e "$directory/$version.release" ]; then
        suites="$suites $(suite_of "${version%-*}")"
    fi
done
if [ -n "$(echo "$suites" | tr -d ' ')" ]; then
    # shellcheck disable=SC2086  # one word per suite
    write_sources $suites
    export APT_CONFIG="$directory/apt.conf"
    apt-get update --quiet=2 >&2 || echo "fetch.sh: apt-get update failed" >&2
fi

for version; do
    known="$directory/$version.release"
    if [ -e "$known" ] && [ -z "$newer" ]; then
        echo "$version found $(cat "$known")"
        continue
    fi
    if [ -z "$(suite_of "${version%-*}")" ]; then
        echo "$version missing Debian has no such kernel"
        continue
    fi
    case $version in
    *-rt) image=$(image_of "${version%-rt}" rt-amd64) ;;
    *-all) image=$(image_of "${version%-all}" amd64) ;;
    *) image=$(image_of "$version" cloud-amd64) ;;
    esac
    if [ -z "$image" ]; then
        echo "$version missing no package of the archive is called so"
        continue
    fi
    release=${image#linux-image-}
    if [ ! -d "$directory/$release" ]; then
        parts=$(parts_of "$image")
        case $parts in
        *'<'*)
            echo "$version missing the archive has only parts of $image left"
            continue
            ;;
        esac
        # shellcheck disable=SC2086  # one word per package
        if ! (cd "$directory/archives" && apt-get download --quiet=2 $parts >&2); then
            echo "$version missing $image cannot be downloaded"
            continue
        fi
        unpack "$release"
    fi
    echo "$release" >"$known"
    echo "$version found $release"
done
