#!/bin/bash
# The first process of the reference kernel; tests/oracle/kernel starts it, nobody else.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp OUT=/tmp/out
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p "$OUT" /run/netns
mount -t hostfs -o "$ORACLE_OUT" none "$OUT"
exec >"$OUT/.log" 2>&1
for module in sch_cake sch_netem tun veth dummy bridge 8021q; do
  modprobe -d "$ORACLE_CACHE/mod" "$module" || echo "no module $module"
done
ip link set lo up
cd /tmp
bash "$OUT/.script"
echo $? >"$OUT/.status"
sync
echo o >/proc/sysrq-trigger
sleep 1
poweroff -f
