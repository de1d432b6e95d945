"""Checks that the packages of a layer and of its base fit together, by their metadata alone."""

from collections.abc import Iterator, Mapping
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from runners.host.node_files import read_beneath

MAX_METADATA_BYTES = 4 * 2**20


def installed(site: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (name, version, requirements) of each package in a folder."""
    for folder in sorted(site.glob("*.dist-info")):
        content = read_beneath(site, f"{folder.name}/METADATA", MAX_METADATA_BYTES)
        if content is not None:
            head = BytesHeaderParser().parsebytes(content)
            yield str(head["Name"]), str(head["Version"]), tuple(map(str, head.get_all("Requires-Dist") or ()))


def inconsistencies(site: Path, base: Mapping[str, str], markers: Mapping[str, str]) -> list[str]:
    """Return what the packages of a layer need and neither it nor its base (name: version) has. ``markers`` are the base's."""
    packages = list(installed(site))
    versions: dict[str, str] = {canonicalize_name(name): version for name, version in base.items()}
    versions |= {canonicalize_name(name): version for name, version, _ in packages}
    return [
        problem
        for name, version, requirements in packages
        for text in requirements
        if (problem := unmet(f"{name} {version}", text, versions, markers))
    ]


def unmet(package: str, text: str, versions: Mapping[str, str], markers: Mapping[str, str]) -> str:
    """Return what is wrong with one requirement of a package; empty if nothing is, or if it cannot be judged."""
    try:
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({**markers, "extra": ""}):
            return ""
        found = versions.get(canonicalize_name(needed.name))
        if found is None:
            return f"{package} needs {needed.name}, which is not installed"
        if needed.specifier.contains(Version(found), prereleases=True):
            return ""
        return f"{package} needs {needed.name}{needed.specifier}, and {found} is installed"
    except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
        return ""
