#!/bin/sh
# Makes this machine a node of a Schedulearn portal. The portal fills in the names between @ and serves it as
# /agent/install.sh; the line of Nodes, Add a node checks its SHA-256 before it runs. It may be run again: it then
# brings a newer agent, and keeps the node's identity, its settings and its jobs. docs/admin/nodes.md describes it.
set -eu
umask 022

say() { printf '%s\n' "$*"; }
stop() { printf 'Not installed: %s\n' "$*" >&2; exit 1; }

URL='@URL@'
ARCHIVE_SHA256='@SHA256@'
PIN=''
CA=''
FOREGROUND=no
while [ $# -gt 0 ]; do
    case "$1" in
        --url) URL="$2"; shift 2 ;;
        --pin) PIN="$2"; shift 2 ;;
        --ca-file) CA="$2"; shift 2 ;;
        --foreground) FOREGROUND=yes; shift ;;
        *) stop "$1 is no option of this script. It takes --url, --pin, --ca-file and --foreground." ;;
    esac
done

# 1. What it needs to begin.
[ "$(uname -s)" = Linux ] || stop 'a node is a machine with Linux.'
PYTHON=''
for name in python3 python3.11 python3.12 python3.13 python3.14; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        PYTHON="$name"
        break
    fi
done
[ -n "$PYTHON" ] || stop 'Python 3.11 or newer is needed (Debian 12: apt-get install python3 python3-venv).'
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    stop 'Python lacks its module venv (Debian: apt-get install python3-venv).'

# 2. Where things lie: where this command says, else where they were before.
UNIT=/etc/systemd/system/schedulearn-agent.service
if [ "$(id -u)" = 0 ]; then
    PREFIX="$(sed -n 's|^ExecStart=\(/.*\)/run$|\1|p' "$UNIT" 2>/dev/null || :)"
    PREFIX="${SCHEDULEARN_AGENT_PREFIX:-${PREFIX:-/opt/schedulearn-agent}}"
else
    PREFIX="${SCHEDULEARN_AGENT_PREFIX:-$HOME/schedulearn-agent}"
fi
SETTINGS="$PREFIX/agent.env"
if [ -f "$SETTINGS" ]; then
    env -i sh -c '. "$1"' - "$SETTINGS" || stop "$SETTINGS cannot be read by a shell. Correct the line that is named above."
fi
stored() { # the value of a name in agent.env, nothing without one
    [ ! -f "$SETTINGS" ] || env -i sh -c '. "$1" && eval "printf %s \"\${$2:-}\""' - "$SETTINGS" "$1" 2>/dev/null || :
}
STATE="${AGENT_HOME:-$(stored AGENT_HOME)}"
CACHE="${SCHEDULEARN_CACHE:-$(stored SCHEDULEARN_CACHE)}"
if [ "$(id -u)" = 0 ]; then
    STATE="${STATE:-/var/lib/schedulearn-agent}"
    CACHE="${CACHE:-/var/cache/schedulearn-agent}"
else
    STATE="${STATE:-$PREFIX/state}"
    CACHE="${CACHE:-$HOME/.cache/schedulearn}"
fi
SHARED="${SCHEDULEARN_SHARED:-$(stored SCHEDULEARN_SHARED)}"
case "$SHARED" in
    '' | /*) ;;
    *) stop "SCHEDULEARN_SHARED must be a whole path, from / on, not $SHARED." ;;
esac
case "$SHARED" in *[\"\\]*) stop 'SCHEDULEARN_SHARED holds characters that do not work here.' ;; esac
for value in "$URL" "$PREFIX" "$STATE" "$CACHE" "$CA" "$PIN"; do
    case "$value" in *[!A-Za-z0-9._:/@%+~,=-]*) stop "$value holds characters that do not work here." ;; esac
done
for value in "$PREFIX" "$STATE" "$CACHE"; do
    case "$value" in
        *%*) stop "$value holds characters that do not work here." ;; # systemd reads them as names of its own
        /*) ;;
        *) stop "SCHEDULEARN_AGENT_PREFIX, AGENT_HOME and SCHEDULEARN_CACHE must be whole paths, from / on, not $value." ;;
    esac
done
mkdir -p "$PREFIX" "$CACHE"
mkdir -p "$STATE" && chmod 700 "$STATE"
SERVICE=no
if [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then SERVICE=yes; fi
runs_as_service() { [ "$SERVICE" = yes ] && systemctl is-active --quiet schedulearn-agent.service; }
if [ -e "$STATE/agent.lock" ] && ! runs_as_service; then
    "$PYTHON" - "$STATE/agent.lock" <<'PYTHON' || exit 1
import fcntl
import os
import sys

with open(sys.argv[1]) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        number, pid = str(os.fstat(file.fileno()).st_ino), "PID"
        with open("/proc/locks") as locks:
            for line in locks:
                words = line.split()
                if words[1] == "FLOCK" and words[5].rpartition(":")[2] == number:
                    pid = words[4]
        sys.exit(
            f"Not installed: an agent that was started by hand works with {os.path.dirname(sys.argv[1])}. Stop it with "
            f"Ctrl+C where it runs, or with: kill {pid}\nThen paste the line again. Running jobs continue if the agent "
            "is back within 34 s."
        )
PYTHON
fi

# Mirrors and proxies of the last time serve this time, too, unless others are set.
for name in SCHEDULEARN_USE_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL HTTPS_PROXY HTTP_PROXY NO_PROXY; do
    eval "value=\${$name:-}"
    [ -n "$value" ] || value="$(stored "$name")"
    [ -z "$value" ] || export "$name=$value"
done

# 3. The agent itself, from the portal, checked against the SHA-256 that came with this script.
say "Fetching the agent from $URL"
CODE="$PREFIX/code-$(printf %.12s "$ARCHIVE_SHA256")"
"$PYTHON" - "$URL" "$ARCHIVE_SHA256" "$CODE" "$PIN" "$CA" "$PREFIX/portal.pem" <<'PYTHON' || exit 1
import hashlib
import io
import os
import shutil
import ssl
import sys
import tarfile
import urllib.parse
import urllib.request

url, digest, code, pin, ca_file, pem_file = sys.argv[1:]
context = None
if pin:
    parts = urllib.parse.urlsplit(url)
    try:
        pem = ssl.get_server_certificate((parts.hostname, parts.port or 443), timeout=20)
    except OSError as error:
        sys.exit(f"Not installed: {url} does not answer ({error}).")
    if hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() != pin.lower():
        sys.exit(f"Not installed: {url} shows another certificate than the one this line was made for.")
    with open(pem_file, "w") as file:
        file.write(pem)
    context = ssl.create_default_context(cadata=pem)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
elif ca_file:
    context = ssl.create_default_context(cafile=ca_file)
proxies = None if os.environ.get("SCHEDULEARN_USE_PROXY", "").lower() in ("1", "true", "yes") else {}
handlers = [urllib.request.ProxyHandler(proxies)]
if url.startswith("https:"):
    handlers.append(urllib.request.HTTPSHandler(context=context or ssl.create_default_context()))
address = f"{url}/agent/schedulearn-agent-{digest}.tar.gz"
try:
    with urllib.request.build_opener(*handlers).open(address, timeout=60) as answer:
        content = answer.read(64 << 20)
except OSError as error:
    sys.exit(f"Not installed: {address} cannot be fetched ({error}).")
if hashlib.sha256(content).hexdigest() != digest:
    sys.exit("Not installed: what came is not the agent that the portal announced (its SHA-256 differs).")
part = f"{code}.part"
shutil.rmtree(part, ignore_errors=True)
with tarfile.open(fileobj=io.BytesIO(content)) as archive:
    archive.extractall(part, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
if os.path.isdir(code):  # the agent and jobs may run from it, and its name is that of its content
    shutil.rmtree(part)
else:
    os.replace(part, code)
PYTHON

# 4. Its few packages, in an environment of its own.
say 'Installing its packages'
[ -x "$PREFIX/venv/bin/python" ] || "$PYTHON" -m venv "$PREFIX/venv" || stop 'its environment could not be made.'
"$PREFIX/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    -r "$CODE/requirements.lock" ||
    stop "pip could not install the agent's packages. See above; a mirror can be named by PIP_INDEX_URL."
ln -sfn "$CODE" "$PREFIX/current"

# 5. Its settings: those that are set now replace stored ones; all other lines stay.
[ -z "$PIN" ] || CA="$PREFIX/portal.pem"
touch "$SETTINGS" && chmod 600 "$SETTINGS"
REPLACED='SCHEDULEARN_URL|AGENT_HOME|SCHEDULEARN_CACHE|SCHEDULEARN_CA|SCHEDULEARN_PIN'
GIVEN=''
for name in RUNTIME NODE_NAME SCHEDULEARN_DATASETS SCHEDULEARN_SHARED SCHEDULEARN_CONFINE SCHEDULEARN_ALLOW_HTTP \
    SCHEDULEARN_USE_PROXY SCHEDULEARN_CPU_SLOTS SCHEDULEARN_BASE_IMAGE SCHEDULEARN_BUILD_IMAGE SCHEDULEARN_GIT_IMAGE SCHEDULEARN_TORCH_INDEX \
    SCHEDULEARN_PROJECT_CACHE_GIB SCHEDULEARN_DATASET_CACHE_GIB SCHEDULEARN_LAYER_IMAGES \
    AGENT_RING_ADDRESS DOCKER_HOST PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_INDEX_URL UV_DEFAULT_INDEX \
    HTTPS_PROXY HTTP_PROXY NO_PROXY https_proxy http_proxy no_proxy; do
    eval "value=\${$name:-}"
    case "$value" in
        '') continue ;;
        *'
'*) stop "$name has more than one line." ;;
        *[!A-Za-z0-9._:/@%+~,=-]*) value="'$(printf '%s' "$value" | sed "s/'/'\\\\''/g")'" ;;
    esac
    REPLACED="$REPLACED|$name"
    GIVEN="$GIVEN$name=$value
"
done
KEPT="$(grep -vE "^(export +)?($REPLACED)=" "$SETTINGS" || :)"
{
    [ -z "$KEPT" ] || printf '%s\n' "$KEPT"
    printf 'SCHEDULEARN_URL=%s\nAGENT_HOME=%s\nSCHEDULEARN_CACHE=%s\n' "$URL" "$STATE" "$CACHE"
    [ -z "$CA" ] || printf 'SCHEDULEARN_CA=%s\n' "$CA"
    [ -z "$PIN" ] || printf 'SCHEDULEARN_PIN=%s\n' "$PIN"
    printf '%s' "$GIVEN"
} >"$SETTINGS.new"
chmod 600 "$SETTINGS.new"
mv "$SETTINGS.new" "$SETTINGS"
cat >"$PREFIX/run" <<RUN
#!/bin/sh
set -a
. "$SETTINGS"
set +a
cd "$PREFIX/current"
exec "$PREFIX/venv/bin/python" -m "\${SCHEDULEARN_PROGRAM:-runners.agent}" "\$@"
RUN
chmod 755 "$PREFIX/run"

if [ "$SERVICE" = yes ]; then
    SHARED_PATH=''
    [ -z "$SHARED" ] || SHARED_PATH="\"-$(printf %s "$SHARED" | sed 's/%/%%/g')\""
    cat >"$UNIT.new" <<UNIT
[Unit]
Description=Schedulearn: the agent of this node
After=network-online.target docker.service
Wants=network-online.target

[Service]
ExecStart=$PREFIX/run
Restart=always
RestartSec=2
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec=30
OOMScoreAdjust=-500
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
ReadWritePaths=$STATE $CACHE $SHARED_PATH /run
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND CAP_BPF CAP_LEASE
CapabilityBoundingSet=~CAP_LINUX_IMMUTABLE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYS_BOOT CAP_SYS_PACCT CAP_SYS_RAWIO
CapabilityBoundingSet=~CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_SYSLOG CAP_WAKE_ALARM
LockPersonality=true
# Jobs that run as plain processes get control groups below that of this service.
Delegate=cpu memory pids
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelTunables=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
UNIT
fi

# 6. Join. It says what it found, and whether the portal took this machine. An agent that runs as the service is stopped
# only now that all is written, since jobs end 34 s later without one. Whatever happens here, such as a lost connection of
# the terminal, starts it again.
STOPPED=no
if runs_as_service; then
    trap 'systemctl start schedulearn-agent.service' EXIT
    trap 'exit 1' HUP INT TERM
    say 'Stopping the agent for a moment; its jobs run on.' || :
    systemctl stop schedulearn-agent.service
    STOPPED=yes
fi
BOUND=''
[ "$STOPPED" = no ] || BOUND='timeout -k 3 20'
SCHEDULEARN_PROGRAM=runners.agent.enrol $BOUND "$PREFIX/run" || {
    [ $? != 124 ] || say 'Not finished within 20 s, so the agent starts again. Paste the line once more in a quiet moment.' >&2
    exit 1
}
unset SCHEDULEARN_JOIN_TOKEN

# 7. Run, now and after each start of the machine.
if [ "$FOREGROUND" = yes ]; then
    [ "$STOPPED" = no ] || say 'The service schedulearn-agent stays stopped until this machine starts again.'
    say 'Running in the foreground; Ctrl+C stops the agent.'
    trap - EXIT HUP INT TERM
    exec "$PREFIX/run"
fi
if [ "$SERVICE" = yes ]; then
    mv "$UNIT.new" "$UNIT"
    systemctl daemon-reload
    systemctl enable --quiet schedulearn-agent.service
    systemctl restart schedulearn-agent.service
    trap - EXIT HUP INT TERM
    say 'The agent runs as the service schedulearn-agent (journalctl -u schedulearn-agent).'
else
    say "systemd does not run here, or this is not root: start the agent yourself with $PREFIX/run"
    say 'or paste the line with --foreground at its end.'
fi
