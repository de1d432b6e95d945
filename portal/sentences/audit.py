"""What the entries of the audit log mean: a sentence for each action. ``audit_values`` has the names of what it changed.

A sentence has the actor and the subject as ``{actor}`` and ``{subject}``, so that a page can make links of them;
``{with_command}`` is whose command a node joined with, nothing if no user's. Entries are never rewritten: the actions and values of earlier releases keep their sentences here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from portal.ui import duration

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A sentence with holes. What fills them may have been typed by users, so it is never part of the template."""

    template: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """A kind of entry."""

    area: str
    """The heading above it in the menu of kinds."""
    title: str
    subject: str
    """What its target is: ``user``, ``group``, ``owner`` (a user or a group), ``node`` ...; it decides the link."""
    phrase: Callable[[Values, Values], Phrase]


ACTIONS: dict[str, Action] = {}
PORTAL = "The portal"
"""The actor of entries that no user caused."""


def action(key: str, area: str, title: str, subject: str) -> Callable[[Callable[[Values, Values], Phrase]], Any]:
    """Register the sentence of an action."""

    def register(phrase: Callable[[Values, Values], Phrase]) -> Callable[[Values, Values], Phrase]:
        ACTIONS[key] = Action(area, title, subject, phrase)
        return phrase

    return register


def simple(key: str, area: str, title: str, subject: str, template: str) -> None:
    """Register a sentence that is the same whatever the values are."""
    ACTIONS[key] = Action(area, title, subject, lambda before, after: Phrase(template))


def phrase_of(key: str, before: Values, after: Values) -> Phrase:
    """Return the sentence of an entry. An action that is not known here is shown by its name."""
    known = ACTIONS.get(key)
    try:
        return known.phrase(before, after) if known else _unknown(key)
    except (TypeError, ValueError, LookupError, AttributeError):  # other values than ours
        return _unknown(key)


def _unknown(key: str) -> Phrase:
    return Phrase("{actor}: {action}, {subject}.", {"action": key.replace(".", " ").replace("_", " ")})


def title_of(key: str) -> str:
    return ACTIONS[key].title if key in ACTIONS else key.replace(".", " ").replace("_", " ").capitalize()


# --- users and groups -------------------------------------------------------------------------------------------


@action("user.join", "Users", "User joined", "user")
def _joined(before: Values, after: Values) -> Phrase:
    return Phrase("{subject} joined as an admin." if after.get("admin") else "{subject} joined the lab.")


@action("user.role", "Users", "Role changed", "user")
def _role(before: Values, after: Values) -> Phrase:
    if "admin" not in after:
        return Phrase("{actor} changed the role of {subject}.")
    return Phrase("{actor} made {subject} an admin." if after["admin"] else "{actor} made {subject} a member.")


@action("user.deactivate", "Users", "User deactivated", "user")
def _deactivated(before: Values, after: Values) -> Phrase:
    revoked = after.get("revoked_tokens")
    if not isinstance(revoked, int) or not revoked:
        return Phrase("{actor} deactivated {subject}.")
    tokens = "API token" if revoked == 1 else "API tokens"
    return Phrase(f"{{actor}} deactivated {{subject}}, which revoked {revoked} {tokens}.")


simple("user.activate", "Users", "User activated again", "user", "{actor} let {subject} sign in again.")
simple(
    "user.reset_link",
    "Users",
    "Password link created",
    "user",
    "{actor} created a link to set a new password of {subject}.",
)
simple("group.create", "Groups", "Group created", "group", "{actor} created the group {subject}.")
simple("group.delete", "Groups", "Group deleted", "group", "{actor} deleted the group {subject}.")


@action("group.members", "Groups", "Members changed", "group")
def _members(before: Values, after: Values) -> Phrase:
    old, new = set(before.get("members", ())), set(after.get("members", ()))
    joined, left = _names(new - old), _names(old - new)
    if joined and left:
        template = "{actor} added {joined} to the group {subject} and removed {left}."
    elif joined:
        template = "{actor} added {joined} to the group {subject}."
    elif left:
        template = "{actor} removed {left} from the group {subject}."
    else:
        template = "{actor} changed the members of the group {subject}."
    return Phrase(template, {"joined": joined, "left": left})


NAMES_SHOWN = 3


def _names(names: set[str]) -> str:
    """Return some names as they stand in a sentence: the first few, and how many more there are."""
    shown = sorted(str(name) for name in names)
    if len(shown) > NAMES_SHOWN + 1:
        shown = [*shown[:NAMES_SHOWN], f"{len(shown) - NAMES_SHOWN} others"]
    return " and ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


@action("limit.set", "Limits", "Limit set", "owner")
def _limit(before: Values, after: Values) -> Phrase:
    if before and not after:
        return Phrase("{actor} removed the limit of {subject}.")
    return Phrase("{actor} changed the limit of {subject}." if before else "{actor} set a limit for {subject}.")


@action("invite.create", "Invitations", "Invitation created", "invite")
def _invited(before: Values, after: Values) -> Phrase:
    email, role = str(after.get("email") or ""), " as an admin" if after.get("makes_admin") else ""
    if email:
        return Phrase(f"{{actor}} invited {{email}}{role}.", {"email": email})
    return Phrase(f"{{actor}} created an invitation{role and ' for an admin'}.")


simple(
    "invite.recovery",
    "Invitations",
    "Set-up link printed again",
    "invite",
    "{actor} printed a link for another admin, for a user of its machine (setup-link --again).",
)


@action("invite.revoke", "Invitations", "Invitation revoked", "invite")
def _uninvited(before: Values, after: Values) -> Phrase:
    if email := str(before.get("email") or ""):
        return Phrase("{actor} revoked the invitation for {email}.", {"email": email})
    return Phrase("{actor} revoked an invitation.")


# --- nodes and GPUs ---------------------------------------------------------------------------------------------


@action("node.join_token", "Nodes", "Join command created", "none")
def _join_command(before: Values, after: Values) -> Phrase:
    waits = "; the node then waits for approval" if after.get("approves") is False else ""
    return Phrase(f"{{actor}} created a join command for a new node{waits}.")


@action("node.joined", "Nodes", "Node joined", "node")
def _node_joined(before: Values, after: Values) -> Phrase:
    waits = " and waits for approval" if after.get("approved") is False else ""
    return Phrase(f"{{subject}} joined the lab{{with_command}}{waits}.")


simple("node.rejoined", "Nodes", "Node rejoined", "node", "{subject} rejoined the lab{with_command}.")
simple(
    "node.rejoin_token",
    "Nodes",
    "Command to rejoin created",
    "node",
    "{actor} created a command with which {subject} joins again.",
)
simple("node.approved", "Nodes", "Node approved", "node", "{actor} approved {subject}.")
simple(
    "node.cordoned",
    "Nodes",
    "Node cordoned",
    "node",
    "{actor} cordoned {subject}: it accepts no new jobs, and running jobs continue.",
)
simple(
    "node.drained",
    "Nodes",
    "Node drained",
    "node",
    "{actor} drained {subject}: it accepts no new jobs, and its jobs restart elsewhere.",
)
simple("node.resumed", "Nodes", "Node resumed", "node", "{actor} let {subject} accept jobs again.")
simple("node.removed", "Nodes", "Node removed", "node", "{actor} removed {subject} from the lab.")
simple(
    "node.token_rotation_asked", "Nodes", "New token requested", "node", "{actor} requested a new token for {subject}."
)
simple("node.token_rotated", "Nodes", "Token renewed", "node", "{actor} gave {subject} a new token.")
simple("node.token_revoked", "Nodes", "Token revoked", "node", "{actor} revoked the token of {subject}.")
simple("gpu.quarantined", "Nodes", "GPU quarantined", "gpu", "{actor} took {subject} out of use.")
simple("gpu.released", "Nodes", "GPU released", "gpu", "{actor} put {subject} back into use.")


# --- scheduling -------------------------------------------------------------------------------------------------


@action("scheduler.policy_switched", "Scheduling", "Policy switched", "policy")
def _switched(before: Values, after: Values) -> Phrase:
    old = str(before.get("policy") or "")
    if old and old == after.get("policy"):
        same = before.get("params") == after.get("params")
        return Phrase("{actor} kept the policy {subject}." if same else "{actor} changed the parameters of {subject}.")
    if old:
        title = str(before.get("title") or old)
        return Phrase("{actor} switched the policy from “{old}” to {subject}.", {"old": title})
    return Phrase("{actor} switched the policy to {subject}.")


simple(
    "scheduler.switch_undone",
    "Scheduling",
    "Policy switch undone",
    "policy",
    "{actor} undid a switch: {subject} is in force again.",
)


@action("reservation.made", "Scheduling", "Reservation made", "reservation")
def _reserved(before: Values, after: Values) -> Phrase:
    if node := str(after.get("node") or ""):
        return Phrase("{actor} made the reservation {subject} on {node}.", {"node": node})
    return Phrase("{actor} made the reservation {subject}.")


simple(
    "reservation.cancelled",
    "Scheduling",
    "Reservation cancelled",
    "reservation",
    "{actor} cancelled the reservation {subject}.",
)


@action("reservation.people", "Scheduling", "Reservation handed over", "reservation")
def _reservation_people(before: Values, after: Values) -> Phrase:
    if left := str(before.get("left") or ""):
        return Phrase("{actor} took {left} out of the reservation {subject}.", {"left": left})
    return Phrase("{actor} changed who the reservation {subject} is for.")


simple("retention.add", "Jobs", "Retention rule added", "retention", "{actor} added {subject}.")
simple("retention.remove", "Jobs", "Retention rule removed", "retention", "{actor} removed {subject}.")
simple("job.delete", "Jobs", "Job deleted", "job", "{actor} moved {subject} to the trash.")
simple("job.restore", "Jobs", "Job restored", "job", "{actor} restored {subject} from the trash.")
simple(
    "job.erase",
    "Jobs",
    "Job deleted for good",
    "job",
    "{actor} had {subject} erased before its time in the trash was over.",
)
simple("job.keep", "Jobs", "Job kept", "job", "{actor} marked {subject} as kept.")
simple("job.stop_keeping", "Jobs", "Job no longer kept", "job", "{actor} decided that {subject} is no longer kept.")


@action("job.time_granted", "Jobs", "More time granted", "job")
def _time_granted(before: Values, after: Values) -> Phrase:
    more = duration(float(after["time_limit_seconds"]) - float(before["time_limit_seconds"]))
    return Phrase("{actor} granted {subject} {more} more.", {"more": more})


@action("job.time_refused", "Jobs", "More time refused", "job")
def _time_refused(before: Values, after: Values) -> Phrase:
    return Phrase("{actor} refused {subject} {more} more.", {"more": duration(float(after["seconds"]))})


# --- the rest ---------------------------------------------------------------------------------------------------


@action("project.hand_over", "Projects", "Project handed over", "project")
def _handed_over(before: Values, after: Values) -> Phrase:
    old, new = (str(values.get("owner") or "") for values in (before, after))
    if old and new:
        return Phrase("{actor} handed {subject} over from {old} to {new}.", {"old": old, "new": new})
    return Phrase("{actor} handed {subject} over.")


simple(
    "project.edited", "Projects", "Project edited", "project", "{actor} changed the name or description of {subject}."
)


@action("wall_link.created", "Lab", "Wall screen created", "wall")
def _wall(before: Values, after: Values) -> Phrase:
    names = " that shows names of people" if after.get("names_people") else ""
    return Phrase(f"{{actor}} created the wall screen {{subject}}{names}.")


simple("wall_link.revoked", "Lab", "Wall screen revoked", "wall", "{actor} revoked the wall screen {subject}.")
simple("webhook.add", "Projects", "Webhook registered", "project", "{actor} registered a webhook of {subject}.")
simple(
    "webhook.change", "Projects", "Webhook changed", "project", "{actor} changed the events of a webhook of {subject}."
)
simple("webhook.remove", "Projects", "Webhook removed", "project", "{actor} removed a webhook of {subject}.")


simple(
    "project.space",
    "Projects",
    "Space of a project limited",
    "project",
    "{actor} changed how much may be stored of {subject}.",
)


@action("project.log_privacy", "Projects", "Use of logs in messages changed", "project")
def _log_privacy(before: Values, after: Values) -> Phrase:
    what = (
        "keeps the logs of {subject} inside the portal"
        if after.get("private")
        else "lets messages quote logs of {subject}"
    )
    return Phrase(f"{{actor}} {what}.")


simple(
    "notifications.settings",
    "Lab",
    "Notifications changed",
    "lab",
    "{actor} changed channels and allowed hosts of {subject}.",
)
simple(
    "notifications.template",
    "Lab",
    "Text of mails changed",
    "other",
    "{actor} changed the mails of the kind “{subject}”.",
)
simple("lab.settings_changed", "Lab", "Lab settings changed", "lab", "{actor} changed {subject}.")


# --- environments -----------------------------------------------------------------------------------------------

simple(
    "environment.create", "Environments", "Environment made", "environment", "{actor} made the environment {subject}."
)
simple(
    "environment.build_again",
    "Environments",
    "Environment built again",
    "environment",
    "{actor} had the environment {subject} built again.",
)
simple(
    "environment.cancel_build",
    "Environments",
    "Build cancelled",
    "environment",
    "{actor} cancelled a build of the environment {subject}.",
)
simple(
    "environment.remove",
    "Environments",
    "Environment removed",
    "environment",
    "{actor} removed the environment {subject}.",
)
simple(
    "environment.settings",
    "Environments",
    "What environments may contain",
    "packages",
    "{actor} changed which {subject} environments may contain.",
)
simple(
    "images.settings",
    "Environments",
    "Which images are allowed",
    "images",
    "{actor} changed which {subject} are allowed.",
)
simple(
    "images.registry",
    "Environments",
    "Sign-in at a registry",
    "registry",
    "{actor} changed how nodes use the registry {subject}.",
)
simple(
    "images.remove_registry",
    "Environments",
    "Registry removed",
    "registry",
    "{actor} removed the sign-in at the registry {subject}.",
)


def _where(values: Values) -> str:
    if project := str(values.get("project") or ""):
        return f"jobs of {project.partition(' ')[2] or project}"
    if environment := str(values.get("environment") or ""):
        return f"jobs with the environment {environment}"
    return "all jobs"


@action("host.allow", "Environments", "Host allowed", "host")
def _allowed(before: Values, after: Values) -> Phrase:
    return Phrase("{actor} allowed {place} to reach {subject}.", {"place": _where(after)})


@action("host.forbid", "Environments", "Host no longer allowed", "host")
def _forbidden(before: Values, after: Values) -> Phrase:
    return Phrase("{actor} no longer allows {place} to reach {subject}.", {"place": _where(before)})


# --- Git --------------------------------------------------------------------------------------------------------


@action("git.bind", "Git", "Repository bound", "project")
def _bound(before: Values, after: Values) -> Phrase:
    values = {"address": str(after["address"]), "branch": str(after["branch"])}
    return Phrase("{actor} bound the project {subject} to the branch {branch} of {address}.", values)


simple(
    "git.unbind", "Git", "Repository unbound", "project", "{actor} unbound the project {subject} from its repository."
)
simple(
    "git.host_key",
    "Git",
    "Host key confirmed",
    "project",
    "{actor} confirmed the host key of the repository of {subject}.",
)
simple(
    "git.new_key", "Git", "Deploy key replaced", "project", "{actor} made a new deploy key for the project {subject}."
)
simple(
    "git.webhook", "Git", "Webhook secret made", "project", "{actor} made a webhook secret for the project {subject}."
)
simple("git.no_webhook", "Git", "Webhook removed", "project", "{actor} removed the webhook of the project {subject}.")
simple("git.cancel", "Git", "Fetch cancelled", "project", "{actor} cancelled a fetch of the project {subject}.")
simple("git_host.allow", "Git", "Git host allowed", "githost", "{actor} allowed projects to fetch code from {subject}.")
simple(
    "git_host.forbid", "Git", "Git host no longer allowed", "githost", "{actor} no longer allows code from {subject}."
)


# --- secrets ----------------------------------------------------------------------------------------------------

simple("secret.add", "Secrets", "Secret added", "secret", "{actor} added the {subject}.")
simple("secret.replace", "Secrets", "Secret replaced", "secret", "{actor} replaced the value of the {subject}.")
simple("secret.delete", "Secrets", "Secret deleted", "secret", "{actor} deleted the {subject}.")


from portal.sentences import audit_deletions  # noqa: E402, F401  it registers its sentences here
