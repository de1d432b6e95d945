"""Finds what a reader may go to: pages, projects, jobs and nodes, by a part of a name or a number.

Pages match by their titles and the other words that people use for them; rows are those that the reader may see.
"""

from dataclasses import dataclass

from django.urls import reverse

from portal.accounts.models import User
from portal.cluster.models import LIVE_NODE, Node
from portal.cluster.slots import lab_noun
from portal.jobs.job_list import is_id
from portal.jobs.models import Job
from portal.names import search_key
from portal.projects.models import Project
from portal.search import any_contains, stored_text_contains

MAX_ROWS = 6
"""The most rows of a kind."""


@dataclass(frozen=True, slots=True)
class Result:
    url: str
    icon: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A page or an action of the portal."""

    name: str
    icon: str
    text: str
    words: str = ""
    """Other words by which people look for it."""
    for_admins: bool = False


PLACES = (
    Place("jobs:new", "plus", "New job", "submit run start"),
    Place("projects:new", "plus", "New project", "create upload code"),
    Place("home", "home", "Home", "dashboard overview"),
    Place("jobs:list", "jobs", "Jobs", "runs"),
    Place("jobs:queue", "list", "Queue", "waiting"),
    Place("schedules:own", "clock", "Schedules", "every night cron repeat"),
    Place("jobs:compare", "chart", "Compare jobs", "curves"),
    Place("projects:list", "folder", "Projects", "code"),
    Place("projects:gallery", "star", "Gallery", "examples tutorial"),
    Place("monitoring:nodes", "node", "Nodes", "cluster machines"),
    Place("monitoring:gpus", "chip", "{noun}s", "utilisation memory temperature"),
    Place("monitoring:timeline", "clock", "Timeline", "history gantt"),
    Place("cluster:reservations", "clock", "Reservations", "calendar booking"),
    Place("usage:usage", "chart", "Usage", "GPU-hours statistics"),
    Place("accounts:profile", "user", "Your account", "profile e-mail password"),
    Place("notifications:list", "bell", "Notices", "unread messages"),
    Place("notifications:preferences", "bell", "Notifications", "mail slack webhook quiet digest channel"),
    Place("accounts:tokens", "key", "API tokens", "REST script"),
    Place("jobs:secrets", "lock", "Secrets", "password token key credentials HF_TOKEN"),
    Place("interface:glossary", "book", "Glossary", "help words meaning"),
    Place("scheduler:admin", "gear", "Admin", "", for_admins=True),
    Place("scheduler:policy", "policy", "Scheduling policy", "switch fifo fair share", for_admins=True),
    Place("monitoring:admin-nodes", "node", "Manage nodes", "add approve drain join", for_admins=True),
    Place("whatif:list", "chart", "Simulations", "what-if", for_admins=True),
    Place("accounts:users", "users", "Users", "people deactivate", for_admins=True),
    Place("accounts:groups", "users", "Groups", "", for_admins=True),
    Place("accounts:invites", "mail", "Invitations", "invite", for_admins=True),
    Place("jobs:limits", "gauge", "Limits", "quota", for_admins=True),
    Place("jobs:space", "archive", "Space", "disk storage retention clean up delete", for_admins=True),
    Place("forecast:time-requests", "clock", "Requests for more time", "extend time limit", for_admins=True),
    Place("accounts:lab-settings", "gear", "Lab settings", "visibility", for_admins=True),
    Place(
        "notifications:admin", "bell", "Mail and channels", "smtp notifications webhook allowed hosts", for_admins=True
    ),
    Place("projects:git-hosts", "code", "Git hosts", "GitHub GitLab repositories", for_admins=True),
    Place("interface:audit", "book", "Audit", "log who did what", for_admins=True),
    Place("data:index", "list", "Rows of the database", "tables records django admin", for_admins=True),
)


def find(reader: User, words: str) -> list[tuple[str, list[Result]]]:
    """Return results by kind, without the kinds that have none. Without words only places match."""
    found = [("Go to", _places(reader, words))]
    if words:
        found += [("Jobs", _jobs(reader, words)), ("Projects", _projects(reader, words)), ("Nodes", _nodes(words))]
    return [(kind, results) for kind, results in found if results]


def _places(reader: User, words: str) -> list[Result]:
    wanted, noun = search_key(words), lab_noun()
    allowed = [place for place in PLACES if reader.is_admin or not place.for_admins]
    by_title = [place for place in allowed if wanted in search_key(place.text.format(noun=noun))]
    others = [place for place in allowed if place not in by_title and wanted in search_key(place.words)]
    shown = (by_title + others) if not wanted else (by_title + others)[:MAX_ROWS]
    return [Result(reverse(place.name), place.icon, place.text.format(noun=noun)) for place in shown]


def _jobs(reader: User, words: str) -> list[Result]:
    rows = Job.objects.visible_to(reader).select_related("project").only("name", "state", "project__name")
    number = words.removeprefix("#")
    exact = list(rows.filter(pk=int(number))) if is_id(number) else []
    others = rows.filter(stored_text_contains("search_text", words)).order_by("-pk")[:MAX_ROWS]
    jobs = exact + [job for job in others if job not in exact]
    return [
        Result(
            reverse("jobs:detail", args=[job.pk]),
            "jobs",
            f"{job.name} #{job.pk}",
            f"{job.get_state_display()}, {job.project.name}",
        )
        for job in jobs[:MAX_ROWS]
    ]


def _projects(reader: User, words: str) -> list[Result]:
    rows = Project.objects.visible_to(reader).filter(any_contains(words, "name")).order_by("name")[:MAX_ROWS]
    return [Result(reverse("projects:detail", args=[project.pk]), "folder", project.name) for project in rows]


def _nodes(words: str) -> list[Result]:
    rows = Node.objects.filter(LIVE_NODE, any_contains(words, "name"), approved_at__isnull=False).order_by("name")
    return [Result(reverse("monitoring:node", args=[node.pk]), "node", node.name) for node in rows[:MAX_ROWS]]
