from django.urls import URLPattern, URLResolver, path

from portal.forecast import extension_views, views

app_name = "forecast"
urlpatterns: list[URLPattern | URLResolver] = [
    path("jobs/<int:pk>/help", views.what_helps, name="help"),
    path("jobs/<int:pk>/change", views.change, name="change"),
    path("jobs/<int:pk>/more-time", extension_views.more_time, name="more-time"),
    path("jobs/<int:pk>/more-time/withdraw", extension_views.withdraw, name="withdraw-more-time"),
    path("admin/more-time/", extension_views.time_requests, name="time-requests"),
    path("admin/more-time/<int:pk>/decide", extension_views.decide, name="decide-time-request"),
    path("admin/more-time/<int:pk>/forecast", extension_views.forecast_again, name="forecast-time-request"),
]
