"""What no node can build, refused when an environment is made, with what to do about it.

Nodes check each recipe by the same rules (``runners.environments.layers.recipe``), which apps of the portal may not import. A
test gives both the same recipes.
"""

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from portal.environments.models import Environment
from portal.projects.package_lists.model import package_name
from portal.projects.package_lists.sources import AddressError, check_index, check_installable, parse
from portal.refused import Refused

MAX_LINES = 500
MAX_CHARACTERS = 1000
"""Of a line, in which the versions of one package are joined."""
TORCH = "torch"


def check_recipe(environment: Environment) -> None:
    """Raise Refused for an environment of packages that no node can build. Earlier releases have made such ones."""
    if environment.image:
        return
    if not environment.lines:
        raise Refused("Name at least one package.", field="packages")
    if len(environment.lines) > MAX_LINES:
        raise Refused(f"An environment has at most {MAX_LINES} packages of its own.", field="packages")
    if len(environment.constraints) > MAX_LINES:
        raise Refused(f"An environment has at most {MAX_LINES} constraints.", field="packages")
    for line in environment.lines:
        _check_line(line, source_builds=environment.source_builds)
    for line in environment.constraints:
        _check_constraint(line)
    for index in environment.indexes:
        try:
            check_index(parse(index))
        except AddressError as error:
            raise Refused(f"{index}: {error}", field="packages") from None
    if environment.horovod and TORCH not in map(package_name, environment.lines):
        raise Refused(
            "Horovod is compiled against torch here: add torch to the packages. For TensorFlow, choose a base that has it with "
            "Horovod.",
            field="horovod",
        )


def _parse(line: str) -> Requirement:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        raise Refused(f"“{line[:100]}” is not a package with versions.", field="packages") from None
    if len(line) > MAX_CHARACTERS:
        raise Refused(
            f"{requirement.name} has versions of more than {MAX_CHARACTERS:,} characters. Write fewer.",
            field="packages",
        )
    return requirement


def _check_line(line: str, *, source_builds: bool) -> None:
    requirement = _parse(line)
    if requirement.url is None:
        return
    name = canonicalize_name(requirement.name)
    try:
        address = parse(requirement.url)
        check_installable(address)
    except AddressError as error:
        raise Refused(f"{name}: {error}", field="packages") from None
    if not address.is_wheel and not source_builds:
        raise Refused(
            f"The address of {name} is one of source code. Write that of a wheel, or choose to have packages built from source, if "
            "an admin allows that.",
            field="packages",
        )


def _check_constraint(line: str) -> None:
    requirement = _parse(line)
    if requirement.url is not None or requirement.extras:
        raise Refused(f"The constraint “{line[:100]}” has more than versions. Remove it.", field="packages")
