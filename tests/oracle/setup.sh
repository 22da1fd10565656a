#!/usr/bin/env bash
# Fetches the reference kernel: Debian's User-Mode Linux (unstable), a Linux that runs as an ordinary
# program and has sch_cake as a module, and the tc of the same days. Once; 220 MB when unpacked. Needs root, for apt. Prints
# the folder they are in, as "linux" and "tc".
#
# Where from: the Debian mirror that this machine's apt uses. UCAKE_ORACLE names another folder.
set -euo pipefail

cache=${UCAKE_ORACLE:-/var/cache/ucake-oracle}
if [ -x "$cache/linux" ] && [ -x "$cache/tc" ]; then echo "$cache"; exit 0; fi

install=()
command -v patchelf >/dev/null || install+=(patchelf)
command -v modprobe >/dev/null || install+=(kmod)
if [ ${#install[@]} -gt 0 ]; then
  apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${install[@]}" >/dev/null
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(dirname "$0")/../fetch-debian" sid main "$work" user-mode-linux libc6 \
  iproute2 libbpf1 libelf1t64 libmnl0 libcap2 libzstd1 zlib1g

mkdir -p "$cache/root" "$cache/mod/lib"
for package in "$work"/*.deb; do dpkg -x "$package" "$cache/root"; done
# It wants its own libc, which is newer than the machine's.
libraries=$cache/root/usr/lib/x86_64-linux-gnu
cp "$cache/root/usr/bin/linux.uml" "$cache/linux.new"
patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --set-rpath "$libraries" "$cache/linux.new"
ln -sfn "$cache/root/usr/lib/uml/modules" "$cache/mod/lib/modules"
mv "$cache/linux.new" "$cache/linux"
tc=$(find "$cache/root" -name tc -type f -path '*bin/*')
printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$libraries/ld-linux-x86-64.so.2" "$libraries" "$tc" >"$cache/tc"
chmod +x "$cache/tc"
echo "$cache"
