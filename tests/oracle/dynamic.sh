#!/bin/bash
# Inside the reference kernel: real TCP and UDP through sch_cake, then through ucake, the rest being equal.
#
#   client --c0===box===s0-- server        the box is a router between two veth pairs with sch_cake on both
#   10.7.0.1…         10.7.0.201…          sides, or ucake between the taps c0 and s0
#
# A router, because it lets go of the sender's socket, as a tap does; a bridge does not, and then the queue
# in the box pushes back on the sender.
# What goes to the client is shaped; what comes from it takes 20 ms longer (netem on c0, both times).
# Needs LOAD and UCAKE (programs), ROUNDS, WARM, MEASURE (seconds), ONLY (a pattern of scenarios).
# Writes lines SCENARIO SIDE KEY VALUE to $OUT/dynamic.txt, below one that says when and for how long.
set -u
lines=$OUT/dynamic.txt
echo "# Linux $(uname -r), $(date -u +%F): WARM=$WARM MEASURE=$MEASURE" >"$lines"

in_client() { ip netns exec client "$@"; }
in_server() { ip netns exec server "$@"; }

addresses() {
  in_client ip link set c0 mtu 1500 up
  in_server ip link set s0 mtu 1500 up
  for n in $(seq 9); do in_client ip addr add 10.7.0.$n/25 dev c0; done
  for n in $(seq 201 209); do in_server ip addr add 10.7.0.$n/25 dev s0; done
  in_client ip route add 10.7.0.128/25 dev c0
  in_server ip route add 10.7.0.0/25 dev s0
  in_client tc qdisc add dev c0 root netem delay 20ms limit 10000
}

namespaces() {
  for n in client server box; do
    ip netns add $n
    ip netns exec $n sysctl -q -w net.ipv6.conf.default.disable_ipv6=1 net.ipv4.tcp_ecn=$1 net.ipv4.tcp_no_metrics_save=1
    ip netns exec $n ip link set lo up
  done
}

kernel_up() {
  ip -n client link add c0 type veth peer name c1 netns box
  ip -n server link add s0 type veth peer name s1 netns box
  for d in c1 s1; do
    ip -n box link set $d up
    ip netns exec box sysctl -q -w net.ipv4.conf.$d.proxy_arp=1 net.ipv4.neigh.$d.proxy_delay=0 net.ipv4.conf.$d.forwarding=1
  done
  ip -n box route add 10.7.0.0/25 dev c1
  ip -n box route add 10.7.0.128/25 dev s1
  ip netns exec box tc qdisc add dev s1 root cake
  # shellcheck disable=SC2086
  ip netns exec box tc qdisc add dev c1 root cake $1
}

kernel_counts() {
  ip netns exec box tc -s qdisc show dev c1 | awk '
    /Sent/ { match($0, /dropped [0-9]+/); d = substr($0, RSTART + 8, RLENGTH - 8) }
    $1 == "marks" { for (i = 2; i <= NF; i++) m += $i }
    END { print "drops", d + 0; print "marks", m + 0 }'
}

ucake_up() {
  ip netns exec box "$UCAKE" run tap:c0 tap:s0 --down "$1" >/tmp/ucake.out 2>/tmp/ucake.err &
  ucake=$!
  for _ in $(seq 50); do
    [ "$(ip -n box -o link show 2>/dev/null | grep -cE ' (c0|s0):')" = 2 ] && break
    sleep 0.1
  done
  ip -n box link set c0 netns client
  ip -n box link set s0 netns server
}

# Of the two directions that it prints when it ends, the one that leaves through c0.
ucake_counts() {
  kill -TERM "$ucake"
  wait "$ucake" || cat /tmp/ucake.err >&2
  awk '
    /^qdisc/ { here = /dev c0/ }
    here && /Sent/ { match($0, /dropped [0-9]+/); d = substr($0, RSTART + 8, RLENGTH - 8) }
    here && $1 == "marks" { for (i = 2; i <= NF; i++) m += $i }
    END { print "drops", d + 0; print "marks", m + 0 }' /tmp/ucake.out
}

# once SIDE ECN WORDS FLOWS…: writes what came of it to /tmp/answers
once() {
  local side=$1 words=$3 server
  namespaces "$2"
  shift 3
  ${side}_up "$words"
  addresses
  in_server "$LOAD" serve &
  server=$!
  sleep 0.3
  {
    in_client "$LOAD" measure "$WARM" "$MEASURE" "$@"
    ${side}_counts
  } >/tmp/answers
  kill $server
  wait $server 2>/dev/null
  for n in client server box; do ip netns del $n; done
}

# scenario NAME ECN WORDS FLOWS…
# When the machine under all this stood still for long, a measurement says nothing: it is made again, and
# of three the quietest counts.
scenario() {
  local name=$1 side try stalled least
  shift
  [[ $name == $ONLY ]] || return 0
  for side in kernel ucake; do
    least=
    for try in 1 2 3; do
      once $side "$@"
      stalled=$(awk '$1 == "stalled_ms" { print $2 }' /tmp/answers)
      if [ -z "$least" ] || [ "${stalled:-999999}" -lt "$least" ]; then
        least=${stalled:-999999}
        cp /tmp/answers /tmp/quietest
      fi
      [ "$least" -le $((MEASURE * 5)) ] && break
    done
    sed "s/^/$name $side /" /tmp/quietest >>"$lines"
  done
}

for _ in $(seq "$ROUNDS"); do
  scenario one-flow 0 'bandwidth 20mbit besteffort' tcp:1:201:1:0
  scenario four-flows 0 'bandwidth 20mbit besteffort' tcp:1:201:4:0
  scenario four-flows-ecn 1 'bandwidth 20mbit besteffort' tcp:1:201:4:0
  scenario sixteen-flows 0 'bandwidth 20mbit besteffort' tcp:1:201:16:0
  scenario overhead-atm 0 'bandwidth 10mbit besteffort conservative' tcp:1:201:4:0
  scenario hosts-dual-dsthost 0 'bandwidth 20mbit besteffort dual-dsthost' tcp:1:201:1:0 tcp:2:201:8:0
  scenario hosts-dual-srchost 0 'bandwidth 20mbit besteffort dual-srchost' tcp:1:201:1:0 tcp:1:202:8:0
  scenario hosts-triple-isolate 0 'bandwidth 20mbit besteffort triple-isolate' tcp:1:201:1:0 tcp:2:202:8:0
  scenario hosts-flows 0 'bandwidth 20mbit besteffort flows' tcp:1:201:1:0 tcp:2:202:8:0
  scenario w 0 'bandwidth 20mbit besteffort triple-isolate' tcp:1:201:1:0 tcp:1:202:1:0 tcp:2:202:1:0 tcp:2:203:1:0
  # Bulk, Best Effort, Video, Voice; several flows each, so that no tin runs dry.
  scenario diffserv4 0 'bandwidth 20mbit diffserv4' tcp:1:201:4:32 tcp:2:202:4:0 tcp:3:203:4:64 tcp:4:204:4:184
  scenario diffserv3 0 'bandwidth 20mbit diffserv3' tcp:1:201:4:32 tcp:2:202:4:0 tcp:4:204:4:184
  scenario flood 0 'bandwidth 10mbit besteffort' udp:1:201:20000000:0
  scenario flood-ingress 0 'bandwidth 10mbit besteffort ingress' udp:1:201:20000000:0
  scenario flood-ingress-ecn 0 'bandwidth 10mbit besteffort ingress' udp:1:201:20000000:2
  scenario flood-and-tcp 0 'bandwidth 10mbit besteffort ingress' udp:1:201:20000000:0 tcp:2:202:4:0
done
