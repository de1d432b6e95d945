"""What the form for a new job offers to install: the packages that the code lists, or imports and does not find.

One click makes an environment for the project: these packages in addition to those of the environment that is chosen.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from portal.accounts.models import User
from portal.environments import services as environments
from portal.environments.contents import Contradiction, contradictions, has_module_of, installs
from portal.environments.models import Environment, PackageSettings
from portal.environments.services import HOROVOD, PackageRequest
from portal.jobs.models import Job
from portal.projects import inspection
from portal.projects.models import CodeVersion
from portal.projects.package_lists.imports import ProposedPackage, meant_by, modules_of, packages_for_imports
from portal.projects.package_lists.model import PackageList, RefusedLine, package_name
from portal.refused import Refused

IMPORTS = "imports"
"""The choice of what the code imports, in place of the path of a list."""


@dataclass(frozen=True)
class PackageOffer:
    """What may be installed for a code version, in addition to an environment."""

    lists: Sequence[PackageList]
    """The lists of the upload whose packages the environment does not have yet, nearest to the top first."""
    installed_lists: Sequence[PackageList]
    """Those whose packages it has."""
    refused_lists: Sequence[PackageList]
    """Lists of which no line can be installed."""
    missing: Sequence[Mapping[str, Any]]
    """The modules that the code imports and the environment lacks (``inspection.missing_modules``): ``module``, ``code``, and
    the ``path`` and ``line`` of the import."""
    proposed: Sequence[ProposedPackage]
    """The packages of these modules, as far as they are known or plausible."""
    others: Sequence[Environment]
    """Other environments that can be chosen and lack none of these modules, while this one does."""
    contradictions: Sequence[Contradiction] = ()
    """Lines of the lists that the versions of the environment's base do not satisfy."""
    refused_imports: Mapping[str, RefusedLine] = field(default_factory=dict)
    """Missing modules that lines of the lists seem to be about which cannot be installed."""

    @property
    def job_would_fail(self) -> bool:
        """Whether a missing module is always imported, not only if a function runs."""
        return any(each["code"] != inspection.MISSING_IN_FUNCTION for each in self.missing)

    @property
    def certain(self) -> list[ProposedPackage]:
        return [each for each in self.proposed if not each.guessed]

    @property
    def guessed(self) -> list[ProposedPackage]:
        return [each for each in self.proposed if each.guessed]

    @property
    def unknown(self) -> list[str]:
        """Missing modules for which no package is proposed: they look like files that were not uploaded."""
        known = {each.module for each in packages_for_imports(each["module"] for each in self.missing)}
        known |= self.refused_imports.keys()
        return [each["module"] for each in self.missing if each["module"] not in known]

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.lists or self.installed_lists or self.refused_lists)


def offer_for(
    code: CodeVersion, environment: Environment | None, choices: Sequence[Environment], copied: Job | None = None
) -> PackageOffer:
    """Return what to offer while ``environment`` is chosen. ``choices`` are all that can be. ``copied`` is the job that the
    form copies: what it lacked when it failed is missing, too."""
    is_image = environment is not None and bool(environment.image)  # to which no packages are added
    lists = [] if is_image else inspection.package_lists(code, PackageSettings.current().allowed_sources)
    lacked = lacked_by(copied)
    missing = missing_modules(code, environment, lacked) if environment else []
    others = [
        each
        for each in choices
        if missing
        and each != environment
        and not getattr(each, "has_failed", False)  # of ``offered_environments``
        and environment is not None
        and not missing_modules(code, each, lacked)
        and set(environments.frameworks_of(environment)) <= set(each.packages)
    ]
    refused = _refused_imports(missing, lists)
    usable = [each for each in lists if each.lines]
    installed = [each for each in usable if environment is not None and installs(environment, each)]
    return PackageOffer(
        lists=[each for each in usable if each not in installed],
        installed_lists=installed,
        refused_lists=[each for each in lists if not each.lines and each.refused],
        missing=missing,
        proposed=[
            each
            for each in packages_for_imports(each["module"] for each in missing if not is_image)
            if not each.guessed or each.module not in refused
        ],
        others=others[:2],
        contradictions=contradictions(
            _base_of(environment) if environment else None,
            dict.fromkeys(line for each in usable for line in (*each.lines, *each.constraints)),
        ),
        refused_imports=refused,
    )


def _refused_imports(missing: Sequence[Mapping[str, Any]], lists: Sequence[PackageList]) -> dict[str, RefusedLine]:
    """Return the missing modules that lines seem to be about which cannot be installed, with the first such line."""
    found: dict[str, RefusedLine] = {}
    for line in (line for each in lists for line in each.refused):
        meant = {module.lower() for module in meant_by(line.text)}
        for module in (each["module"] for each in missing):
            if module.lower() in meant:
                found.setdefault(module, line)
    return found


def _base_of(environment: Environment) -> Environment | None:
    """Return the environment to whose packages those of a list are added; None for a full one."""
    return None if environment.is_full else environment.base or environment


def missing_modules(
    code: CodeVersion, environment: Environment, lacked: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the modules that a code imports, or that a job lacked when it failed (``lacked_by``), and an environment lacks."""
    if environment.image and not environment.packages:
        return []  # no node has looked into the image yet
    missing = inspection.missing_modules(code.guess, environment.packages)
    if lacked is not None:
        known = {str(name).lower() for name in (*environment.packages, *(each["module"] for each in missing))}
        if not known.intersection(name.lower() for name in (lacked["module"], *modules_of([lacked["module"]]))):
            missing.append(dict(lacked))
    return missing


def lacked_by(job: Job | None) -> dict[str, Any] | None:
    """Return the module or package that the last attempt of a job lacked, as ``PackageOffer.missing`` has it; None without a
    job, or if it ended for another reason. One query."""
    if job is None:
        return None
    cause = job.attempts.order_by("-number").values_list("cause", flat=True).first() or {}
    module = str(cause.get("parameters", {}).get("module", "")) if cause.get("code") == "import_error" else ""
    if "-" in module:  # a package, as a library named it
        module = modules_of([module])[0]
    return {"code": inspection.MISSING, "module": module, "path": f"job {job.pk}", "line": 0} if module else None


def install(
    user: User,
    code: CodeVersion,
    environment: Environment,
    choice: str,
    confirmed: Collection[str] = (),
    copied: Job | None = None,
) -> Environment:
    """Make an environment for the code's project: the packages of a list of the upload (``choice`` is its path), or those
    of the imports, of which guessed ones must be ``confirmed``."""
    if environment.image:
        raise Refused(
            "Packages are not added to an image: install them in its Dockerfile, or choose another environment.",
            field="environment",
        )
    found: PackageList | None = None
    if choice == IMPORTS:
        offer = packages_for_imports(each["module"] for each in missing_modules(code, environment, lacked_by(copied)))
        lines = [each.package for each in offer if not each.guessed or each.package in confirmed]
        if not lines:
            raise Refused("Tick at least one package to install.", field="environment")
    else:
        lists = inspection.package_lists(code, PackageSettings.current().allowed_sources)
        found = next((each for each in lists if each.path == choice and each.lines), None)
        if found is None:
            raise Refused(f"The upload has no package list “{choice[:200]}”.", field="environment")
        lines = list(found.lines)
    listed, lines = lines, environments.lines_without_horovod(lines)
    with_horovod = len(lines) < len(listed)
    base = _base_of(environment)
    if base is not None and with_horovod and HOROVOD not in base.packages:
        base = environments.base_with_horovod(base)
        if base is None:
            raise Refused(
                "No environment has Horovod with these packages. Choose a full environment.", field="environment"
            )
    request = PackageRequest(
        lines=merged(environment.lines, lines),
        constraints=found.constraints if found else (),
        indexes=(*(found.indexes if found else ()), *environment.indexes),
        base=base,
        python=environment.python,
        horovod=base is None and (with_horovod or environment.horovod),
    )
    return environments.create(user, code.project, request, suggested_title=_title(environment, lines))


def _title(environment: Environment, lines: Sequence[str]) -> str:
    """Return the title of the environment with what these lines add to it."""
    known = {package_name(line) for line in environment.lines}
    names = [package_name(line) for line in lines]
    added = [name for name in names if name not in known and not has_module_of(environment.packages, name)]
    return environments.title_of(environment.title, added or names)


def merged(present: Sequence[str], added: Sequence[str]) -> list[str]:
    """Return the lines of an environment with others in addition, which replace those of the same package."""
    names = {package_name(line) for line in added}
    return [*(line for line in present if package_name(line) not in names), *added]
