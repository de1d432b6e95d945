from django.apps import AppConfig


class ClusterConfig(AppConfig):
    name = "portal.cluster"

    def ready(self) -> None:
        from portal.accounts.services import person_will_be_added
        from portal.cluster import unconfined

        person_will_be_added.connect(unconfined.check_person_can_be_added, dispatch_uid="unconfined")
