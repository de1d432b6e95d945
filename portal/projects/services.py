"""Actions on projects: create, share, archive, upload code, start from an example.

Each checks the user's permission and returns rows, or raises Refused with a sentence. Views, the API and the jobs app
call these. Visibility is decided by ``Project.objects.visible_to``.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, Max, OuterRef, QuerySet
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.accounts.people import find_person
from portal.names import name_problem
from portal.projects import archive, inspection
from portal.projects.errors import Refused
from portal.projects.examples import Example
from portal.projects.git.ending import end_open
from portal.projects.models import CodeVersion, Membership, Project, Viewer
from portal.sentences import agents
from portal.user_slots import BusyError, UserSlots

Role = Membership.Role
_ROLE_LEVEL = {Role.VIEWER: 0, Role.MEMBER: 1, Role.OWNER: 2}

MAX_MEMBERS = 500
EXAMPLES = "Examples"
"""The name of each user's project for examples of the gallery."""


def role_of(user: Viewer, project: Project) -> Role | None:
    """Return the role of a user in a project; None without one. Admins count as owners of every project."""
    if not user.is_authenticated or not user.is_active:
        return None
    if user.is_admin:
        return Role.OWNER
    role = Membership.objects.filter(project=project, user=user).values_list("role", flat=True).first()
    return Role(role) if role else None


def may_submit(role: Role | None) -> bool:
    """Return whether a role may upload code, submit jobs and act on them."""
    return role is not None and _ROLE_LEVEL[role] >= _ROLE_LEVEL[Role.MEMBER]


def may_manage(role: Role | None) -> bool:
    """Return whether a role may share, rename and archive the project."""
    return role is not None and _ROLE_LEVEL[role] >= _ROLE_LEVEL[Role.OWNER]


def may_delete_code(user: User, version: CodeVersion, role: Role | None) -> bool:
    """Return whether a user with a role in the project may delete a version: who uploaded it, owners, and admins."""
    return may_manage(role) or (may_submit(role) and version.created_by_id == user.pk)


def require_member(user: Viewer, project: Project) -> None:
    if not may_submit(role_of(user, project)):
        raise Refused(f"Only members of “{project.name}” may do that. Ask one of its owners.", "forbidden")
    if project.archived_at is not None:
        raise Refused(f"“{project.name}” is archived. Restore it first.", "conflict")


def require_owner(user: Viewer, project: Project) -> None:
    if not may_manage(role_of(user, project)):
        raise Refused(f"Only owners of “{project.name}” may do that. Ask one of them.", "forbidden")


# Projects


def create_project(user: User, name: str, description: str = "") -> Project:
    """Create a project, whose owner is the user."""
    with transaction.atomic():
        project = Project.objects.create(name=_clean_name(name), description=_clean_text(description), created_by=user)
        Membership.objects.create(project=project, user=user, role=Role.OWNER)
    return project


def edit_project(user: User, project: Project, *, name: str | None = None, description: str | None = None) -> Project:
    """Change what is given. Two simultaneous changes, one of the name and one of the description, are both kept."""
    require_owner(user, project)
    if name is not None:
        project.name = _clean_name(name)
    if description is not None:
        project.description = _clean_text(description)
    given = {"name": name, "description": description}
    if fields := [field for field, value in given.items() if value is not None]:
        project.save(update_fields=fields)
    return project


def archive_project(user: User, project: Project) -> None:
    """Archive a project: nothing new may be uploaded, fetched or submitted; its content stays. Waiting and running jobs continue."""
    require_owner(user, project)
    with transaction.atomic():
        lock(project)
        Project.objects.filter(pk=project.pk, archived_at=None).update(archived_at=timezone.now())
        end_open(project.fetches.all(), agents.git_failures.ProjectArchived())
    project.refresh_from_db(fields=["archived_at"])


def empty_caches(user: User, project: Project) -> None:
    """Let the next jobs begin with empty caches. Nodes delete the present ones when no job uses them."""
    require_owner(user, project)
    Project.objects.filter(pk=project.pk).update(cache_generation=F("cache_generation") + 1)


def unarchive_project(user: User, project: Project) -> None:
    require_owner(user, project)
    Project.objects.filter(pk=project.pk).update(archived_at=None)
    project.refresh_from_db(fields=["archived_at"])


def _clean_name(name: str) -> str:
    name = " ".join(name.split())
    if not name or len(name) > 80 or "\0" in name:
        raise Refused("Give the project a name of at most 80 characters.", field="name")
    if problem := name_problem(name):
        raise Refused(problem, field="name")
    return name


def _clean_text(text: str) -> str:
    if len(text) > 10_000 or "\0" in text:
        raise Refused("A description has at most 10,000 characters.", field="description")
    return text.strip()


# Members


def share(user: User, project: Project, username: str, role: str) -> Membership:
    """Add a person by user name or e-mail address, or change the role of a member."""
    require_owner(user, project)
    role = _parse_role(role)
    person = find_person(username, User.objects.filter(is_active=True))
    with transaction.atomic():
        lock(project)
        membership = Membership.objects.filter(project=project, user=person).first()
        if membership is not None:
            return _set_role(membership, role)
        if project.memberships.count() >= MAX_MEMBERS:
            raise Refused(f"A project has at most {MAX_MEMBERS} members.", "conflict")
        return Membership.objects.create(project=project, user=person, role=role)


def change_role(user: User, membership: Membership, role: str, shown: str | None = None) -> Membership:
    """Change the role of a member. ``shown`` is the role on the page where the user chose: another one is not replaced."""
    require_owner(user, membership.project)
    role = _parse_role(role)
    with transaction.atomic():
        lock(membership.project)
        current = Membership.objects.select_related("user").filter(pk=membership.pk).first()
        if current is None:
            raise Refused("This person is no longer a member.", "conflict")
        if shown in Role.values and current.role not in (shown, role):
            raise Refused(
                f"Someone has made {current.user.username} {current.get_role_display()} since you opened this page. "
                "Nothing is saved: choose the role again if you still want to change it.",
                "conflict",
            )
        return _set_role(current, role)


def unshare(user: User, membership: Membership) -> None:
    """Remove a member. Owners may remove all members, and members themselves, except the last owner."""
    if membership.user_id != user.pk:
        require_owner(user, membership.project)
    with transaction.atomic():
        lock(membership.project)
        current = Membership.objects.filter(pk=membership.pk).first()
        if current is None:
            return
        _check_other_owner_remains(current)
        current.delete()
        _end_fetches_without_role(current)


def _set_role(membership: Membership, role: Role) -> Membership:
    if role != Role.OWNER:
        _check_other_owner_remains(membership)
    membership.role = role
    membership.save(update_fields=["role"])
    _end_fetches_without_role(membership)
    return membership


def _end_fetches_without_role(membership: Membership) -> None:
    """End the fetches whose code versions would belong to a person who may no longer make any."""
    user, project = membership.user, membership.project
    if not may_submit(role_of(user, project)):
        end_open(project.fetches.filter(requested_by=user), agents.git_failures.RequesterLeft(user.username))


def _check_other_owner_remains(membership: Membership) -> None:
    """Refuse to lose the last active owner. The project must be locked: two owners may leave at the same moment."""
    owners = Membership.objects.filter(project=membership.project_id, role=Role.OWNER, user__is_active=True)
    others = owners.exclude(pk=membership.pk)
    if membership.role == Role.OWNER and not others.exists():
        raise Refused("This is the project's last owner. Make another member an owner first.", "conflict")


def owned_alone(user: User) -> QuerySet[Project]:
    """Return the projects of which the user is an owner, and no other active user is."""
    owners = Membership.objects.filter(role=Role.OWNER)
    others = owners.filter(project=OuterRef("pk"), user__is_active=True).exclude(user=user)
    return Project.objects.filter(~Exists(others), pk__in=owners.filter(user=user).values("project"))


def hand_over(actor: User, project: Project, user: User, to: User) -> None:
    """Make another active user the owner of a project; its owner until now stays as a member."""
    require_owner(actor, project)
    if not to.is_active:
        raise Refused(f"{to} is deactivated. Choose an active user.", field="username")
    with transaction.atomic():
        lock(project)
        Membership.objects.update_or_create(project=project, user=to, defaults={"role": Role.OWNER})
        Membership.objects.filter(project=project, user=user).update(role=Role.MEMBER)
        about = {"owner": user.username}, {"owner": to.username}
        audit(actor, "project.hand_over", f"project {project.pk} {project.name}", *about)


def _parse_role(role: str) -> Role:
    if role not in Role.values:
        raise Refused(f"A role is one of {', '.join(Role.values)}.", field="role")
    return Role(role)


def lock(project: Project) -> Project:
    """Lock a project until the transaction ends, and return it as it is stored now. Raises Refused if it was deleted."""
    row = Project.objects.select_for_update().filter(pk=project.pk).first()
    if row is None:
        raise Refused("This project was deleted.", "conflict")
    return row


# Code


_unpacking = UserSlots()


def store_code(
    user: User,
    project: Project,
    uploads: Sequence[archive.Upload],
    note: str = "",
    upload_name: str = "",
    *,
    keep_others: bool = False,
    gitignore: bool = False,
) -> CodeVersion:
    """Create an immutable version from one archive, script or notebook, or from the files of a folder.

    ``uploads`` is ``[(name, open file)]``; the names of a folder's files are relative paths. With ``keep_others``, single
    files are put into the newest version, whose other files are kept; with ``gitignore``, what the ``.gitignore`` of an
    archive or folder names is left out. Content that equals the newest version makes no other: that version is returned,
    with ``is_new`` false. The slow part, unpacking in a separate process, precedes the transaction that assigns the
    number. Only one upload of each user is unpacked at a time. Raises BadArchiveError or Refused.
    """
    require_member(user, project)
    try:
        with _unpacking.hold(user.pk):
            single = archive.are_single_files(uploads)
            base = project.code_versions.first() if keep_others and single else None
            stored = archive.store_upload(uploads, base, gitignore=gitignore and not single)
            guess = inspection.inspect(stored.sha256)
    except BusyError:
        raise Refused(
            "Another upload of yours is still being unpacked. Wait until it is finished, then send this one again.",
            "limit",
        ) from None
    with transaction.atomic():
        lock(project)
        project.refresh_from_db(fields=["archived_at"])
        require_member(user, project)
        newest = project.code_versions.select_related("created_by").first()
        if newest is not None and newest.sha256 == stored.sha256:
            newest.is_new = False
            return newest
        return _new_version(user, project, stored, guess, upload_name or _upload_name(uploads, stored, base), note)


def store_commit(
    user: User,
    project: Project,
    upload: archive.Upload,
    upload_name: str,
    note: str,
    record: Callable[[CodeVersion], None],
) -> CodeVersion:
    """Create a version from the archive of a commit, which is judged as an upload is. ``record`` runs in the transaction that
    creates it. Also content that equals the newest version makes one: it is another commit. Raises BadArchiveError or Refused.
    """
    require_member(user, project)
    stored = archive.store_upload([upload], keep_top=True)
    guess = inspection.inspect(stored.sha256)
    with transaction.atomic():
        lock(project)
        project.refresh_from_db(fields=["archived_at"])
        require_member(user, project)
        version = _new_version(user, project, stored, guess, upload_name, note)
        record(version)
    return version


def _new_version(
    user: User, project: Project, stored: archive.StoredUpload, guess: dict[str, Any], upload_name: str, note: str
) -> CodeVersion:
    """Create the version with the next number. The project must be locked."""
    last = CodeVersion.with_deleted.filter(project=project).aggregate(last=Max("number"))["last"] or 0
    return CodeVersion.objects.create(
        project=project,
        number=last + 1,
        sha256=stored.sha256,
        size=stored.size,
        files=stored.files,
        guess=guess | {"notes": stored.notes},
        upload_name=_one_line(upload_name),
        note=_one_line(note),
        created_by=user,
    )


def lock_code(version: CodeVersion) -> None:
    """Lock a code version until the transaction ends, so that it is not deleted meanwhile. Raises Refused if it is deleted."""
    rows = CodeVersion.objects.select_for_update(of=("self",), no_key=True).select_related("project")
    row = rows.filter(pk=version.pk).first()
    if row is None:
        raise code_is_gone(version)
    if row.project.deleted_at is not None:
        raise Refused("This project was deleted.", "conflict")


def code_is_gone(version: CodeVersion) -> Refused:
    return Refused(
        f"Version {version.number} of the code was deleted. Choose another version, or restore it from the trash.",
        "conflict",
        field="code",
    )


def _upload_name(uploads: Sequence[archive.Upload], stored: archive.StoredUpload, base: CodeVersion | None) -> str:
    """Return what to call an upload; ``base`` is the version whose other files were kept."""
    first = uploads[0][0]
    if len(uploads) == 1:
        return first.rpartition("/")[2]
    if "/" in first:
        return f"{first.partition('/')[0]}/"
    has_more = base is not None and len(stored.files) > len(uploads)
    return f"{len(uploads)} of {len(stored.files)} files" if has_more else f"{len(uploads)} files"


def _one_line(text: str) -> str:
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:200]


# The gallery


def use_example(user: User, example: Example, project: Project | None = None) -> CodeVersion:
    """Copy an example to a project, by default to the user's own for examples. A second time returns the same version."""
    if project is not None:
        require_member(user, project)
    with ExitStack() as stack:
        stored = archive.store_upload(
            [(f"{example.key}/{name}", stack.enter_context(path.open("rb"))) for name, path in example.files()]
        )
    guess = inspection.inspect(stored.sha256)
    with transaction.atomic():
        if project is None:
            project = _examples_project(user)
        lock(project)
        require_member(user, project)
        same = CodeVersion.objects.filter(project=project, sha256=stored.sha256).first()
        return same or _new_version(user, project, stored, guess, example.title, f"From the gallery: {example.title}")


def _examples_project(user: User) -> Project:
    User.objects.select_for_update().get(pk=user.pk)  # two simultaneous clicks create only one project
    own = Project.objects.filter(created_by=user, name=EXAMPLES, archived_at=None)
    found = own.filter(memberships__user=user, memberships__role=Role.OWNER).first()
    return found or create_project(user, EXAMPLES, "Examples from the gallery, to run and to change.")
