#!/usr/bin/env bash
# Builds the container's content into a folder: the static program and the machine's CA certificates.
#
#   build.sh FOLDER      then: buildah build -t IMAGE -f deploy/cloud-run/Containerfile FOLDER  (or docker, or podman)
set -euo pipefail
(($# == 1)) && [[ $1 != -* ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 1; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
# Named explicitly, so that build scripts and macros, which are for this machine, stay dynamic.
target=$(rustc -vV | sed -n 's/^host: //p')
[[ $target == *-linux-gnu ]] || { echo "build.sh: $target is not a Linux with glibc" >&2; exit 1; }
RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --quiet --target "$target"
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
[[ -s $certificates ]] || { echo "build.sh: no CA certificates at $certificates; install ca-certificates" >&2; exit 1; }
install -m 0755 "${CARGO_TARGET_DIR:-target}/$target/release/tpu-watchdog" "$folder/tpu-watchdog"
install -m 0644 "$certificates" "$folder/ca-certificates.crt"
echo "$folder: $(du -sh "$folder" | cut -f1)"
