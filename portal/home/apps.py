from django.apps import AppConfig


class HomeConfig(AppConfig):
    name = "portal.home"

    def ready(self) -> None:
        from portal.home import signals  # noqa: F401  # connects them
