#!/bin/sh
# Prints the .text bytes of the CPU-only loader, built for size as a shared library without its
# symbols, and fails when they pass the limit.  CC and LIMIT may be set.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
limit=${LIMIT:-34304}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
${CC:-cc} -std=c11 -Os -fPIC -shared -fvisibility=hidden -ffunction-sections -fdata-sections \
  -fno-asynchronous-unwind-tables -Wl,--gc-sections -I"$here/include" -I"$here/src" \
  "$here"/src/*.c "$here"/drivers/cpu/*.c -o "$out/loader.so"
size -A "$out/loader.so" | awk -v limit="$limit" '
  $1 == ".text" { text = $2 }
  $1 == ".rodata" { rodata = $2 }
  END {
    printf "loader .text: %d of %d bytes (.rodata: %d)\n", text, limit, rodata
    exit text > limit
  }'
