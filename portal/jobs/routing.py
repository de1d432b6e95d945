from django.urls import re_path

from portal.jobs.consumers import LogConsumer

websocket_urlpatterns = [re_path(r"^ws/jobs/(?P<job_id>[0-9]{1,18})/log/$", LogConsumer.as_asgi())]
