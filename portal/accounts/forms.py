"""Forms for accounts. They validate; services carry out the changes."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, UsernameField
from django.contrib.auth.forms import PasswordResetForm as DjangoPasswordResetForm
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.utils import timezone

from portal.accounts import services
from portal.accounts.limits import MAX_SPACE_GIB
from portal.accounts.mails import send_reset_mail
from portal.accounts.models import ApiToken, LabSettings, Limit, User
from portal.accounts.people import is_name_taken, people_called
from portal.accounts.services import check_password_rules
from portal.form_fields import LinesField
from portal.generics import ModelForm, SetPasswordForm
from portal.names import name_problem
from portal.refused import Refused

MAX_ADDRESS_CHARACTERS = 254
RESET_MAIL_INTERVAL_SECONDS = 60
"""Seconds between two reset mails for the same account."""


class SignInForm(AuthenticationForm):
    """A user name in any case, or an e-mail address, with the password."""

    username = UsernameField(
        label="User name or e-mail address",
        widget=forms.TextInput(attrs={"autofocus": True, "autocomplete": "username"}),
    )
    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "This name or address and this password do not match. Passwords distinguish capital letters.",
    }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Django takes that of user names, and addresses may be longer
        self.fields["username"].widget.attrs["maxlength"] = MAX_ADDRESS_CHARACTERS


class JoinForm(ModelForm[User]):
    """Name and password of a new account. Validated as a User, so that taken names and addresses are rejected."""

    password = forms.CharField(
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="At least 8 characters, not only digits, not a common password.",
    )

    class Meta:
        model = User
        fields = ("username", "email")
        field_classes = {"username": UsernameField}
        labels = {"username": "User name", "email": "E-mail address"}
        help_texts = {
            "username": "Letters, digits and @ . + - _",
            "email": "For notifications and to reset your password.",
        }

    def clean_username(self) -> str:
        name = str(self.cleaned_data["username"])
        if problem := name_problem(name):
            raise forms.ValidationError(problem)
        if is_name_taken(name):
            raise forms.ValidationError("This name is taken.")
        return name

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        user = User(username=cleaned.get("username", ""), email=cleaned.get("email", ""))
        for problem in check_password_rules(cleaned.get("password", ""), user):
            self.add_error("password", problem)
        return cleaned


class ProfileForm(ModelForm[User]):
    class Meta:
        model = User
        fields = ("first_name", "last_name", "email")
        labels = {"first_name": "First name", "last_name": "Last name", "email": "E-mail address"}

    password = forms.CharField(
        required=False,
        strip=False,
        label="Current password",
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
        help_text="Only needed to change the e-mail address, because it can reset your password.",
    )

    def clean(self) -> dict[str, Any]:
        """Require the password for another address, so that an unattended session does not give the account away."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("email", self.initial["email"]) != self.initial["email"]:
            if not cleaned.get("password"):
                self.add_error("password", "Enter your current password to change the e-mail address.")
            elif not self.instance.check_password(cleaned["password"]):
                self.add_error("password", "This is not your current password. Your e-mail address is unchanged.")
        return cleaned

    def save(self, commit: bool = True) -> User:
        """Store only the fields of the form: others, such as the password, may have been changed in the meantime."""
        self.instance.save(update_fields=self.Meta.fields)
        return self.instance


class PasswordResetForm(DjangoPasswordResetForm):
    """The form to reset a password. Its mail is sent in the background, so that the response time does not reveal accounts."""

    def get_users(self, email: str) -> list[User]:
        return [
            user for user in super().get_users(email) if cache.add(f"reset:{user.pk}", 1, RESET_MAIL_INTERVAL_SECONDS)
        ]

    def save(self, *args: Any, **options: Any) -> None:
        """Send the link with SITE_URL as its host, not with the host that the request names."""
        site = settings.SITE_URL.partition("://")
        super().save(*args, **{**options, "domain_override": site[2], "use_https": site[0] == "https"})

    def send_mail(
        self,
        subject_template_name: str,
        email_template_name: str,
        context: dict[str, Any],
        from_email: str | None,
        to_email: str,
        html_email_template_name: str | None = None,
    ) -> None:
        send_reset_mail(
            user_name=context["user"].get_username(), to=to_email, token=context["token"], uid=context["uid"]
        )


class RevokesTokens(forms.Form):
    """A new password leaves scripts their access, unless their tokens are revoked, too."""

    revoke_tokens = forms.BooleanField(required=False, label="Also revoke all API tokens")


class NewPasswordForm(RevokesTokens, SetPasswordForm[User]):
    pass


class ChangePasswordForm(RevokesTokens, PasswordChangeForm):
    pass


class TokenForm(forms.Form):
    LIFETIMES = (("30", "30 days"), ("90", "90 days"), ("365", "one year"), ("0", "does not expire"))

    name = forms.CharField(max_length=80, help_text="What will use it, for example “laptop” or “nightly benchmark”.")
    scope = forms.ChoiceField(choices=ApiToken.Scope.choices, initial=ApiToken.Scope.WRITE, label="Access")
    days = forms.ChoiceField(choices=LIFETIMES, initial="90", label="Valid for")

    def expires_at(self) -> datetime | None:
        days = int(self.cleaned_data["days"])
        return timezone.now() + timedelta(days=days) if days else None


class InviteForm(forms.Form):
    email = forms.EmailField(
        required=False,
        label="E-mail address",
        help_text="The link is mailed there, and the address is filled in for them when they join.",
    )
    groups = forms.ModelMultipleChoiceField(
        Group.objects.order_by("name"), required=False, widget=forms.CheckboxSelectMultiple
    )
    makes_admin = forms.BooleanField(required=False, label="Make this person an admin")


class GroupForm(ModelForm[Group]):
    class Meta:
        model = Group
        fields = ("name",)

    def clean_name(self) -> str:
        try:
            return services.new_group_name(self.cleaned_data["name"])
        except Refused as refusal:
            raise forms.ValidationError(refusal.message) from None


class NamesField(LinesField):
    """User names between spaces, commas or line breaks, in any order. The value is a text with the sorted names."""

    def to_python(self, value: Any) -> str:
        return " ".join(sorted(set((super().to_python(value) or "").replace(",", " ").split())))


class MembersForm(forms.Form):
    """User names as text, because a selection list of all users does not scale."""

    names = NamesField(
        required=False,
        label="Members",
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"}),
        help_text="User names, separated by spaces or line breaks.",
    )

    @classmethod
    def of(cls, group: Group, data: Any = None) -> "MembersForm":
        return cls(data, initial={"names": " ".join(group.user_set.values_list("username", flat=True))})

    def clean_names(self) -> list[User]:
        try:
            return people_called(self.cleaned_data["names"].split(), User.objects.all())
        except Refused as refusal:
            raise forms.ValidationError(refusal.message) from None


class LimitForm(forms.Form):
    @classmethod
    def of(cls, limit: Limit | None, data: Any = None, unit: str = "GPU") -> "LimitForm":
        return cls(data, initial={name: getattr(limit, name) for name in cls.base_fields} if limit else {}, unit=unit)

    max_gpus = forms.IntegerField(min_value=0, max_value=100_000, required=False, help_text="Empty: no limit.")
    max_queued = forms.IntegerField(
        min_value=0,
        max_value=1_000_000,
        required=False,
        label="Waiting jobs",
        help_text=f"Empty: the default of {settings.MAX_WAITING_JOBS:,} for each user.",
    )
    max_space_gib = forms.IntegerField(
        min_value=1,
        max_value=MAX_SPACE_GIB,
        required=False,
        label="Space on the portal, in GiB",
        help_text="For code, datasets, outputs, checkpoints and logs. Empty: the default of the lab for a user, no limit for a group.",
    )
    soft = forms.BooleanField(
        required=False,
        help_text="Only for jobs that are elastic or can restart from a checkpoint; they are the first to lose them.",
    )
    weight = forms.FloatField(
        min_value=0.01,
        max_value=1000,
        initial=1,
        required=False,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text="For policies with fair sharing: a weight of 2 gets twice as much as a weight of 1.",
    )
    premium = forms.BooleanField(
        required=False,
        label="May submit premium jobs",
        help_text="Premium jobs are the last to wait for other jobs or to be stopped for them.",
    )

    def __init__(self, *args: Any, unit: str = "GPU", **options: Any) -> None:
        """``unit`` is what the lab has: GPUs, or CPU slots."""
        super().__init__(*args, **options)
        self.fields["max_gpus"].label = f"{unit}s at once"
        self.fields["soft"].label = f"More {unit}s than the limit while no one else needs them"

    def clean_weight(self) -> float:
        return self.cleaned_data["weight"] or 1.0


class LabSettingsForm(forms.Form):
    @classmethod
    def of(cls, row: LabSettings, data: Any = None) -> "LabSettingsForm":
        return cls(data, initial={name: getattr(row, name) for name in cls.base_fields})

    queue_for_members = forms.BooleanField(
        required=False,
        label="Members see the queue of the whole lab",
        help_text="Who waits, why, and who holds which GPU. Titles of jobs are shown only to those who may see the "
        "project. Otherwise only admins see the queue.",
    )
    hours_granted_by_rule = forms.IntegerField(
        min_value=0,
        max_value=720,
        label="Hours of more time without asking",
        help_text="So many hours in total are granted to each running job as soon as someone asks. With 0 an admin decides "
        "every request.",
    )
    max_space_gib = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_SPACE_GIB,
        label="Space of each user on the portal, in GiB",
        help_text="Whoever has more code, datasets, outputs, checkpoints and logs stored submits no new jobs until some are deleted. "
        "Users with a limit of their own have that instead. Empty: no limit.",
    )
