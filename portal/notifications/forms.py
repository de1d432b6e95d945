"""Forms for notifications. They validate; services carry out the changes."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from django import forms
from django.conf import settings

from portal.accounts.models import User
from portal.form_fields import LinesField, RefusableForm
from portal.notifications import channel_types, kinds, templates
from portal.notifications.mail import is_delivered
from portal.notifications.models import Channel, MailTemplate, NotificationSettings, Preferences
from portal.zones import known_zones

MONO = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off", "class": "mono"}
PORTAL, MAIL = "portal", "mail"


@cache
def zone_choices() -> list[tuple[str, str]]:
    return [(name, name) for name in sorted(known_zones())]


class ClockField(forms.TimeField):
    """A time of day by the reader's clock, to the minute."""

    widget = forms.TimeInput(attrs={"type": "time"}, format="%H:%M")


class PreferencesForm(forms.Form):
    """Which kinds a person wants where, when messages are sent, and when not. ``places`` has a field for each column."""

    digest = forms.ChoiceField(
        label="Messages outside the portal",
        choices=Preferences.Digest.choices,
        widget=forms.RadioSelect,
        help_text="Several notices become one message. Webhooks get each at once.",
    )
    digest_at = ClockField(label="Time of the daily message", required=False)
    quiet_from = ClockField(label="Quiet from", required=False)
    quiet_until = ClockField(label="Quiet until", required=False)
    zone = forms.ChoiceField(label="Time zone", widget=forms.Select(attrs={"data-searchable": ""}))

    def __init__(self, user: User, channels: Sequence[Channel], zone: str, data: Any = None) -> None:
        row = self.row = Preferences.of(user.pk)
        if data is not None and not row.zone:
            zone = str(data.get("zone", zone))  # nothing is stored: what the page showed was the browser's
        self.kinds = kinds.kinds_for(user.is_admin)
        off = {PORTAL: row.portal_off, MAIL: row.mail_off, **{f"channel_{each.pk}": each.off for each in channels}}
        names = ("digest", "digest_at", "quiet_from", "quiet_until")
        initial = {name: getattr(row, name) for name in names} | {"zone": row.zone or zone or settings.TIME_ZONE}
        for name, kinds_off in off.items():
            initial[name] = [kind.key for kind in self.kinds if kind.key not in kinds_off]
        super().__init__(data, initial=initial)
        zones = self.fields["zone"]
        assert isinstance(zones, forms.ChoiceField)  # noqa: S101  # for mypy
        zones.choices = zone_choices()
        choices = [(kind.key, kind.title) for kind in self.kinds]
        titles = {PORTAL: "Portal", MAIL: "Mail", **{f"channel_{each.pk}": each.name for each in channels}}
        self.places = list(off)
        for name in off:
            self.fields[name] = forms.MultipleChoiceField(
                choices=choices, required=False, label=titles[name], disabled=name == MAIL and not is_delivered()
            )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if (cleaned.get("quiet_from") is None) != (cleaned.get("quiet_until") is None):
            self.add_error("quiet_until", "Fill in both times, or neither.")
        if cleaned.get("digest") == Preferences.Digest.DAY and not cleaned.get("digest_at") and "digest_at" in cleaned:
            self.add_error("digest_at", "Fill in the time at which the message of a day is sent.")
        return cleaned

    @property
    def columns(self) -> list[forms.BoundField]:
        return [self[name] for name in self.places]

    @property
    def rows(self) -> list[tuple[kinds.Kind, list[tuple[forms.BoundField, bool]]]]:
        """The table: for each kind, whether each place has it."""
        chosen = {column.name: set(column.value() or ()) for column in self.columns}
        return [(kind, [(column, kind.key in chosen[column.name]) for column in self.columns]) for kind in self.kinds]

    def off(self, place: str) -> list[str]:
        return [kind.key for kind in self.kinds if kind.key not in self.cleaned_data[place]]

    def values(self) -> dict[str, Any]:
        """Return the columns of ``Preferences``."""
        names = ("digest", "digest_at", "quiet_from", "quiet_until", "zone")
        own = {name: self.cleaned_data[name] for name in names}
        own["digest_at"] = own["digest_at"] or self.row.digest_at
        return own | {"portal_off": self.off(PORTAL), "mail_off": self.off(MAIL)}


class ChannelForm(RefusableForm):
    """A new channel of one type. Secrets are never shown again."""

    name = forms.CharField(max_length=80, required=False, help_text="Left empty, it is the name of the host.")

    def __init__(self, type: channel_types.ChannelType, data: Any = None) -> None:
        super().__init__(data)
        for each in type.fields:
            widget = forms.PasswordInput(attrs={**MONO, "autocomplete": "new-password"}, render_value=False)
            self.fields[each.name] = forms.CharField(
                label=each.label,
                help_text=each.help,
                required=each.required,
                initial=each.initial,
                max_length=2000,
                widget=widget if each.secret and each.name == "token" else forms.TextInput(attrs=MONO),
            )


EVENT_CHOICES = [(name, f"{name}: {help}") for name, help in kinds.EVENTS.items()]


class WebhookForm(RefusableForm):
    """A URL that receives events."""

    url = forms.CharField(label="URL", max_length=2000, help_text="https://…", widget=forms.TextInput(attrs=MONO))
    name = forms.CharField(max_length=80, required=False, help_text="Left empty, it is the name of the host.")
    events = forms.MultipleChoiceField(
        choices=EVENT_CHOICES, widget=forms.CheckboxSelectMultiple, initial=["job.started", "job.ended"]
    )


class EventsForm(RefusableForm):
    events = forms.MultipleChoiceField(
        label="Send a request when", choices=EVENT_CHOICES, widget=forms.CheckboxSelectMultiple
    )

    @classmethod
    def of(cls, row: Channel, data: Any = None) -> "EventsForm":
        return cls(data, initial={"events": row.events})


class SettingsForm(RefusableForm):
    """What admins decide about notifications."""

    channel_types = forms.MultipleChoiceField(
        label="Channels that people may add",
        choices=Channel.Type.choices,
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    allowed_hosts = LinesField(
        label="Allowed hosts",
        required=False,
        max_length=20_000,
        widget=forms.Textarea(attrs={"rows": 4, **MONO}),
        help_text="Names or addresses without a port, one on each line. Messages may go to these hosts although they are in the "
        "local network, to any port, and without encryption. All other hosts must have a public address.",
    )
    apprise_schemes = LinesField(
        label="Schemes of apprise",
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2, **MONO}),
        help_text="For the URLs that admins enter, one on each line, such as pover.",
    )
    long_wait_minutes = forms.IntegerField(label="A wait is long after (minutes)", min_value=0, max_value=100_000)
    log_lines_leave = forms.BooleanField(
        required=False,
        label="Messages quote logs",
        help_text="The cause of a failure and the last lines, in mails and channels, except of projects that keep them inside.",
    )

    @classmethod
    def of(cls, row: NotificationSettings, data: Any = None) -> "SettingsForm":
        initial = {
            "channel_types": row.enabled_types,
            "allowed_hosts": "\n".join(row.allowed_hosts),
            "apprise_schemes": "\n".join(row.apprise_schemes),
            "long_wait_minutes": row.long_wait_minutes,
            "log_lines_leave": row.log_lines_leave,
        }
        return cls(data, initial=initial)

    def values(self) -> dict[str, Any]:
        data = self.cleaned_data
        lines = {name: data[name].split() for name in ("allowed_hosts", "apprise_schemes")}
        return {**data, **lines}


class TemplateForm(RefusableForm):
    """The subject and the first lines of the mails of a kind."""

    subject = forms.CharField(max_length=templates.MAX_SUBJECT, required=False)
    intro = LinesField(label="First lines", max_length=2000, required=False, widget=forms.Textarea(attrs={"rows": 3}))

    @classmethod
    def of(cls, row: MailTemplate, data: Any = None) -> "TemplateForm":
        return cls(data, initial={"subject": row.subject, "intro": row.intro})
