"""What the entries of the audit log about deleting and erasing mean."""

from portal.sentences.audit import Phrase, Values, action, simple


def _versions(before: Values, after: Values) -> dict[str, str]:
    numbers = [str(number) for number in (after or before)["versions"]]
    return {"versions": f"version {numbers[0]}" if len(numbers) == 1 else f"versions {', '.join(numbers)}"}


@action("code.delete", "Projects", "Code deleted", "project")
def _code_deleted(before: Values, after: Values) -> Phrase:
    return Phrase("{actor} moved {versions} of the code of {subject} to the trash.", _versions(before, after))


@action("code.restore", "Projects", "Code restored", "project")
def _code_restored(before: Values, after: Values) -> Phrase:
    return Phrase("{actor} restored {versions} of the code of {subject} from the trash.", _versions(before, after))


@action("code.erase", "Projects", "Code deleted for good", "project")
def _code_erased(before: Values, after: Values) -> Phrase:
    about = _versions(before, after)
    return Phrase(
        "{actor} had {versions} of the code of {subject} erased before its time in the trash was over.", about
    )


@action("project.delete", "Projects", "Project deleted", "project")
def _project_deleted(before: Values, after: Values) -> Phrase:
    jobs = int(after["jobs"])
    return Phrase(
        "{actor} moved {subject} to the trash, with {jobs}.", {"jobs": "1 job" if jobs == 1 else f"{jobs} jobs"}
    )


simple("project.restore", "Projects", "Project restored", "project", "{actor} restored {subject} from the trash.")
simple(
    "project.erase",
    "Projects",
    "Project deleted for good",
    "project",
    "{actor} had {subject} erased before its time in the trash was over.",
)


@action("user.erase", "Users", "User erased", "user")
def _person_erased(before: Values, after: Values) -> Phrase:
    jobs = " with their jobs" if after.get("delete_jobs") else ""
    return Phrase(f"{{actor}} erased a person{jobs}, who is {{subject}} from now on.")


simple("user.export", "Users", "Data exported", "user", "{actor} exported the data of {subject}.")
