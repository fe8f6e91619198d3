#!/bin/sh
# Gets the two software Vulkan drivers and the validation layer that the Vulkan tests run on:
# lavapipe and the layer from apt, SwiftShader out of Debian's chromium-common package (two files,
# nothing of it is installed).  Does only what is missing, so it may run any number of times.
#
# usage: .ci/software_vulkan.sh [SWIFTSHADER_DIR]
# The directory defaults to $AOT_SWIFTSHADER_DIR, then to the one that the tests look in by default.
set -eu

directory=${1:-${AOT_SWIFTSHADER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/aotc/swiftshader}}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

is_installed() {
  dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null | grep -q '^installed$'
}

missing=
for package in libvulkan1 mesa-vulkan-drivers vulkan-validationlayers; do
  is_installed "$package" || missing="$missing $package"
done
has_swiftshader() {
  [ -f "$directory/libvk_swiftshader.so" ] && [ -f "$directory/vk_swiftshader_icd.json" ]
}

if [ -n "$missing" ] || ! has_swiftshader; then
  as_root apt-get update -qq
fi
if [ -n "$missing" ]; then
  # shellcheck disable=SC2086  # a list of names, meant to be split
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi

if ! has_swiftshader; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && apt-get -o APT::Sandbox::User=root download -qq chromium-common)
  dpkg-deb -x "$work"/chromium-common_*.deb "$work/tree"
  mkdir -p "$directory"
  # The manifest names the library by a relative path: the two files stay together.
  find "$work/tree" \( -name libvk_swiftshader.so -o -name vk_swiftshader_icd.json \) \
    -exec cp {} "$directory" \;
  has_swiftshader || {
    echo "software_vulkan.sh: chromium-common holds no SwiftShader any more: look for" \
      "libvk_swiftshader.so in another package" >&2
    exit 1
  }
fi
echo "software_vulkan.sh: lavapipe from apt, SwiftShader in $directory"
