#!/bin/sh
# Changes, and one that waits to be confirmed, while somebody sets the clock and the power fails; then
# another boot.
set -eu
/usr/sbin/ip link add veth0 type veth peer name veth1
/usr/sbin/ip link add veth2 type veth peer name veth3
/usr/sbin/ip address add 10.0.0.2/24 dev veth1
/usr/sbin/ip address add 10.0.1.1/24 dev veth2
for link in veth0 veth1 veth2 veth3; do
    /usr/sbin/ip link set $link up
done
mcr() {
    /t/debug/mcr --socket /run/mcr.sock --instance guest "$@"
}
rule() {
    echo "[[rule]]"
    echo "name = \"cam$1\""
    echo "input = \"239.1.1.$1%veth1:5001\""
    echo "outputs = [\"239.10.1.$1%veth2:6001\"]"
}
now() {
    read -r seconds rest </proc/uptime
    echo "${seconds%.*}"
}
start() {
    [ -e /var/mcr.toml ] || { echo "version = 1" && rule 1; } >/var/mcr.toml
    /t/debug/mcr --socket /run/mcr.sock --instance guest run --config /var/mcr.toml &
    until mcr list -o name >/run/list 2>/dev/null; do
        sleep 1
    done
}
listed() {
    echo "listed" $(mcr list -o name)
}
try_out() {
    { echo "version = 1" && rule 1 && rule 3; } >/run/new.toml
    # On a terminal it would ask, wait and count down.
    mcr apply /run/new.toml --confirm "$1" --yes 2>&1 </dev/null | cat
}
# By the kernel's log, as what a terminal still holds is lost too.
cut_off() {
    echo "<1>$1" >/dev/kmsg
    # Nothing is written any more: what was not on the disk is lost.
    echo b >/proc/sysrq-trigger
    sleep 60
}
case $1 in
clock)
    start
    mcr add 239.1.1.2%veth1:5001 239.10.1.2%veth2:6001 --name cam2
    for jump in 4000000000 1000000000; do
        made=$(now)
        try_out 60s
        date -s "@$jump"
        listed
        until [ "$(mcr list -o name)" = "$(printf 'cam1\ncam2')" ]; do
            sleep 1
        done
        echo "undone after $(($(now) - made)) s"
    done
    mcr stop
    ;;
changed)
    start
    for name in one two three; do
        mcr add 239.1.1.9%veth1:5001 239.10.1.9%veth2:6001 --name $name --message "$name"
        mcr remove $name
    done
    last=$(mcr generations | busybox tail -n 1)
    # The log and the sets before it are on the disk once this one is there by name.
    until [ -e "/var/lib/mcr/guest/generations/${last%% *}.toml.gz" ]; do
        sleep 1
    done
    cut_off "changed ${last%% *}"
    ;;
cut)
    start
    mcr add 239.1.1.2%veth1:5001 239.10.1.2%veth2:6001 --name cam2
    try_out 1h
    cut_off "$(listed)"
    ;;
boot)
    start
    listed
    mcr status
    mcr log changes
    mcr generations
    ;;
esac
