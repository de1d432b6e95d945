"""Settings, read from the environment only. Invalid values are refused at start with a sentence.

The same program has two sizes:

* small (default): SQLite; Celery tasks run in the process that requests them;
* lab: ``DATABASE_URL=postgres://...`` and ``REDIS_URL=redis://...``, with separate processes.
"""

import os
from contextlib import suppress
from pathlib import Path

from csp.constants import NONCE, NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from portal.api_settings import SPECTACULAR_SETTINGS, rest_framework  # noqa: F401  # settings
from portal.environ import (
    check_redis,
    database_of,
    env_address,
    env_bool,
    env_choice,
    env_class,
    env_int,
    env_list,
    env_log_level,
    env_network,
    env_origins,
    env_secret,
    env_site,
    env_zone,
)
from portal.key_files import stored_secret_key
from runners import __version__ as VERSION  # noqa: F401, N812  # a setting

BASE_DIR = Path(__file__).resolve().parent.parent


DATA_NAMES = frozenset({"secret_key", "db.sqlite3", "code", "logs", "log", "agent", "outputs"})
"""Files and folders that identify the data folder of an earlier release."""


def make_home(path: Path) -> Path:
    """Return the data folder, closed to other users of the machine: it holds everyone's files and the portal's keys."""
    try:
        path = path.expanduser().resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info, names = path.stat(), {each.name for each in path.iterdir()}
        if info.st_mode & 0o007 and info.st_uid == os.geteuid() and (not names or names & DATA_NAMES):
            path.chmod(info.st_mode & 0o770)
    except OSError as error:
        raise ImproperlyConfigured(
            f"SCHEDULEARN_HOME ({path}) cannot be created: {error.strerror}. Choose a folder that you may write to."
        ) from error
    except RuntimeError as error:  # no such user
        raise ImproperlyConfigured(
            f"SCHEDULEARN_HOME ({path}) begins with the home of a user who does not exist. Write the whole path."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ImproperlyConfigured(
            f"SCHEDULEARN_HOME ({path}) cannot be written to. Choose a folder that you may write to."
        )
    if path.stat().st_mode & 0o007:
        raise ImproperlyConfigured(
            f"SCHEDULEARN_HOME ({path}) can be entered by every user of this machine. Close it (chmod o= {path}), or choose "
            "another folder; the portal creates it."
        )
    return path


def private_file(path: Path) -> Path:
    """Make the file readable by its owner only, also when an earlier release created it."""
    with suppress(FileNotFoundError, PermissionError):
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    return path


DEFAULT_HOME = BASE_DIR / "var"
HOME = make_home(Path(os.environ.get("SCHEDULEARN_HOME") or DEFAULT_HOME))
"""The folder for all data outside the database: code, logs, outputs, keys."""


DATABASE_URL = env_secret("DATABASE_URL")
"""PostgreSQL, as postgres://user:password@host:5432/name, for the lab size; empty for SQLite. Special characters in the
password are written as %XX."""
REDIS_URL = env_secret("REDIS_URL")
"""Redis, as redis://:password@host:6379/0, or rediss:// for TLS; set together with DATABASE_URL."""
LAB = bool(DATABASE_URL)
"""True in the lab size, with PostgreSQL and Redis."""

if bool(REDIS_URL) != LAB:
    raise ImproperlyConfigured(
        "Set DATABASE_URL and REDIS_URL together (the lab size), or neither (one machine with SQLite)."
    )

if LAB:
    check_redis(REDIS_URL)

DEMO = env_bool("SCHEDULEARN_DEMO", False)
"""True for a demo lab, which every page shows: set by ``manage.py demo`` for the folder it creates."""
if LAB and DEMO:
    raise ImproperlyConfigured("A demo lab runs on SQLite: leave DATABASE_URL and REDIS_URL empty.")

UNSAFE_PROCESSES = env_bool("SCHEDULEARN_UNSAFE_PROCESSES", False)
"""Allows several users to share nodes that run jobs as plain processes, where each can read everything."""

DEBUG = env_bool("DEBUG", False)
"""For developers: pages with tracebacks. Never in a lab: they show settings to every reader."""
SECRET_KEY = env_secret("SECRET_KEY")
"""Signs sessions and links; at least 32 characters. Another key signs all users out, and makes links in mails invalid. The
small size creates one in SCHEDULEARN_HOME."""
if not SECRET_KEY:
    if LAB:
        raise ImproperlyConfigured(
            "SECRET_KEY is not set. Create one with: python -c 'import secrets; print(secrets.token_urlsafe(50))'"
        )
    SECRET_KEY = stored_secret_key(HOME / "secret_key")
if len(SECRET_KEY) < 32:
    raise ImproperlyConfigured("SECRET_KEY is too short: use at least 32 characters.")

DEFAULT_PORT = 8000
PORT = env_int("PORT", DEFAULT_PORT, 1, 65535)
"""The port at which make run listens, and the port in the default of SITE_URL."""
SITE_URL = env_site("SITE_URL", f"http://localhost:{PORT}")
"""The URL of the portal for users; used in links in mails and in the join command of nodes."""
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS") or ["localhost", "127.0.0.1", "[::1]"]
"""The names under which users reach the portal, separated by commas; requests with others are refused."""
if LAB and "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured("ALLOWED_HOSTS must name the hosts that users enter, not '*'.")
CSRF_TRUSTED_ORIGINS = env_origins("CSRF_TRUSTED_ORIGINS") or ([SITE_URL] if SITE_URL.startswith("https://") else [])
"""Origins whose forms and live connections are accepted beside that of the request, with their scheme, separated by commas.
What you set replaces the default, which is SITE_URL, so name that one, too."""
BEHIND_PROXY = env_bool("BEHIND_PROXY", False)
"""True behind a reverse proxy that sets X-Forwarded-Proto and X-Forwarded-For."""

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
    "axes",
    "portal.accounts",
    "portal.cluster",
    "portal.projects",
    "portal.environments",
    "portal.secrets",
    "portal.storage",
    "portal.jobs",
    "portal.usage",
    "portal.monitoring",
    "portal.notifications",
    "portal.schedules",
    "portal.scheduler",
    "portal.forecast",
    "portal.whatif",
    "portal.home",
    "portal.live",
    "portal.deletion",
    "portal.ops",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "portal.middleware.StaticFiles",
    "portal.zones.ReaderZone",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.middleware.SignInRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "portal.middleware.ExplainButtons",
    "portal.middleware.NoStore",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "portal.middleware.RefuseNul",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "accounts:sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "accounts:sign-in"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.context.site",
            ],
            "builtins": ["portal.ui", "portal.hues", "portal.list_tags", "portal.previews.tags"],
        },
    },
]

if LAB:
    DATABASES = {"default": database_of(DATABASE_URL)}
    DATABASES["default"]["OPTIONS"] = {
        # Persistent connections notice within seconds when the machine of the server is gone.
        "connect_timeout": 10,
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        **DATABASES["default"].get("OPTIONS", {}),
        "options": "-c lock_timeout=10s -c idle_in_transaction_session_timeout=60s -c statement_timeout=60s",
    }
    CACHES = {
        "default": {
            "BACKEND": "portal.caches.ForgivingRedisCache",
            "LOCATION": REDIS_URL,
            "OPTIONS": {"socket_connect_timeout": 2, "socket_timeout": 2},
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(private_file(HOME / "db.sqlite3")),
            "OPTIONS": {
                "timeout": 30,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;",
            },
        }
    }
    # The default of 300 entries would let the pictures of a busy list push out who is kept from guessing passwords.
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "OPTIONS": {"MAX_ENTRIES": 20_000},
        }
    }

REQUESTS_AT_ONCE = env_int("REQUESTS_AT_ONCE", 32, 4, 1000)
"""How many requests the web process handles at the same time, each with its own database connection; others wait. Agents
use twelve more connections, live logs one."""

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en"
TIME_ZONE = env_zone("TIME_ZONE", "UTC")
"""The zone of the lab, like Europe/Berlin: the days of usage, times in mails, and times of the API are in it. Pages show times
in the zone of the reader's browser."""
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = None  # nothing to collect: WhiteNoise serves the folders as they are
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
DOCUMENTATION = BASE_DIR / "docs" / "_build" / "html"
"""What ``make docs`` builds, shown at /help/."""

EMAIL_BACKEND = env_class("EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")
"""How mails are sent: django.core.mail.backends.smtp.EmailBackend sends them; the default writes them to the log."""
EMAIL_HOST = os.environ.get("EMAIL_HOST", "localhost")
"""The mail server."""
EMAIL_PORT = env_int("EMAIL_PORT", 25, 1, 65535)
"""The port of the mail server, often 587 with EMAIL_USE_TLS."""
EMAIL_HOST_USER = os.environ.get("EMAIL_HOST_USER", "")
"""The user name at the mail server; empty where it needs none."""
EMAIL_HOST_PASSWORD = env_secret("EMAIL_HOST_PASSWORD")
"""The password at the mail server."""
EMAIL_USE_TLS = env_bool("EMAIL_USE_TLS", False)
"""Whether the connection to the mail server is encrypted by STARTTLS."""
EMAIL_TIMEOUT = 20
DEFAULT_FROM_EMAIL = env_address("DEFAULT_FROM_EMAIL", "schedulearn@localhost")
"""The sender of all mails: an address, or Schedulearn <gpus@example.org>."""

CELERY_BROKER_URL = REDIS_URL or "memory://"
CELERY_TASK_ALWAYS_EAGER = not LAB
CELERY_TASK_EAGER_PROPAGATES = False
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = TIME_ZONE

# Browser security
HTTPS = SITE_URL.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
if DEMO:  # all ports share cookies: a user may be signed in to a lab and its demo at the same time
    SESSION_COOKIE_NAME = "sessionid_demo"
CSRF_FAILURE_VIEW = "portal.errors.csrf_failure"
SESSION_ENGINE = "portal.accounts.sessions"
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_SSL_REDIRECT = HTTPS and not env_bool("SSL_REDIRECT_BY_PROXY", True)
"""Whether the proxy redirects http:// to https://. With false, the portal does it where SITE_URL begins with https://."""
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

# After ten wrong passwords for a user from an address, sign-in is locked for 15 minutes.
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_TEMPLATE = "accounts/locked_out.html"
AXES_USERNAME_CALLABLE = "portal.accounts.clients.counted_name"
AXES_CLIENT_IP_CALLABLE = "portal.accounts.clients.client_ip"
AXES_VERBOSE = False

REST_FRAMEWORK = rest_framework(proxies=1 if BEHIND_PROXY else 0)

MAX_WAITING_JOBS = env_int("MAX_WAITING_JOBS", 500, 1, 1_000_000)
"""How many jobs of one user may wait at the same time, unless a limit of the user or of a group overrides it."""

# Uploads
MAX_UPLOAD_MIB = env_int("MAX_UPLOAD_MIB", 100, 1, 4096)
"""The largest upload of code: of the packed file, or of all files together. Unpacked, code may have 1 GiB, which is fixed. The
proxy must accept at least as much."""
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024
FILE_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FILES = 10_000
DATA_UPLOAD_MAX_NUMBER_FIELDS = DATA_UPLOAD_MAX_NUMBER_FILES + 100  # the API sends each file's path as a field
GIT_MAX_MIB = env_int("GIT_MAX_MIB", 2048, 1, 65536)
"""How much a node receives at most for one commit from Git. Its files are limited as those of an upload."""
GIT_MAX_MINUTES = env_int("GIT_MAX_MINUTES", 30, 1, 600)
"""How long a fetch from Git may take."""
MAX_DATASET_GIB = env_int("MAX_DATASET_GIB", 200, 1, 1_048_576)
"""Maximum size of one version of a dataset, as sent and unpacked. It is sent in pieces of 8 MiB, which proxies let through."""
DATASETS_QUOTA_GIB = env_int("DATASETS_QUOTA_GIB", 0, 0, 16_777_216)
"""How much all versions of the datasets of one user may have together; 0 for no limit."""
MAX_OUTPUTS_MIB = env_int("MAX_OUTPUTS_MIB", 2048, 1, 1_048_576)
"""Maximum size of a job's outputs in the portal."""
MAX_CHECKPOINTS_MIB = env_int("MAX_CHECKPOINTS_MIB", 20_480, 1, 16_777_216)
"""Maximum size of a job's checkpoints in the portal; while they are replaced, it keeps both the old and the new."""
CHECKPOINTS_LEAVE_FREE_MIB = env_int("CHECKPOINTS_LEAVE_FREE_MIB", 4096, 0, 16_777_216)
"""With less free space on the portal's disk it accepts no checkpoints: logs and the database need the space."""
KEEP_LAYERS_DAYS = env_int("SCHEDULEARN_KEEP_LAYERS_DAYS", 60, 1, 36_500)
"""After so many days without a job, the portal deletes the built packages of an environment. A job that needs them has them built
again."""
MAX_LOG_MIB = env_int("MAX_LOG_MIB", 1024, 1, 1_048_576)
"""Maximum size of one container's log; the rest is cut, with a visible marker."""

# Scheduler and nodes
SCHEDULER_PERIOD_SECONDS = 3
PATIENCE_HOURS = env_int("PATIENCE_HOURS", 24, 1, 8760)
"""A job that has waited longer is next, whatever the policy."""
DAMPING_SECONDS = env_int("DAMPING_SECONDS", 30, 0, 600)
"""No policy stops a job within this time after it was placed: a job takes about as long to reach its first step.

0 turns this protection off, and lets elastic jobs grow at once.
"""
RECORDED_TURNS = env_int("RECORDED_TURNS", 20_000, 100, 1_000_000)
"""How many scheduling cycles are recorded in full, for replay. A cycle of a busy lab takes 25 KiB."""
RECORDED_DAYS = env_int("RECORDED_DAYS", 35, 1, 3650)
"""For how many days scheduling cycles are recorded in full."""
IDLE_GPU_PERCENT = env_int("IDLE_GPU_PERCENT", 5, 1, 100)
"""A job is reported as idle when all its GPUs are below this utilisation for IDLE_GPU_MINUTES."""
IDLE_GPU_MINUTES = env_int("IDLE_GPU_MINUTES", 30, 0, 60)
"""For how many minutes the GPUs of a job are below IDLE_GPU_PERCENT until it is reported as idle; 0 turns this off."""
IDLE_GPU_RULE = env_choice("IDLE_GPU_RULE", "nothing", "stop")
"""What happens after as long again: nothing, or the job is put on hold until a user releases it."""
RESTARTS_WITHOUT_PROGRESS = env_int("RESTARTS_WITHOUT_PROGRESS", 5, 1, 18)
"""An elastic Horovod job fails when its ranks were restarted so often in a row without a commit; a job may have its own
limit. The driver remembers the latest 20 rank groups, hence the maximum."""
SILENT_RANK_MINUTES = env_int("SILENT_RANK_MINUTES", 30, 0, 10_080)
"""A running job without output for this time is reported to its owner, and never stopped for it; 0 turns this off. A job
may have its own limit."""
NODE_LOST_AFTER_SECONDS = 18
"""Three missed reports, so that a loss is noticed within 20 s even if the last report came just before it."""
NODE_ALARM_AFTER_SECONDS = 120
"""No alarm before this time without a report: a restart of the agent or the machine is shorter."""
GPU_QUARANTINE_FAILURES = env_int("GPU_QUARANTINE_FAILURES", 3, 0, 20)
"""A GPU is quarantined after so many different jobs in a row failed on it within 30 s of their start; 0 turns this off."""
FENCE_SECONDS = 34
"""A supervisor whose lease is not renewed stops its ranks after this time (``runners/launch/fence.py``)."""
FENCE_MARGIN_SECONDS = 15
"""10 s for the ranks to end, 5 s for clock differences. A job runs elsewhere only after fence and margin."""
RING_NETWORK = env_network("RING_NETWORK", "10.192.0.0/12", 22)
"""Addresses for the containers of jobs on several nodes; no machine of the lab may use them for anything else. Each such
job has a block of 1,022 addresses."""
RING_VNI_BASE = env_int("RING_VNI_BASE", 7_000_000, 1, 16_000_000)
"""The first VXLAN number of the overlay networks of jobs; no other VXLAN of these nodes may have one from here on."""

LOG_LEVEL = env_log_level("LOG_LEVEL", "INFO")
"""How much is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "django.request": {"level": "ERROR"},
        "axes": {"level": "WARNING"},
        "daphne": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
