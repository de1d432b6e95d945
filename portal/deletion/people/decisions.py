"""What erasing a person does with each relation to a user and each text of the database.

``tests/portal/deletion/test_decisions.py`` fails for a relation or a text that is not here: whoever adds one decides.
"""

from enum import Enum


class Relation(Enum):
    """What becomes of a row that refers to the person."""

    DELETE = "the row is deleted"
    KEEP = "the row stays, and shows the pseudonym"
    LEAVE = "the person is taken out"


RELATIONS = {
    Relation.DELETE: {
        "accounts.ApiToken.user", "accounts.Limit.user", "accounts.ListColumns.user", "accounts.SavedView.user",
        "projects.Membership.user", "secrets.Secret.user", "jobs.IdempotencyKey.user", "notifications.Preferences.user",
        "notifications.MutedProject.user", "notifications.Channel.owner", "notifications.Notice.user",
        "schedules.Schedule.owner", "storage.Upload.owner", "home.SeenFailures.user",
    },
    Relation.KEEP: {
        "admin.LogEntry.user", "accounts.Invite.created_by", "accounts.Invite.used_by", "accounts.AuditEntry.actor",
        "cluster.JoinToken.created_by", "cluster.Reservation.created_by", "projects.Project.created_by",
        "projects.Project.deleted_by", "projects.CodeVersion.created_by", "projects.CodeVersion.deleted_by",
        "projects.GitHost.created_by", "projects.GitSource.bound_by", "projects.GitSource.access_by",
        "projects.GitFetch.requested_by", "environments.Environment.created_by", "environments.Build.cancelled_by",
        "environments.AllowedHost.created_by", "storage.Dataset.owner", "storage.DatasetVersion.created_by",
        "environments.Registry.changed_by", "secrets.Secret.changed_by",
        "jobs.RetentionRule.created_by", "jobs.TimeExtension.asked_by", "jobs.TimeExtension.decided_by",
        "jobs.Job.submitted_by", "jobs.Job.deleted_by", "jobs.JobEvent.actor", "usage.ShareWeight.user",
        "usage.LedgerDay.user", "usage.UsageDay.user", "control.SchedulerConfig.created_by",
        "whatif.Simulation.created_by", "home.WallLink.created_by", "deletion.Erasure.user", "deletion.Erasure.by",
    },
    Relation.LEAVE: {"cluster.Reservation.users", "accounts.User.groups"},
}  # fmt: skip
"""By ``app.Model.field``. A channel of a project stays; only those of the person alone are deleted."""


class Text(Enum):
    """What becomes of a text."""

    CLEARED = "emptied in the rows of the person"
    RENAMED = "the name of the person is replaced by the pseudonym, in all rows"
    GONE = "the rows of the person are deleted"
    CONTENT = "belongs to a project, or to a job: it goes with these, and stays with them"
    PLAIN = "has no name of a person: made by the portal, or about machines and the lab"


TEXTS: dict[str, dict[Text, str]] = {
    "admin.LogEntry": {Text.RENAMED: "object_repr", Text.PLAIN: "object_id change_message"},
    "auth.Permission": {Text.PLAIN: "name codename"},
    "auth.Group": {Text.PLAIN: "name"},
    "contenttypes.ContentType": {Text.PLAIN: "app_label model"},
    "sessions.Session": {Text.GONE: "session_key session_data"},
    "axes.AccessFailureLog": {Text.GONE: "user_agent username http_accept path_info"},
    "axes.AccessAttempt": {Text.GONE: "user_agent username http_accept path_info get_data post_data"},
    "axes.AccessLog": {Text.GONE: "user_agent username http_accept path_info session_hash"},
    "accounts.User": {Text.CLEARED: "password username first_name last_name name_key email session_salt"},
    "accounts.GroupName": {Text.PLAIN: "name_key"},
    "accounts.Invite": {Text.CLEARED: "email", Text.PLAIN: "token_digest"},
    "accounts.ApiToken": {Text.GONE: "name prefix token_digest"},
    "accounts.AuditEntry": {Text.RENAMED: "target before after", Text.PLAIN: "action"},
    "accounts.ListColumns": {Text.GONE: "list columns"},
    "accounts.SavedView": {Text.GONE: "list name query"},
    "cluster.JoinToken": {Text.PLAIN: "token_digest"},
    "cluster.Node": {
        Text.PLAIN: "name token_digest next_token_digest boot facts problems report_digest",
    },
    "cluster.Gpu": {Text.RENAMED: "quarantine_reason", Text.PLAIN: "uuid model problem links outside fault"},
    "cluster.Reservation": {Text.PLAIN: "name gpu_model"},
    "projects.Project": {Text.CONTENT: "name description"},
    "projects.CodeVersion": {Text.CONTENT: "sha256 files guess upload_name note"},
    "projects.GitHost": {Text.PLAIN: "host note"},
    "projects.GitSource": {
        Text.CLEARED: "user sealed_token",
        Text.CONTENT: "address branch sealed_key public_key host_key offered_host_key hook sealed_secret",
    },
    "projects.GitFetch": {Text.RENAMED: "message", Text.CONTENT: "address branch commit", Text.PLAIN: "node_name"},
    "projects.VersionCommit": {Text.CONTENT: "commit repository branch author subject url"},
    "environments.Environment": {
        Text.CONTENT: "key title description packages lines pins constraints indexes python image recipe",
    },
    "environments.NodeEnvironment": {Text.PLAIN: "detail digest"},
    "environments.Lock": {Text.PLAIN: "digest kind text modules facts archive_sha256"},
    "environments.Build": {Text.RENAMED: "message", Text.PLAIN: "recipe kind node_name"},
    "environments.AllowedHost": {Text.PLAIN: "host note"},
    "environments.PackageSettings": {Text.PLAIN: "allowed_sources"},
    "environments.ImageSettings": {Text.PLAIN: "allowed"},
    "environments.Registry": {Text.PLAIN: "host user sealed_token"},
    "secrets.Secret": {Text.GONE: "name sealed"},
    "storage.Dataset": {Text.CONTENT: "name title description licence"},
    "storage.DatasetVersion": {Text.CONTENT: "note notes sha256", Text.PLAIN: "refusal"},
    "storage.Upload": {Text.GONE: "path expected_sha256 sha256"},
    "jobs.IdempotencyKey": {Text.GONE: "key body_sha256"},
    "jobs.NetworkUse": {Text.CONTENT: "hosts"},
    "jobs.RankGroup": {Text.PLAIN: "hosts"},
    "jobs.TimeExtension": {Text.CLEARED: "reason answer", Text.PLAIN: "delays"},
    "jobs.MetricPoint": {Text.CONTENT: "name"},
    "jobs.Progress": {Text.CONTENT: "per_rank"},
    "jobs.StepStat": {Text.CONTENT: "kind"},
    "jobs.Job": {
        Text.CONTENT: "name tags description entry arguments env_vars secrets search_text",
        Text.RENAMED: "waiting_reason",
        Text.PLAIN: "gpu_models",
    },
    "jobs.Attempt": {Text.CONTENT: "cause", Text.PLAIN: "secret policy allowed_hosts"},
    "jobs.Container": {Text.CONTENT: "spec", Text.PLAIN: "name exit_reason detail"},
    "jobs.JobEvent": {Text.RENAMED: "text data", Text.PLAIN: "kind"},
    "jobs.LogStream": {Text.PLAIN: "name label folder"},
    "jobs.JobDataset": {Text.CONTENT: "name path"},
    "jobs.Output": {Text.CONTENT: "path sha256"},
    "jobs.CheckpointSet": {Text.CONTENT: "files"},
    "usage.UsageDay": {Text.PLAIN: "waits"},
    "gauges.Sample": {Text.PLAIN: "readings"},
    "gauges.Hour": {Text.PLAIN: "minutes"},
    "notifications.Preferences": {Text.GONE: "portal_off mail_off zone"},
    "notifications.Channel": {Text.GONE: "name target sealed_config off events last_error"},
    "notifications.Notice": {Text.RENAMED: "content", Text.GONE: "sealed_mail", Text.PLAIN: "kind event path"},
    "notifications.Delivery": {Text.GONE: "address", Text.PLAIN: "event error"},
    "notifications.NotificationSettings": {Text.PLAIN: "channel_types allowed_hosts apprise_schemes"},
    "notifications.MailTemplate": {Text.PLAIN: "kind subject intro"},
    "notifications.MailStatus": {Text.PLAIN: "last_error"},
    "schedules.Schedule": {Text.GONE: "name entry values weekdays zone pause_reason"},
    "schedules.ScheduleRun": {Text.GONE: "why"},
    "control.SchedulerConfig": {Text.PLAIN: "policy params version snapshot_sha256"},
    "control.Leader": {Text.PLAIN: "holder"},
    "control.PolicyState": {Text.PLAIN: "state"},
    "control.Cycle": {Text.PLAIN: "version snapshot_sha256 dropped error"},
    "forecast.Forecast": {Text.PLAIN: "kinds note trail"},
    "whatif.Simulation": {Text.RENAMED: "result", Text.PLAIN: "policies parts error"},
    "home.WallLink": {Text.PLAIN: "name token_digest"},
    "deletion.Erasure": {Text.CLEARED: "names", Text.PLAIN: "step"},
}
"""By ``app.Model``: its texts, by what becomes of them."""


def with_decision(decision: Text) -> set[str]:
    """Return the texts of a decision, as ``app.Model.field``."""
    return {f"{label}.{name}" for label, texts in TEXTS.items() for name in texts.get(decision, "").split()}
