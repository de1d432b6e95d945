from django.apps import AppConfig


class ClusterConfig(AppConfig):
    name = "portal.cluster"

    def ready(self) -> None:
        from portal.accounts.services import another_person
        from portal.cluster import unconfined

        another_person.connect(unconfined.check_another_person, dispatch_uid="unconfined")
