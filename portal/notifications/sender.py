"""The program that sends one message to an address that a person typed. It knows nothing else of the portal.

``portal.sandbox`` runs it within limits of time and memory. It reads a JSON object from its standard input, lets only
connections through that ``portal.outbound`` permits, and prints ``{"sent": ..., "final": ..., "error": ...}``.
"""

import http.client
import json
import os
import ssl
import sys
from collections.abc import Collection, Mapping
from typing import Any

from portal.outbound import OutboundError, guard, read_url

CONNECT_SECONDS = 10
"""The sandbox limits the time in total."""
MAX_ANSWER_BYTES = 64 * 1024
FINAL = {400, 401, 403, 404, 405, 410, 413, 415, 422}
"""Answers that a repetition would get again."""

NEVER = frozenset(
    {"dbus", "qt", "kde", "glib", "gnome", "macosx", "windows", "syslog", "file", "rsyslog", "xbmc", "kodi"}
)
"""Schemes of apprise that act on the portal's own machine, or by other means than a connection: no admin can enable them."""


def answer(sent: bool, error: str = "", *, final: bool = False) -> dict[str, Any]:
    return {"sent": sent, "final": final, "error": " ".join(error.split())[:300]}


def post(url: str, body: str, headers: Mapping[str, str], allowed: Collection[str]) -> dict[str, Any]:
    """Post a body. Redirects are not followed: they count as a failure."""
    where = read_url(url, allowed)
    connection: http.client.HTTPConnection
    if where.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(where.host, where.port, timeout=CONNECT_SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(where.host, where.port, timeout=CONNECT_SECONDS)
    try:
        connection.request("POST", where.target, body.encode(), dict(headers))
        response = connection.getresponse()
        response.read(MAX_ANSWER_BYTES)
    finally:
        connection.close()
    if 200 <= response.status < 300:
        return answer(True)
    if 300 <= response.status < 400:
        return answer(False, f"The receiver redirects ({response.status}), which is not followed.", final=True)
    return answer(False, f"The receiver answered {response.status}.", final=response.status in FINAL)


def chat(url: str, title: str, text: str, schemes: Collection[str], form: str = "text") -> dict[str, Any]:
    """Send a message by apprise, with these schemes only and without redirects. ``form``: ``text`` or ``html``."""
    import apprise  # noqa: PLC0415  # takes 0.3 s, which webhooks need not wait for
    import requests  # noqa: PLC0415
    from apprise.manager_plugins import NotificationManager  # noqa: PLC0415

    if NEVER.intersection(schemes):
        return answer(False, "This scheme acts on the portal's own machine.", final=True)
    plugins = NotificationManager()
    known = {scheme: plugins[scheme] for scheme in plugins.schemas()}
    wanted = {known[scheme] for scheme in schemes if scheme in known}
    for scheme, plugin in known.items():
        if plugin not in wanted:
            plugins.disable(scheme)
    requests.Session.get_redirect_target = _no_redirect  # type: ignore[assignment, method-assign]
    requests.Session.trust_env = False
    asset = apprise.AppriseAsset(secure_logging=True, plugin_paths=[], storage_path=None, async_mode=False)
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        return answer(False, "This address is not complete, or its kind is not enabled.", final=True)
    with apprise.LogCapture(level=apprise.logging.WARNING, fmt="%(message)s") as log:
        sent = bool(service.notify(body=text or title, title=title, body_format=apprise.NotifyFormat(form)))
        complaints = log.getvalue()
    if sent:
        return answer(True)
    refused = "address" in complaints and "not a public" in complaints
    return answer(False, complaints.strip() or "The receiver did not take the message.", final=refused)


def _no_redirect(self: Any, response: Any) -> None:
    """Stand for ``requests.Session.get_redirect_target``: there is none."""


def main() -> None:
    asked = json.load(sys.stdin)
    allowed = frozenset(asked["allowed"])
    authorities = ssl.get_default_verify_paths().cafile
    if authorities:
        os.environ["REQUESTS_CA_BUNDLE"] = authorities  # those of the machine, to which an admin can add the lab's
    if asked["how"] == "chat":
        _import_first()
    guard(allowed)
    try:
        if asked["how"] == "chat":
            done = chat(asked["url"], asked["title"], asked["text"], asked["schemes"], asked["format"])
        else:
            done = post(asked["url"], asked["body"], asked["headers"], allowed)
    except OutboundError as error:
        done = answer(False, str(error), final=True)
    except ssl.SSLCertVerificationError as error:
        done = answer(False, f"The receiver's certificate is not valid: {error.verify_message}.")
    except (OSError, http.client.HTTPException) as error:
        done = answer(
            False, f"The receiver could not be reached: {getattr(error, 'strerror', None) or type(error).__name__}."
        )
    for secret in asked.get("secrets", ()):
        done["error"] = done["error"].replace(secret, "…")
    print(json.dumps(done))  # noqa: T201  # the answer


def _import_first() -> None:
    """Import apprise before the guard: it asks for the name of the platform, which starts a program on some systems."""
    import apprise  # noqa: F401, PLC0415


if __name__ == "__main__":
    main()
