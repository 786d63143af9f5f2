#!/bin/sh
# A bare relay by AF_XDP for `mcr bench run driver --relay af-xdp=instruments/lab/peers/af_xdp.sh`: what packets of a
# userspace path would cost if they came and left so. `start RULES` compiles and starts it, `stop` ends it.
set -e
place=/run/af_xdp-$(readlink /proc/self/ns/net | tr -dc 0-9)
case $1 in
start)
	mkdir -p "$place"
	clang -O2 -Wall -Werror -o "$place/af_xdp" "$(dirname "$0")/af_xdp.c"
	"$place/af_xdp" "$2" >"$place/out" 2>"$place/err" </dev/null &
	echo $! | tee "$place/pid"
	while ! grep -q ready "$place/out"; do
		kill -0 $! 2>/dev/null || { cat "$place/err" >&2; exit 1; }
		sleep 0.05
	done
	;;
stop)
	kill "$(cat "$place/pid")"
	rm -r "$place"
	;;
*)
	echo "usage: $0 start RULES | stop" >&2
	exit 2
	;;
esac
