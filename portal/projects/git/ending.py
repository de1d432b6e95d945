"""Ends open fetches when what they were requested for changes: the repository, its host, the project, or who may use it.

It sees rows alone, so that the services of projects call it in the transaction of the change.
"""

from functools import partial

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.projects.git.files import archive_path
from portal.projects.git.models import GitFetch
from portal.sentences import agents

OPEN = Q(state__in=(GitFetch.State.WAITING, GitFetch.State.RUNNING))


def end_open(rows: QuerySet[GitFetch], why: agents.Message) -> None:
    """Cancel those of these fetches that are open. The nodes that make them stop within seconds, and their results are refused."""
    ended = list(rows.filter(OPEN).only("pk", "tries"))
    GitFetch.objects.filter(OPEN, pk__in=[fetch.pk for fetch in ended]).update(
        state=GitFetch.State.CANCELLED, message=why.data(), ended_at=timezone.now()
    )
    for fetch in ended:
        transaction.on_commit(partial(archive_path(fetch).unlink, missing_ok=True))
