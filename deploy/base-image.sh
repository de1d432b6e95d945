#!/bin/sh
# Makes the base image of the job environments without an image registry: a minimal Debian 12 with Python 3.11.
# Needed only where the public image (python:3.11-slim-bookworm) cannot be pulled. Needs root, debootstrap and an
# answering Docker Engine. Does nothing when the image is already there; FORCE=1 makes it anew.
#
#   sudo deploy/base-image.sh
#   IMAGE=my-base:1 MIRROR=http://mirror.example/debian sudo -E deploy/base-image.sh
#
# An image with a compiler, for hosts that have none that suits (SCHEDULEARN_BUILD_IMAGE):
#   IMAGE=schedulearn-build:bookworm EXTRA=g++,make,python3-dev sudo -E deploy/base-image.sh
set -eu

IMAGE=${IMAGE:-schedulearn-base:bookworm}
MIRROR=${MIRROR:-}  # empty: debootstrap's own default
# libgomp1: scikit-learn and torch bring their own copies, compiled user extensions do not.
PACKAGES=python3,python3-pip,python3-venv,ca-certificates,libgomp1${EXTRA:+,$EXTRA}

say() { printf '%s\n' "$*" >&2; }

command -v docker >/dev/null || { say "docker is missing. Install Docker Engine (Debian: apt-get install docker.io)."; exit 1; }
docker version >/dev/null 2>&1 || { say "No Docker Engine answers. Start it (systemctl start docker) and try again."; exit 1; }

if [ -z "${FORCE:-}" ] && docker image inspect "$IMAGE" >/dev/null 2>&1; then
    say "$IMAGE is already there."
    exit 0
fi

[ "$(id -u)" = 0 ] || { say "debootstrap needs root. Run: sudo $0"; exit 1; }
command -v debootstrap >/dev/null || { say "debootstrap is missing. Install it: apt-get install debootstrap"; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/schedulearn-base.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

say "Fetching Debian 12 (about a minute, 300 MB) ..."
if ! debootstrap --variant=minbase --include="$PACKAGES" bookworm "$work/root" ${MIRROR:+"$MIRROR"} >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    say "debootstrap failed. Is the mirror reachable? Another one: MIRROR=http://... $0"
    exit 1
fi

# The Dockerfiles call the interpreter "python", as the public image does; Debian names it python3.
ln -sf python3 "$work/root/usr/bin/python"
rm -rf "$work/root/var/cache/apt/archives" "$work/root/var/lib/apt/lists" "$work/root/usr/share/doc" \
    "$work/root/usr/share/man" "$work/root/usr/share/locale"
mkdir -p "$work/root/var/cache/apt/archives/partial" "$work/root/var/lib/apt/lists/partial"

tar -C "$work/root" -c . | docker import --change 'CMD ["python3"]' --message "Debian 12 with Python 3.11" - "$IMAGE" >/dev/null
say "$IMAGE is ready."
