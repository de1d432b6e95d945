"""Classes of Django whose type parameters only its stubs know, to derive from: ``class JoinForm(ModelForm[User])``.

While the portal runs, such a base is Django's class itself: ``ModelForm[User]`` is ``ModelForm``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin as ModelAdmin
    from django.contrib.auth.forms import SetPasswordForm as SetPasswordForm
    from django.core.paginator import Paginator as Paginator
    from django.db.models import CharField as CharField
    from django.db.models import TextField as TextField
    from django.forms import ModelChoiceField as ModelChoiceField
    from django.forms import ModelForm as ModelForm
    from django.views.generic import ListView as ListView
    from django.views.generic import UpdateView as UpdateView
else:
    from django.utils.module_loading import import_string

    _PLACES = {
        "CharField": "django.db.models",
        "ListView": "django.views.generic",
        "ModelAdmin": "django.contrib.admin",
        "ModelChoiceField": "django.forms",
        "ModelForm": "django.forms",
        "Paginator": "django.core.paginator",
        "SetPasswordForm": "django.contrib.auth.forms",
        "TextField": "django.db.models",
        "UpdateView": "django.views.generic",
    }

    class _Generic:
        def __init__(self, plain: type) -> None:
            self.plain = plain

        def __getitem__(self, parameters: object) -> type:
            return self.plain

    def __getattr__(name: str) -> _Generic:
        """Import no more than is asked for: models need the fields before Django can load the forms."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _Generic(import_string(f"{_PLACES[name]}.{name}"))
