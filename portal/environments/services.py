"""Actions on environments: make one, build it again, cancel a build, remove it.

Each checks the user's permission and returns rows, or raises Refused with a sentence. Admins manage the environments of the
lab; members of a project make environments for it, and its owners and their makers manage these.
"""

import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.environments import builds
from portal.environments.models import Build, Environment, PackageSettings
from portal.environments.recipe_rules import check_recipe
from portal.environments.recipes import recipe_hash
from portal.names import name_problem
from portal.projects.models import Project
from portal.projects.package_lists.imports import modules_of
from portal.projects.package_lists.model import package_name
from portal.projects.services import may_manage, may_submit, require_member, role_of
from portal.refused import Refused

MAX_OF_A_PROJECT = 50
MAX_TITLE = 120
PYTHON_VERSIONS = ("3.13", "3.12", "3.11", "3.10", "3.9")
"""Those that a full environment may have, newest first."""
HOROVOD = "horovod"
"""It has no wheels: a base has it, or it is compiled for a full environment."""
FRAMEWORKS = ("torch", "tensorflow", HOROVOD)
KEY_DIGITS = 6
KEY_CHARACTERS = 40


@dataclass(frozen=True)
class PackageRequest:
    """What a user wants in an environment; lines are checked and in canonical form (``projects.package_lists``)."""

    lines: Sequence[str]
    constraints: Sequence[str] = ()
    indexes: Sequence[str] = ()
    base: Environment | None = None
    """None: a full environment, which has nothing but its own packages."""
    python: str = ""
    horovod: bool = False
    source_builds: bool = False


def may_manage_environment(user: User, environment: Environment) -> bool:
    """Return whether a user may build an environment again, cancel its builds and remove it."""
    if not environment.recipe:
        return False
    if user.is_admin:
        return True
    if environment.project is None:
        return False
    role = role_of(user, environment.project)
    return may_manage(role) or (may_submit(role) and environment.created_by_id == user.pk)


def require_manager(user: User, environment: Environment) -> None:
    if not environment.recipe:
        raise Refused("This environment comes with the release; nodes prepare it themselves.", "conflict")
    if not may_manage_environment(user, environment):
        who = "an admin" if environment.project is None else f"an owner of “{environment.project.name}”"
        raise Refused(f"Only {who} may do that.", "forbidden")


def require_admin(user: User) -> None:
    if not user.is_admin:
        raise Refused("Only admins may do that.", "forbidden")


def create(
    user: User, project: Project | None, request: PackageRequest, title: str = "", suggested_title: str = ""
) -> Environment:
    """Make an environment for a project, or for the whole lab without one, and request its build. Without a title that the user
    chose, it gets the suggested one, or one that is made from its base and packages.

    One of the same place with the same packages is returned instead of a second one.
    """
    _require_may_create(user, project, request)
    _require_horovod(request)
    chosen = clean_title(title)
    title = chosen or suggested_title or default_title(request)
    row = Environment(
        title=title,
        project=project,
        created_by=user,
        base=request.base,
        lines=lines_without_horovod(request.lines) if request.horovod else list(request.lines),
        constraints=list(request.constraints),
        indexes=list(request.indexes),
        python=request.python,
        horovod=request.horovod,
        source_builds=request.source_builds,
        packages=_expected_modules(request),
        on_demand=True,
        position=request.base.position + 100 if request.base else 200,
        requested_at=timezone.now(),
    )
    check_recipe(row)
    return keep_environment(user, row, {"title": title, "packages": list(row.lines)}, chosen)


def keep_environment(user: User, row: Environment, after: Mapping[str, Any], chosen_title: str) -> Environment:
    """Save a new environment with its key and recipe, and audit it; return the one of the same place with the same recipe
    instead, if there is one. A title that the user chose must not be one that all jobs of the lab are offered."""
    row.key, row.recipe = _new_key(row.title), recipe_hash(row)
    project = row.project
    with transaction.atomic():
        if project is not None:
            Project.objects.select_for_update().get(pk=project.pk)
        same = Environment.objects.filter(project=project, recipe=row.recipe, retired=False).first()
        if same is not None:
            Environment.objects.filter(pk=same.pk).update(requested_at=row.requested_at)
            return same
        if project is not None and project.environments.filter(retired=False).count() >= MAX_OF_A_PROJECT:
            raise Refused(
                f"“{project.name}” has {MAX_OF_A_PROJECT} environments, the maximum. Remove one that is no longer used.",
                "conflict",
            )
        if chosen_title:
            _require_free_title(chosen_title)
        row.save()
        audit(user, "environment.create", f"environment {row.key}", after=after)
    return row


def _expected_modules(request: PackageRequest) -> list[str]:
    """Return the modules that it will probably have: those of its base and, by their names, of its packages."""
    base = request.base.packages if request.base else ["horovod"] if request.horovod else []
    return list(dict.fromkeys([*base, *modules_of(package_name(line) for line in request.lines)]))


def require_place(user: User, project: Project | None) -> None:
    """Raise Refused unless a user may make environments for a project, or for the whole lab without one."""
    if project is not None:
        require_member(user, project)
    elif not user.is_admin:
        raise Refused("Only admins make environments for the whole lab.", "forbidden")


def _require_may_create(user: User, project: Project | None, request: PackageRequest) -> None:
    require_place(user, project)
    if request.base is not None and (request.base.recipe or request.base.retired):
        raise Refused("Choose one of the environments of the release as the base.", field="base")
    if request.python and request.base is not None:
        raise Refused(
            f"“{request.base.title}” has its own Python. Choose a full environment for Python {request.python}.",
            field="python",
        )
    if request.python and request.python not in PYTHON_VERSIONS:
        raise Refused(f"Choose one of these versions of Python: {', '.join(PYTHON_VERSIONS)}.", field="python")
    if request.source_builds and not may_build_from_source(user):
        raise Refused("An admin has to allow packages that are built from source.", "forbidden", "source_builds")


def _require_horovod(request: PackageRequest) -> None:
    """Raise Refused if the list names Horovod, and neither the base has it nor is it compiled, or if it is to be compiled beside
    a base."""
    if request.horovod and request.base is not None:
        raise Refused(
            f"“{request.base.title}” has its own PyTorch, for which Horovod is not compiled. Choose a base with Horovod, or a "
            "full environment.",
            field="horovod",
        )
    names_it = len(lines_without_horovod(request.lines)) < len(request.lines)
    has_it = request.horovod if request.base is None else HOROVOD in request.base.packages
    if not names_it or has_it:
        return
    if request.base is None:
        raise Refused(
            "Horovod has no wheel. Choose “With Horovod”, which compiles it, or a base that has it.", field="horovod"
        )
    with_it = base_with_horovod(request.base)
    choice = f"Choose “{with_it.title}” as the base, or" if with_it else "Choose"
    raise Refused(f"Horovod has no wheel. {choice} a full environment with Horovod.", field="base")


def lines_without_horovod(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if package_name(line) != HOROVOD]


def frameworks_of(environment: Environment) -> list[str]:
    return [name for name in FRAMEWORKS if name in environment.packages]


def base_with_horovod(base: Environment) -> Environment | None:
    """Return the first environment of the release that has Horovod and the frameworks of another one."""
    needed = {HOROVOD, *frameworks_of(base)}
    return next((each for each in bases() if needed <= set(each.packages)), None)


def bases() -> list[Environment]:
    """Return the environments to which packages may be added, in the order in which they are offered."""
    return list(Environment.objects.filter(recipe="", project=None, retired=False).order_by("position", "key"))


def may_build_from_source(user: User) -> bool:
    return user.is_admin or PackageSettings.current().source_builds


def default_title(request: PackageRequest) -> str:
    names = [package_name(line) for line in request.lines]
    return title_of(request.base.title if request.base else "Python", names)


def title_of(base: str, names: Sequence[str]) -> str:
    """Return a title from a base and packages: ``PyTorch with pandas, rich and 3 more``."""
    shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    title = f"{base} with {shown}"
    return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1].rstrip()}…"


def clean_title(title: str) -> str:
    title = " ".join(title.split())
    if len(title) > MAX_TITLE or "\0" in title:
        raise Refused("Give it a title of at most 120 characters.", field="title")
    if title and (problem := name_problem(title)):
        raise Refused(problem, field="title")
    return title


def _require_free_title(title: str) -> None:
    """Raise Refused for the title of an environment of the release or of the lab: on a form, both would look the same."""
    for each in Environment.objects.filter(project=None, retired=False).only("title", "recipe"):
        if _compared(each.title) == _compared(title):
            place = "of the whole lab" if each.recipe else "that comes with the release"
            raise Refused(f"“{each.title}” is an environment {place}. Give this one another title.", field="title")


def _compared(title: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", title).casefold().split())


def _new_key(title: str) -> str:
    name = slugify(title)[:KEY_CHARACTERS].strip("-") or "environment"
    return f"{name}-{secrets.token_hex(KEY_DIGITS // 2)}"


def build_again(user: User, environment: Environment) -> None:
    """Resolve the packages of an environment again: after a failure, or for their latest releases. Until a build succeeds,
    jobs use the last one that did."""
    require_manager(user, environment)
    builds.end_lost(environment.recipe)
    with transaction.atomic():
        row = Environment.objects.select_for_update().get(pk=environment.pk)
        if row.retired:
            raise Refused("This environment was removed.", "conflict")
        check_recipe(row)
        if Build.objects.filter(recipe=row.recipe, state=Build.State.RUNNING).exists():
            raise Refused("It is being built now. Wait until that ends, or cancel it.", "conflict")
        newest = Build.objects.filter(recipe=row.recipe).order_by("-generation").first()
        row.generation = max(row.generation, newest.generation if newest else 0) + 1
        row.requested_at = timezone.now()
        row.save(update_fields=["generation", "requested_at"])
        audit(user, "environment.build_again", f"environment {row.key}", after={"generation": row.generation})


def cancel_build(user: User, build: Build) -> None:
    """Cancel a running build. Those who share it, because their environment has the same packages, cannot."""
    if not Environment.objects.visible_to(user).filter(pk=build.environment_id).exists():
        raise Refused(
            "Another project with the same packages started this build; only its owners may cancel it.", "forbidden"
        )
    require_manager(user, build.environment)
    if not builds.cancel(user, build):
        raise Refused("This build has ended already.", "conflict")


def remove(user: User, environment: Environment, unfinished_jobs: int) -> None:
    """Remove an environment: new jobs cannot choose it, and its files are deleted once no job needs them.

    ``unfinished_jobs`` is how many waiting and running jobs use it: with any, it stays.
    """
    require_manager(user, environment)
    if unfinished_jobs:
        jobs = (
            "1 job that has not ended uses it"
            if unfinished_jobs == 1
            else f"{unfinished_jobs} jobs that have not ended use it"
        )
        raise Refused(f"{jobs.capitalize()}. Wait for the end, or cancel them first.", "conflict")
    with transaction.atomic():
        if Environment.objects.filter(pk=environment.pk, retired=False).update(retired=True):
            audit(user, "environment.remove", f"environment {environment.key}", before={"title": environment.title})
    if Environment.objects.filter(recipe=environment.recipe, retired=False).exists():
        return  # another one with the same packages needs what is being built
    for build in Build.objects.filter(recipe=environment.recipe, state=Build.State.RUNNING):
        builds.cancel(user, build)


def set_package_settings(user: User, allowed_sources: Sequence[str], *, source_builds: bool) -> None:
    """Set what environments may contain. Only admins may."""
    require_admin(user)
    with transaction.atomic():
        row, _ = PackageSettings.objects.select_for_update().get_or_create(pk=PackageSettings.ONLY)
        before = {"allowed_sources": row.allowed_sources, "source_builds": row.source_builds}
        row.allowed_sources, row.source_builds = list(allowed_sources), source_builds
        row.save()
        after = {"allowed_sources": row.allowed_sources, "source_builds": row.source_builds}
        if before != after:
            audit(user, "environment.settings", "packages", before, after)
