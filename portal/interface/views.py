"""The glossary, for everyone who is signed in, and the gallery of components, for admins who change pages."""

from types import SimpleNamespace

from django import forms
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.accounts.permissions import admin_required, signed_in
from portal.form_fields import LinesField
from portal.interface.search import find
from portal.search import MAX_CHARACTERS
from portal.sentences.glossary import TERMS
from portal.ui import BADGES


@require_safe
def glossary(request: HttpRequest) -> HttpResponse:
    terms = sorted(TERMS.items(), key=lambda item: item[1].title.casefold())
    return render(request, "interface/glossary.html", {"terms": terms})


@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """Show what matches ``q``: as a page, or only the results, for the dialog that Ctrl-K opens."""
    words = request.GET.get("q", "").replace("\0", "").strip()[:MAX_CHARACTERS]
    template = "interface/_results.html" if "part" in request.GET else "interface/search.html"
    return render(request, template, {"words": words, "found": find(signed_in(request), words)})


class SampleForm(forms.Form):
    """One field of each kind."""

    name = forms.CharField(help_text="Shown in lists.", max_length=40)
    kind = forms.ChoiceField(choices=[("plain", "Plain command"), ("torchrun", "torchrun"), ("horovod", "Horovod")])
    groups = forms.MultipleChoiceField(
        choices=[(str(number), f"Group {number}") for number in range(1, 30)], required=False
    )
    day = forms.DateField(required=False, widget=forms.DateInput(attrs={"type": "date"}))
    note = LinesField(required=False)
    agrees = forms.BooleanField(required=False, label="Restart from the last checkpoint")


@require_safe
@admin_required
def components(request: HttpRequest) -> HttpResponse:
    form = SampleForm({"name": "", "kind": "torchrun", "groups": ["2", "3"]})
    about = {
        "form": form,
        "states": list(BADGES),
        "page": Paginator(range(200), 25).get_page(3),
        "now": timezone.now(),
        "tabs": [SimpleNamespace(title=title, current=title == "Log") for title in ("Overview", "Log", "Files")],
        "tokens": [f"data-{number}" for number in range(1, 9)],
    }
    return render(request, "interface/components.html", about)
