from django.urls import re_path

from portal.jobs.consumers import LogConsumer, RefusingConsumer

websocket_urlpatterns = [
    re_path(r"^ws/jobs/(?P<job_id>[0-9]{1,18})/log/$", LogConsumer.as_asgi()),
    re_path(r"", RefusingConsumer.as_asgi()),
]
