"""Forms for the repository of a project, and for the hosts that admins allow."""

from typing import Any

from django import forms

from portal.form_fields import RefusableForm
from portal.host_names import MAX_TYPED
from portal.projects.git.addresses import MAX_ADDRESS, MAX_BRANCH
from portal.projects.git.hosts import MAX_NOTE
from portal.projects.git.models import GitHost, GitSource
from portal.projects.git.sources import MAX_TOKEN, SourceRequest

MONO = {"spellcheck": "false", "autocapitalize": "none", "class": "mono"}


class SourceForm(RefusableForm):
    """What a project is bound to. A stored token is never shown again; an empty field keeps it."""

    address = forms.CharField(
        max_length=MAX_ADDRESS,
        help_text="The one under “Clone”: https://github.com/lab/train.git, or git@github.com:lab/train.git for a deploy key.",
        widget=forms.TextInput(attrs=MONO),
    )
    branch = forms.CharField(max_length=MAX_BRANCH, initial="main", widget=forms.TextInput(attrs=MONO))
    user = forms.CharField(
        max_length=200,
        required=False,
        help_text="Most hosts ignore it; GitLab's deploy tokens have one.",
        widget=forms.TextInput(attrs={"autocomplete": "off", **MONO}),
    )
    token = forms.CharField(
        max_length=MAX_TOKEN,
        required=False,
        strip=False,
        help_text="For a private repository by https: one that may only read it. It is stored encrypted and never shown.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    forget_token = forms.BooleanField(label="Forget the stored token", required=False)
    extras = forms.BooleanField(
        label="Fetch submodules and files of Git LFS, too",
        required=False,
        help_text="Where an admin allowed them. Without this they are left out, and the version names them.",
    )

    def __init__(self, *args: Any, has_token: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not has_token:
            del self.fields["forget_token"]
        else:
            self.fields["token"].help_text = "One is stored. Enter another one to replace it."

    @classmethod
    def of(cls, source: GitSource | None, data: Any = None) -> "SourceForm":
        if source is None:
            return cls(data)
        initial = {name: getattr(source, name) for name in ("address", "branch", "extras")}
        return cls(data, initial=initial | {"user": source.user}, has_token=bool(source.sealed_token))

    def request(self) -> SourceRequest:
        data = self.cleaned_data
        kept = data["token"] or ("" if data.get("forget_token") else None)
        return SourceRequest(data["address"], data["branch"], data["user"], kept, data["extras"])


class GitHostForm(RefusableForm):
    host = forms.CharField(
        label="Host",
        max_length=MAX_TYPED,
        help_text="github.com, *.example.org for all names below it, or git.example.org:2222 for another port than 443 and 22.",
        widget=forms.TextInput(attrs=MONO),
    )
    kind = forms.ChoiceField(
        label="Software",
        choices=GitHost.Kind.choices,
        initial=GitHost.Kind.OTHER,
        help_text="For links to the pages of commits. Those of public hosts are known.",
    )
    internal = forms.BooleanField(
        label="It is in the local network",
        required=False,
        help_text="Without this, nodes do not contact a name whose address is a private one.",
    )
    extras = forms.BooleanField(
        label="Submodules and files of Git LFS may come from it",
        required=False,
        help_text="Owners of projects switch them on. Hosts that keep the files of Git LFS need their own row.",
    )
    note = forms.CharField(max_length=MAX_NOTE, required=False)
