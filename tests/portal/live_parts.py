"""Requests as ``live.js`` sends them for a part of a page."""

from typing import Any

from django.test import Client


def fetch_part(client: Client, address: str, edition: str = "") -> Any:
    """Fetch a part of which the page has this edition."""
    return client.get(address, headers={"HX-Request": "true", "Edition": edition})
