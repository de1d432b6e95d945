from django.apps import AppConfig
from django.db.backends.signals import connection_created

from portal import search


class AccountsConfig(AppConfig):
    name = "portal.accounts"

    def ready(self) -> None:
        search.register()
        connection_created.connect(search.add_function, dispatch_uid="search")
