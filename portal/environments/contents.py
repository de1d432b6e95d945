"""Whether an environment already has what a package list asks for, as far as that is known before a node looks into it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from portal.environments.models import Environment
from portal.projects.package_lists.imports import modules_of
from portal.projects.package_lists.model import PackageList


def installs(environment: Environment, asked: PackageList) -> bool:
    """Return whether an environment has every package of a list in a version that the list allows.

    Lines with markers, extras or addresses count only if the environment has the very same lines, and so do constraints: they
    also apply to packages that are not named.
    """
    if not set(asked.constraints) <= set(environment.constraints):
        return False
    versions = _exact_versions(environment)
    return all(line in environment.lines or _meets(environment.packages, versions, line) for line in asked.lines)


@dataclass(frozen=True)
class Contradiction:
    """A line that the versions of a base do not satisfy; they stay, so that a build with it fails."""

    line: str
    package: str
    version: str
    """The version that the base has."""


def contradictions(base: Environment | None, lines: Iterable[str]) -> list[Contradiction]:
    """Return the lines that contradict the exact versions of a base. Lines with markers may not apply, and are left out."""
    versions = _pins(base.pins) if base is not None else {}
    found = []
    for line in lines:
        wanted = Requirement(line)
        version = versions.get(name := canonicalize_name(wanted.name))
        if version and not wanted.marker and not wanted.specifier.contains(version, prereleases=True):
            found.append(Contradiction(line, name, version))
    return found


def has_module_of(modules: Collection[str], package: str) -> bool:
    """Return whether a module among these is probably one of a package."""
    return not set(modules_of([package])).isdisjoint(modules)


def _meets(modules: Collection[str], versions: Mapping[str, str], line: str) -> bool:
    wanted = Requirement(line)
    if wanted.url or wanted.extras or wanted.marker:
        return False
    name = canonicalize_name(wanted.name)
    if version := versions.get(name):
        return wanted.specifier.contains(version, prereleases=True)
    return not wanted.specifier and has_module_of(modules, name)


def _exact_versions(environment: Environment) -> dict[str, str]:
    """Return the versions of the packages that it lists, or its base has, with ``==``."""
    return _pins([*(environment.base or environment).pins, *environment.lines])


def _pins(lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        versions = [each.version for each in requirement.specifier if each.operator == "=="]
        if versions and "*" not in versions[0]:
            found[canonicalize_name(requirement.name)] = versions[0]
    return found
