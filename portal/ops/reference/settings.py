"""The environment variables of each program, with defaults, values and meanings."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from portal.ops.reference import cell

ROOT = Path(__file__).resolve().parents[3]
VARIABLE = re.compile("[A-Z][A-Z0-9_]{3,}")
AGENT_FOLDERS = ("runners/agent", "runners/environments", "runners/host", "runners/runtimes", "runners/sources")
NOT_OF_THE_AGENT = {"LOG_LEVEL"}
"""Variables that only the installer of the portal's own packages reads (``runners/environments/installing.py``)."""

INTRODUCTION = """# Settings

Settings are environment variables, which each program reads when it starts. systemd and compose take them from the files below.
**After a change, restart the programs that read it.** A wrong value is refused at the start, in one line with the name of the
variable and a valid example.

| size | where to set them |
|---|---|
| one machine | before the command: `make run PORT=8001`, at each start ([one machine](../install/one-machine.md#choose-other-places)) |
| lab server, systemd | `/etc/schedulearn/lab.env`, then `systemctl restart 'schedulearn-*'` |
| lab server, compose | `deploy/lab.env`, then `docker compose --env-file deploy/lab.env -f deploy/compose.yaml up -d` |
| node | `agent.env`, then `systemctl restart schedulearn-agent` ([settings of the agent](../admin/agent-settings.md)) |

How to read the tables:

- *Default* has the values that are accepted in brackets; – is none.
- *Used by* is the process that acts on it. All processes of the portal read all settings of the portal, and must have the same.
- *yes, no*: also `true`, `false`, `1`, `0`. An empty variable counts as one that is not set.
- **Secrets in files**: instead of a variable marked *or a file*, set the name with `_FILE` at its end to the path of a file that has the
  value: `SECRET_KEY_FILE=/run/secrets/key`.

What an admin sets on pages is not here: [limits](../admin/limits.md), [policies](../admin/policies.md), lab settings.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that ``portal/settings.py`` reads."""

    name: str
    default: str
    values: str
    meaning: str


GROUPS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "Address and security",
        {
            "SITE_URL": "all",
            "ALLOWED_HOSTS": "web, nodes",
            "CSRF_TRUSTED_ORIGINS": "web",
            "BEHIND_PROXY": "web, nodes",
            "SSL_REDIRECT_BY_PROXY": "web, nodes",
            "SECRET_KEY": "all",
            "PORT": "`make run`",
            "SCHEDULEARN_UNSAFE_PROCESSES": "all",
            "DEBUG": "web",
            "SCHEDULEARN_DEMO": "all",
        },
    ),
    (
        "Data",
        {
            "DATABASE_URL": "all",
            "REDIS_URL": "all",
            "SCHEDULEARN_HOME": "all; `make run` passes it to its agent",
            "REQUESTS_AT_ONCE": "web",
            "TIME_ZONE": "all",
            "LOG_LEVEL": "all",
        },
    ),
    (
        "Mail",
        dict.fromkeys(
            (
                "EMAIL_BACKEND",
                "EMAIL_HOST",
                "EMAIL_PORT",
                "EMAIL_USE_TLS",
                "EMAIL_HOST_USER",
                "EMAIL_HOST_PASSWORD",
                "DEFAULT_FROM_EMAIL",
            ),
            "worker",
        ),
    ),
    (
        "Sizes and numbers",
        {
            "MAX_WAITING_JOBS": "web",
            "MAX_UPLOAD_MIB": "web",
            "GIT_MAX_MIB": "nodes",
            "GIT_MAX_MINUTES": "nodes",
            "MAX_DATASET_GIB": "web, worker",
            "DATASETS_QUOTA_GIB": "web, worker",
            "MAX_OUTPUTS_MIB": "nodes",
            "MAX_CHECKPOINTS_MIB": "nodes",
            "CHECKPOINTS_LEAVE_FREE_MIB": "nodes",
            "MAX_LOG_MIB": "nodes",
            "SCHEDULEARN_KEEP_LAYERS_DAYS": "worker",
        },
    ),
    (
        "Scheduling",
        {
            "PATIENCE_HOURS": "scheduler",
            "DAMPING_SECONDS": "scheduler",
            "RECORDED_TURNS": "scheduler",
            "RECORDED_DAYS": "scheduler",
        },
    ),
    (
        "Jobs and GPUs",
        {
            "IDLE_GPU_PERCENT": "worker",
            "IDLE_GPU_MINUTES": "worker",
            "IDLE_GPU_RULE": "worker",
            "SILENT_RANK_MINUTES": "worker",
            "RESTARTS_WITHOUT_PROGRESS": "web, scheduler",
            "GPU_QUARANTINE_FAILURES": "nodes, scheduler",
            "RING_NETWORK": "scheduler",
            "RING_VNI_BASE": "scheduler",
        },
    ),
)
"""The sections of the page: by setting, the process that uses it."""

RUN = {
    "HOST": (
        "`127.0.0.1`",
        "the address at which `make run` listens; `0.0.0.0` opens the portal to the network, without TLS",
    ),
    "VENV": ("`.venv`", "the folder of the portal's own packages"),
    "PYTHON": ("`python3`", "the Python that makes `.venv`, 3.11 or newer"),
    "INSTALL": ("`yes`", "for developers: with `no`, tests install nothing and start no Docker Engine"),
}
COMPOSE = {
    "POSTGRES_PASSWORD": ("–", "required: the password in `DATABASE_URL`"),
    "REDIS_PASSWORD": ("–", "required: the password in `REDIS_URL`"),
    "POSTGRES_IMAGE": ("`postgres:16-alpine`", "the image of PostgreSQL, perhaps with its digest"),
    "REDIS_IMAGE": ("`redis:7-alpine`", "the image of Redis, perhaps with its digest"),
    "PORTAL_BASE_IMAGE": ("`python:3.11-slim-bookworm`", "the image from which that of the portal is built"),
    "PORTAL_IMAGE": ("`schedulearn-portal`", "the name of the portal's image"),
}
AGENT = {
    "SCHEDULEARN_URL": (
        "–",
        "the portal's address, needed to join; without it, a node that has joined uses the address that it joined",
    ),
    "SCHEDULEARN_JOIN_TOKEN": ("–", "from the join command; used once"),
    "AGENT_HOME": (
        "`agent` in `SCHEDULEARN_HOME`",
        "where the agent keeps its files; the join command sets it to `/var/lib/schedulearn-agent` as root",
    ),
    "SCHEDULEARN_HOME": ("`var`", "used for the default of `AGENT_HOME`; jobs that run as processes cannot see it"),
    "RUNTIME": ("`auto`", "`auto`, `docker`, `process`; `fake` for tests. Fixed when the node joins"),
    "NODE_NAME": ("the machine's name", "the node's name when it joins"),
    "SCHEDULEARN_CA": ("–", "a file with the only certificate authority to trust"),
    "SCHEDULEARN_PIN": (
        "–",
        "the SHA-256 of the certificate in `SCHEDULEARN_CA`: only this one is trusted, whatever its name",
    ),
    "SCHEDULEARN_ALLOW_HTTP": ("`no`", "`yes` lets the token travel unencrypted"),
    "SCHEDULEARN_USE_PROXY": ("`no`", "`yes` reaches the portal through the proxy of `HTTPS_PROXY`"),
    "SCHEDULEARN_DATASETS": ("–", "a folder that every job sees, read-only, as `/data`"),
    "SCHEDULEARN_SHARED": ("–", "a folder for checkpoints that other nodes share"),
    "AGENT_RING_ADDRESS": (
        "that of the interface to the portal",
        "the IPv4 address under which other nodes reach this one",
    ),
    "SCHEDULEARN_CPU_SLOTS": ("–", "offers this many CPU slots instead of GPUs, 1 to 1024"),
    "SCHEDULEARN_PROJECT_CACHE_GIB": (
        "50",
        "the limit of each project's cache on the node, in GiB; 0 keeps none",
    ),
    "SCHEDULEARN_DATASET_CACHE_GIB": (
        "200",
        "the limit of all datasets that the node keeps, in GiB",
    ),
    "SCHEDULEARN_LAYER_IMAGES": (
        "`no`",
        "`yes` makes an image of the engine from the packages of each environment, instead of mounting their folder",
    ),
    "SCHEDULEARN_CONFINE": ("`yes`", "`no` runs jobs of the process runtime without bubblewrap"),
    "SCHEDULEARN_CACHE": (
        "`schedulearn` in `XDG_CACHE_HOME`",
        "where packages of environments are kept; the join command sets it to `/var/cache/schedulearn-agent` as root",
    ),
    "XDG_CACHE_HOME": ("`~/.cache`", "used for the default of `SCHEDULEARN_CACHE`"),
    "SCHEDULEARN_BASE_IMAGE": ("–", "the image that environments are made from, perhaps with its digest"),
    "SCHEDULEARN_BUILD_IMAGE": (
        "a public one",
        "the image in which Horovod is compiled where the node has no suitable compiler",
    ),
    "SCHEDULEARN_GIT_IMAGE": (
        "`python:3.11-bookworm`",
        "with Docker and without bubblewrap: the image with Python 3.11, git and ssh in which commits are fetched",
    ),
    "GIT_SSL_CAINFO": (
        "–",
        "certificates for Git hosts, before `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` and those of the system",
    ),
    "SCHEDULEARN_TORCH_INDEX": ("–", "a package index from which PyTorch is taken"),
    "DOCKER_HOST": ("`unix:///var/run/docker.sock`", "the address of the Docker Engine"),
    "REQUESTS_CA_BUNDLE": ("–", "certificates for the download of packages"),
    "SSL_CERT_FILE": ("–", "the same, for builds of environments, where pip and `REQUESTS_CA_BUNDLE` name none"),
    "UV_CACHE_DIR": ("in `SCHEDULEARN_CACHE`", "the cache of downloaded packages"),
}
"""By variable of the agent: its default, and its meaning."""


def page() -> str:
    """Return the page: a table for each group of settings, then those of other programs."""
    known = {setting.name: setting for setting in portal_settings()}
    lines = [INTRODUCTION]
    for title, names in GROUPS:
        lines += [f"## {title}", "", "| variable | default | meaning | used by |", "|---|---|---|---|"]
        for name, used_by in names.items():
            setting = known[name]
            default = f"{setting.default} ({setting.values})" if setting.values else setting.default
            lines.append(f"| `{name}` | {default} | {cell(setting.meaning)} | {used_by} |")
        lines.append("")
    lines += ["## make run", "", *_table(RUN)]
    lines += ["## compose", "", "Read by `deploy/compose.yaml` only.", "", *_table(COMPOSE)]
    lines += [
        "## Agent",
        "",
        "Read by `python -m runners.agent` on each node, and pip's usual variables (`PIP_INDEX_URL`, `HTTPS_PROXY` and others) for the",
        "packages of environments. Flags and examples are under [settings of the agent](../admin/agent-settings.md).",
        "",
        *_table(AGENT),
    ]
    lines += [
        "## Inside a job",
        "",
        "What a job finds in its environment, and what it may set, is under [inside a job](../user/inside-a-job.md).",
    ]
    return "\n".join(lines)


def portal_settings() -> list[Setting]:
    """Return the variables that ``portal/settings.py`` reads, in its order; the meaning is the text below an assignment."""
    body = ast.parse((ROOT / "portal/settings.py").read_text()).body
    found: dict[str, Setting] = {}
    for number, statement in enumerate(body):
        below = body[number + 1] if number + 1 < len(body) else None
        meaning = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            meaning = below.value.value
        if isinstance(statement, ast.Assign):
            for call in _reads(statement.value):
                setting = Setting(*_described(call), _as_code(" ".join(meaning.split())))
                found.setdefault(setting.name, setting)
    return list(found.values())


def agent_variables() -> set[str]:
    """Return the names of variables that the programs of a node read from their environment."""
    found: set[str] = set()
    for folder in AGENT_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and _called(node) in ("env.get", "environ.get", "choose", "read_bool"):
                    values = [each.value for each in node.args if isinstance(each, ast.Constant)]
                    found |= {value for value in values if isinstance(value, str) and VARIABLE.fullmatch(value)}
    return found - NOT_OF_THE_AGENT


def _called(call: ast.Call) -> str:
    return ".".join(ast.unparse(call.func).split(".")[-2:])


def _reads(value: ast.expr) -> Iterator[ast.Call]:
    """Yield the calls in an expression that read a variable."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and (_called(node).startswith("env_") or _called(node) == "environ.get"):
            yield node


def _described(call: ast.Call) -> tuple[str, str, str]:
    """Return name, default and values of a call like ``env_int("PORT", 8000, 1, 65535)``."""
    kind, arguments = _called(call), [_value(each) for each in call.args]
    name, default = str(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    if kind == "env_bool":
        return name, "`yes`" if default else "`no`", "yes, no"
    if kind == "env_int":
        return name, f"`{default}`", f"{arguments[2]:,} to {arguments[3]:,}"
    if kind == "env_choice":
        return name, f"`{default}`", ", ".join(f"`{each}`" for each in arguments[1:])
    values = {"env_secret": "or a file", "env_list": "a list", "env_origins": "a list", "env_zone": "a time zone"}
    shown = DEFAULTS.get(name, default)
    return name, f"`{shown}`" if shown else "–", values.get(kind, "")


DEFAULTS = {
    "SITE_URL": "http://localhost:PORT",
    "ALLOWED_HOSTS": "localhost,127.0.0.1,[::1]",
    "SCHEDULEARN_HOME": "var",
}
"""Defaults that are computed, or that come after the call."""


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    return getattr(settings, node.id, "") if isinstance(node, ast.Name) else ""


def _as_code(text: str) -> str:
    """Return a docstring with its names of variables as code."""
    text = re.sub(r"``([^`]*)``", r"`\1`", text)
    return re.sub(r"(?<![`\w])([A-Z]+_[A-Z_]+)(?![\w`])", r"`\1`", text).replace("<", "&lt;")


def _table(rows: dict[str, tuple[str, str]]) -> list[str]:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    return [*lines, *(f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in rows.items()), ""]
