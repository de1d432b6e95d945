"""Forms for environments: a new one, and what environments may contain."""

from typing import Any

from django import forms

from portal.accounts.models import User
from portal.environments.models import Environment, PackageSettings
from portal.environments.package_input import FILE_NAMES, PackageInput, read_input
from portal.environments.services import PYTHON_VERSIONS, PackageRequest, bases, may_build_from_source
from portal.form_fields import LinesField, RefusableForm
from portal.projects.models import Membership, Project
from portal.projects.package_lists.collecting import MAX_BYTES, TOO_LARGE
from portal.projects.package_lists.sources import AddressError, check_prefix
from portal.projects.package_lists.texts import decode

FULL = "full"
"""The choice of a full environment among the bases."""
LAB = "lab"
MAX_TYPED = 20_000
MAX_SOURCES = 50
MAX_MENU_PROJECTS = 500


class PlaceForm(RefusableForm):
    """A form for an environment of a project or of the whole lab."""

    project = forms.ChoiceField(label="For", help_text="Only jobs of this project can use it.")

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: Any = self.fields
        fields["project"].choices = places(user)

    def place(self) -> Project | None:
        """Return the project of a valid form; None for the whole lab."""
        chosen = self.cleaned_data["project"]
        return None if chosen == LAB else Project.objects.get(pk=int(chosen))


class NewEnvironmentForm(PlaceForm):
    """A new environment. The text of a chosen file comes back in ``file_text``: a browser sends a file only once."""

    title = forms.CharField(
        max_length=120, required=False, help_text="Left empty, it is made from the base and packages."
    )
    base = forms.ChoiceField(label="Based on")
    python = forms.ChoiceField(
        label="Python",
        required=False,
        help_text="For a full environment only; others have the Python of their base.",
    )
    horovod = forms.BooleanField(
        label="With Horovod, compiled for its torch",
        required=False,
        help_text="For a full environment whose list has torch. It takes a node about 15 minutes more.",
    )
    packages = LinesField(
        max_length=MAX_TYPED,
        required=False,
        help_text="One on each line, for example rich or pandas>=2; or a pip install command as you would type it.",
        widget=forms.Textarea(attrs={"rows": 7, "spellcheck": "false", "autocapitalize": "none", "class": "mono"}),
    )
    file = forms.FileField(
        required=False, label="Or a file", help_text=f"A {FILE_NAMES}, at most {MAX_BYTES // 1024} KiB."
    )
    file_name = forms.CharField(max_length=255, required=False, widget=forms.HiddenInput)
    file_text = LinesField(max_length=MAX_BYTES, required=False, strip=False, widget=forms.HiddenInput)
    source_builds = forms.BooleanField(
        label="Build packages that have no wheel from source",
        required=False,
        help_text="This runs code of these packages on a node, confined and without access to other files.",
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(user, *args, **kwargs)
        fields: Any = self.fields
        self.bases = {row.key: row for row in bases()}
        fields["base"].choices = [
            *((key, row.title) for key, row in self.bases.items()),
            (FULL, "Full environment: all packages from my list"),
        ]
        fields["python"].choices = [("", "That of the nodes"), *((each, each) for each in PYTHON_VERSIONS)]
        if not may_build_from_source(user):
            del fields["source_builds"]

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file is not None and (file.size or 0) > MAX_BYTES:
            raise forms.ValidationError(TOO_LARGE)
        return file

    def clean(self) -> dict[str, Any]:
        super().clean()
        data = self.cleaned_data
        file = data.get("file")
        if file is not None:
            data["file_name"], data["file_text"] = file.name, decode(file.read()).replace("\0", "\ufffd")
        if data.get("base") != FULL:
            for name in ("python", "horovod"):
                if data.get(name):
                    self.add_error(name, "Only a full environment has it: choose that as the base, or leave this out.")
        return data

    def understood(self) -> PackageInput:
        """Return the packages that a valid form asks for."""
        data = self.cleaned_data
        allowed = PackageSettings.current().allowed_sources
        return read_input(data["packages"], data["file_name"], data["file_text"], allowed)

    def request(self, understood: PackageInput) -> PackageRequest:
        data = self.cleaned_data
        return PackageRequest(
            lines=understood.lines,
            constraints=understood.constraints,
            indexes=understood.indexes,
            base=self.bases.get(data["base"]),
            python=data["python"],
            horovod=data["horovod"],
            source_builds=data.get("source_builds", False),
        )


def places(user: User) -> list[tuple[str, str]]:
    """Return where a user may make environments."""
    projects = Project.objects.filter(archived_at=None).order_by("name")
    if not user.is_admin:
        roles = (Membership.Role.OWNER, Membership.Role.MEMBER)
        projects = projects.filter(memberships__user=user, memberships__role__in=roles)
    named = [(str(pk), name) for pk, name in projects.values_list("pk", "name")[:MAX_MENU_PROJECTS]]
    return [*named, *([(LAB, "The whole lab")] if user.is_admin else [])]


class PackageSettingsForm(forms.Form):
    """What environments may contain."""

    allowed_sources = LinesField(
        label="Allowed sources",
        max_length=10_000,
        required=False,
        help_text="The beginning of an address on each line, such as https://download.example.org/whl/ or "
        "http://devpi.example.org:3141/.",
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "class": "mono"}),
    )
    source_builds = forms.BooleanField(
        label="Members may have packages built from source", required=False, help_text="Admins may in any case."
    )

    @classmethod
    def of(cls, row: PackageSettings, data: Any = None) -> "PackageSettingsForm":
        initial = {"allowed_sources": "\n".join(row.allowed_sources), "source_builds": row.source_builds}
        return cls(data, initial=initial)

    def clean_allowed_sources(self) -> str:
        """Return the addresses in canonical form, each once."""
        found: dict[str, None] = {}
        for number, line in enumerate(self.cleaned_data["allowed_sources"].splitlines(), 1):
            if not line.strip():
                continue
            try:
                found[check_prefix(line.strip())] = None
            except AddressError as error:
                raise forms.ValidationError(f"Line {number}: {error}") from None
        if len(found) > MAX_SOURCES:
            raise forms.ValidationError(f"At most {MAX_SOURCES} addresses.")
        return "\n".join(found)


def choose_place(user: User, project: str) -> dict[str, Any]:
    """Return the initial values of the form for a link that names a project."""
    keys = [key for key, _ in places(user)]
    base: Environment | None = next(iter(bases()), None)
    return {"project": project if project in keys else "", "base": base.key if base else FULL}
