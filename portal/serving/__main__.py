"""``python -m portal.serving``: one web process of the portal, with its own address or behind ``entry``."""

import argparse
import logging
import os
import re
import socket
import sys

import django

from portal.serving import NODES_PATH

FORM_BYTES = 8 << 20
"""Allowance for the fields of a form beside its files. It also lets views refuse what is too large, with an explanation."""

PIECES = re.compile(rb"/api/v1/(uploads/|datasets/\d+/versions/\d+/uploads/).*", re.DOTALL)
"""Requests with pieces of datasets. A larger one would be on the disk twice before the portal sees it, and lost if it broke off."""
MAX_PIECE_BYTES = 16 << 20
"""The same as in ``portal/storage/incoming.py``, which can be imported only later."""


def main(arguments: list[str]) -> None:
    args = _parser().parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import daphne.server  # noqa: F401, PLC0415  installs the reactor that runs on asyncio

    django.setup()
    from portal import asgi  # noqa: PLC0415
    from portal.serving.paced import PacedServer  # noqa: PLC0415

    logging.getLogger("daphne").setLevel(logging.WARNING)
    connections = socket.socket(fileno=args.handed_over) if args.handed_over is not None else None
    server = PacedServer(
        asgi.nodes_application if args.only == "nodes" else asgi.application,
        args.endpoint,
        connections=connections,
        max_body_bytes=max_body_bytes,
        client_of=session_of,
        may_send_large_body=may_send_large_body,
        application_close_timeout=2,
        verbosity=0,
        proxy_forwarded_address_header="X-Forwarded-For" if args.proxy_headers else None,
        proxy_forwarded_port_header="X-Forwarded-Port" if args.proxy_headers else None,
        proxy_forwarded_proto_header="X-Forwarded-Proto" if args.proxy_headers else None,
    )
    server.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m portal.serving", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--endpoint", "-e", action="append", default=[], help="in the format of Twisted: tcp:8000:interface=127.0.0.1"
    )
    where.add_argument(
        "--handed-over", type=int, help="number of the inherited socket on which an entry process sends connections"
    )
    parser.add_argument("--only", choices=["nodes"], help="answer only the nodes")
    parser.add_argument("--proxy-headers", action="store_true", help="trust X-Forwarded-For, -Port and -Proto")
    return parser


def max_body_bytes(path: bytes) -> int:
    """Return the maximum size of the body of a request to this path, in bytes."""
    from django.conf import settings  # noqa: PLC0415

    if PIECES.fullmatch(path):
        return MAX_PIECE_BYTES
    mib = settings.MAX_OUTPUTS_MIB if path.startswith(NODES_PATH.encode()) else 2 * settings.MAX_UPLOAD_MIB
    return (mib << 20) + FORM_BYTES


def may_send_large_body(path: bytes, authorization: str) -> bool:
    """Return whether a large body may be stored before its request is examined.

    Nodes may send outputs and checkpoints once they have reported.
    """
    from portal.agents.views import has_shown_token  # noqa: PLC0415

    return not path.startswith(NODES_PATH.encode()) or has_shown_token(authorization)


def session_of(cookies: str) -> str:
    """Return the session key of a browser's WebSocket, "" without one."""
    from django.conf import settings  # noqa: PLC0415
    from django.http import parse_cookie  # noqa: PLC0415

    return parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, "")


if __name__ == "__main__":
    main(sys.argv[1:])
