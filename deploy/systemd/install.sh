#!/usr/bin/env bash
# Installs, upgrades or removes the service. Run as root.
#
#   install.sh BINARY [--root DIR]     installs, or upgrades what is there; a config that is there is never touched
#   install.sh --remove [--root DIR]   stops and removes it; config, drop-ins and state stay
#   install.sh --purge [--root DIR]    also removes config and state: owed recreates are forgotten
#
# With --root everything goes below DIR and no service is started or stopped (for images and packages).
set -euo pipefail

fail() { echo "install.sh: $*" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
root="" binary="" action=install
while (($#)); do
  case $1 in
    --root) (($# > 1)) || fail "--root needs a folder"; root=${2%/}; shift ;;
    --remove | --purge) action=${1#--} ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail "unknown option $1; see --help" ;;
    *) [[ -z $binary ]] || fail "one binary is enough: $1"; binary=$1 ;;
  esac
  shift
done

program=$root/usr/local/bin/tpu-watchdog
unit=$root/etc/systemd/system/tpu-watchdog.service
config=$root/etc/tpu-watchdog
documents=$root/usr/local/share/doc/tpu-watchdog
# Whether this is a machine whose systemd is to be told.
live() { [[ -z $root && -d /run/systemd/system ]]; }
[[ -n $root || $(id -u) == 0 ]] || fail "must run as root (or with --root)"

if [[ $action != install ]]; then
  if live; then systemctl disable --now tpu-watchdog.service 2>/dev/null || true; fi
  rm -f "$program" "$unit"
  rm -rf "$documents"
  if [[ $action == purge ]]; then
    rm -rf "$unit.d" "$config" "$root/var/lib/tpu-watchdog" "$root/var/lib/private/tpu-watchdog"
    echo "removed, with config and state"
  else
    echo "removed; $config and $root/var/lib/tpu-watchdog stay (--purge removes them)"
  fi
  if live; then systemctl daemon-reload; fi
  exit 0
fi

[[ -n $binary ]] || fail "name the binary, as in: install.sh target/release/tpu-watchdog"
[[ -f $binary && -x $binary ]] || fail "$binary is not a program; build it with: cargo build --release"
# An upgrade that does not understand the present config must not replace a service that does.
understands() {
  (
    # As the unit starts it.
    set -a
    if [[ -r $config/environment ]]; then source "$config/environment"; fi
    "$1" check --config "$config/watchdog.toml" >/dev/null
  )
}
if [[ -f $config/watchdog.toml ]] && ! understands "$binary"; then
  [[ ! -f $program ]] || fail "the new program refuses the present config (see above); nothing was changed"
  echo "install.sh: the config is not usable yet (see above)" >&2
fi
install -d -m 0755 "${program%/*}" "${unit%/*}" "$config" "$documents"
# Renamed into place: a running program's file is never written to.
install -m 0755 "$binary" "$program.new"
mv -f "$program.new" "$program"
install -m 0644 "$here/tpu-watchdog.service" "$unit"
install -m 0644 "$here/README.md" "$here/credentials.conf" "$here/../../config/full.toml" "$documents"
if [[ ! -e $config/watchdog.toml ]]; then
  # The service's default state folder, not the one beside the config.
  grep -v '^state ' "$here/../../config/watchdog.toml" >"$config/watchdog.toml.new"
  chmod 0644 "$config/watchdog.toml.new"
  # The script that the example names.
  [[ -e $config/startup.sh ]] || install -m 0644 "$here/../../config/startup.sh" "$config/startup.sh"
  mv "$config/watchdog.toml.new" "$config/watchdog.toml"
  echo "wrote an example config: $config/watchdog.toml"
fi
if ! live; then
  echo "installed below ${root:-/}; no service was started"
  exit 0
fi
systemctl daemon-reload
if systemctl is-active --quiet tpu-watchdog.service; then
  systemctl restart tpu-watchdog.service
  echo "upgraded and restarted; see: systemctl status tpu-watchdog"
else
  echo "installed. Next: edit $config/watchdog.toml, then"
  echo "  tpu-watchdog plan --config $config/watchdog.toml"
  echo "  systemctl enable --now tpu-watchdog"
fi
