"""Hosts that code may be fetched from, the repository of a project, its fetches, and the commits of code versions."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.cluster.models import Node
from portal.message_field import MessageField


class GitHost(models.Model):
    """A host that an admin allowed projects to fetch from."""

    class Kind(models.TextChoices):
        GITHUB = "github", "GitHub"
        GITLAB = "gitlab", "GitLab"
        GITEA = "gitea", "Gitea or Forgejo"
        BITBUCKET = "bitbucket", "Bitbucket"
        OTHER = "other", "other"

    host = models.CharField(max_length=260, unique=True)
    """In canonical form (``portal.host_names``); without a port, 443 for https and 22 for ssh."""
    internal = models.BooleanField(default=False)
    """It may have an address of the local network."""
    extras = models.BooleanField(default=False)
    """Submodules and files of Git LFS may come from it, where a project wants them."""
    kind = models.CharField(max_length=9, choices=Kind.choices, default=Kind.OTHER)
    """Its software, by which the pages of commits are known."""
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["host"]
        verbose_name_plural = "Git hosts"

    def __str__(self) -> str:
        return self.host


class GitSource(models.Model):
    """The repository and branch that a project is bound to."""

    project = models.OneToOneField("projects.Project", on_delete=models.CASCADE, related_name="git")
    address = models.CharField(max_length=500)
    """In canonical form (``addresses``), without secrets."""
    branch = models.CharField(max_length=200)
    user = models.CharField(max_length=200, blank=True)
    """With which nodes sign in by https."""
    sealed_token = models.TextField(blank=True)
    """Encrypted. Empty: a public repository, or ssh."""
    sealed_key = models.TextField(blank=True)
    """The private part of the deploy key, encrypted."""
    public_key = models.CharField(max_length=300, blank=True)
    host_key = models.TextField(blank=True)
    """The key of an ssh host that an owner confirmed: ``ssh-ed25519 AAAA...``."""
    offered_host_key = models.TextField(blank=True)
    """The one that the host had at the last fetch, if it is not the confirmed one."""
    extras = models.BooleanField(default=False)
    """Submodules and files of Git LFS are fetched too."""
    hook = models.CharField(max_length=40, unique=True)
    """The last part of the address of its webhook."""
    sealed_secret = models.TextField(blank=True)
    """Of its webhook, encrypted. Empty: it has none."""
    bound_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    """Who bound it last: code versions of the webhook are theirs."""
    access_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """Who entered the token or made the deploy key, and alone may use it for another repository. Empty: neither is stored, or it
    was by an earlier release."""
    changed_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.address} {self.branch}"

    @property
    def is_ssh(self) -> bool:
        return self.address.startswith("ssh://")


class GitFetch(models.Model):
    """One request to fetch the newest commit of a branch. Its log is ``HOME/git/<id>.log``."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting for a node"
        RUNNING = "running", "running"
        DONE = "done", "fetched"
        UNCHANGED = "unchanged", "nothing new"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"
        REPLACED = "replaced", "replaced"
        LOST = "lost", "lost"

    class Cause(models.TextChoices):
        PAGE = "page", "a user"
        API = "api", "the API"
        WEBHOOK = "webhook", "a push"

    project = models.ForeignKey("projects.Project", on_delete=models.CASCADE, related_name="fetches")
    address = models.CharField(max_length=500)
    branch = models.CharField(max_length=200)
    cause = models.CharField(max_length=7, choices=Cause.choices, default=Cause.PAGE)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    """Whose code version it makes."""
    state = models.CharField(max_length=9, choices=State.choices, default=State.WAITING)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    node_name = models.CharField(max_length=80, blank=True)
    tries = models.PositiveSmallIntegerField(default=0)
    """How many nodes were given it."""
    progress_percent = models.PositiveSmallIntegerField(default=0)
    message = MessageField(blank=True)
    """The current step, or how it ended."""
    commit = models.CharField(max_length=64, blank=True)
    version = models.ForeignKey(
        "projects.CodeVersion", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    requested_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    renewed_at = models.DateTimeField(null=True, blank=True)
    """When its node last sent progress; without any for a while it counts as lost."""
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "Git fetches"
        indexes = [models.Index(fields=["state", "id"], name="git_fetch_by_state")]
        constraints = [
            models.UniqueConstraint(
                fields=["project"], condition=Q(state="running"), name="one_running_git_fetch_of_a_project"
            ),
            models.UniqueConstraint(
                fields=["project"], condition=Q(state="waiting"), name="one_waiting_git_fetch_of_a_project"
            ),
        ]

    def __str__(self) -> str:
        return f"fetch {self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in (self.State.WAITING, self.State.RUNNING)


class VersionCommit(models.Model):
    """The commit that a code version was made from."""

    version = models.OneToOneField("projects.CodeVersion", on_delete=models.CASCADE, related_name="origin")
    commit = models.CharField(max_length=64)
    repository = models.CharField(max_length=500)
    branch = models.CharField(max_length=200)
    author = models.CharField(max_length=200, blank=True)
    subject = models.CharField(max_length=200, blank=True)
    committed_at = models.DateTimeField(null=True, blank=True)
    url = models.CharField(max_length=900, blank=True)
    """The page of the commit, where the software of the host is known."""
    rewritten = models.BooleanField(default=False)
    """Whether the commit before was no longer in the history of the branch."""

    def __str__(self) -> str:
        return self.short

    @property
    def short(self) -> str:
        """The beginning of the hash, as git shows it."""
        return self.commit[:10]
