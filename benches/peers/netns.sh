#!/usr/bin/env bash
# Network namespaces for benches/overlap and ddp_overlap.py: one per worker and one for the
# coordinator, at a switch, each link with a rate of its own both ways. Needs root and iproute2.
#
#     benches/peers/netns.sh up [WORKERS, 4] [RATE, 1gbit]
#     benches/peers/netns.sh down [WORKERS, 4]
set -euo pipefail
workers=${2:-4}
rate=${3:-1gbit}
names=$(seq -f 'ov%.0f' 0 $((workers - 1)); echo ovc)

case ${1:-} in
up)
    ip netns add ovswitch
    ip -n ovswitch link add hub type bridge
    ip -n ovswitch link set hub up
    host=1
    for name in $names; do
        ip netns add "$name"
        ip link add eth0 netns "$name" type veth peer name "to-$name" netns ovswitch
        ip -n ovswitch link set "to-$name" master hub up
        ip -n "$name" addr add "10.77.0.$host/24" dev eth0
        ip -n "$name" link set eth0 up
        ip -n "$name" link set lo up
        # As in a data centre: a pause between steps does not cost the window.
        ip netns exec "$name" sysctl -qw net.ipv4.tcp_slow_start_after_idle=0
        # What the host sends waits at the host; what comes to it, at the switch.
        ip netns exec "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb limit 8mb
        ip netns exec ovswitch tc qdisc add dev "to-$name" root tbf rate "$rate" burst 256kb limit 2mb
        host=$((host + 1))
    done
    ;;
down)
    for name in $names ovswitch; do
        ip netns del "$name" 2>/dev/null || true
    done
    ;;
*)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
