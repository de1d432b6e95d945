"""Reads where the submodules of a commit are. What a repository has about them is hostile: only plain addresses are taken."""

import re

from runners.sources.inside.git import Failed, Repository


def module_addresses(repository: Repository, commit: str) -> dict[str, str]:
    """Return the addresses of submodules by their paths."""
    try:
        listed = repository.read("config", "--null", "--list", "--blob", f"{commit}:.gitmodules")
    except Failed:
        return {}
    found: dict[str, dict[str, str]] = {}
    for each in listed.decode(errors="surrogateescape").split("\0"):
        key, _, value = each.partition("\n")
        section, _, rest = key.partition(".")
        name, _, field = rest.rpartition(".")
        if section == "submodule" and name:
            found.setdefault(name, {})[field] = value
    return {each["path"]: each.get("url", "") for each in found.values() if "path" in each}


PLAIN = re.compile(
    r"(https://|ssh://(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?)[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/[A-Za-z0-9._~/+@%-]+"
)
SHORT = re.compile(
    r"(?:([A-Za-z0-9._][A-Za-z0-9._-]*)@)?([A-Za-z0-9][A-Za-z0-9.-]*):([A-Za-z0-9._~][A-Za-z0-9._~/+-]*)"
)


def resolved(parent: str, address: str) -> str:
    """Return the address of a submodule as one with https or ssh; empty for any other."""
    if address.startswith(("./", "../")):
        scheme, _, rest = parent.partition("://")
        parts = rest.rstrip("/").split("/")
        for part in address.split("/"):
            if part == ".." and len(parts) > 1:
                parts.pop()
            elif part not in (".", "..", ""):
                parts.append(part)
        address = f"{scheme}://{'/'.join(parts)}"
    elif match := SHORT.fullmatch(address):
        address = f"ssh://{match[1] or 'git'}@{match[2]}/{match[3]}"
    return address if PLAIN.fullmatch(address) and "/-" not in address and ".." not in address else ""


def host_of(address: str) -> str:
    """Return HOST:PORT of such an address."""
    scheme, _, rest = address.partition("://")
    place = rest.partition("/")[0].rpartition("@")[2].lower()
    return place if ":" in place else f"{place}:{443 if scheme == 'https' else 22}"


def is_among(rules: list[str], place: str) -> bool:
    """Return whether HOST:PORT is one of these, of which some are ``*.example.org:443``."""
    return any(place == rule or (rule.startswith("*.") and place.endswith(rule[1:])) for rule in rules)
