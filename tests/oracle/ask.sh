#!/usr/bin/env bash
# ask.sh LISTS TC…: gives each list of words to TC, a tc or what claims to be one, for its device d0, and prints what it
# answered. Every third list changes the instance that is there; the others make one, with a new handle.
set -u
lists=$1
shift
"$@" qdisc replace dev d0 root handle ffff: cake
number=0
while IFS= read -r words; do
  number=$((number + 1)) handle=$(printf %x "$number") verb=replace
  if [ $((number % 3)) = 0 ]; then verb=change handle=; fi
  # shellcheck disable=SC2086
  stderr=$("$@" qdisc "$verb" dev d0 root ${handle:+handle "$handle:"} cake $words 2>&1) && status=0 || status=$?
  printf 'words %s\nverb %s\nexit %s\nstderr %s\n' "$words" "$verb" "$status" "${stderr%%$'\n'*}"
  echo text
  "$@" -s qdisc show dev d0
  "$@" -d qdisc show dev d0 | head -1
  echo end
  echo "json $("$@" -j -s qdisc show dev d0)"
done <"$lists"
