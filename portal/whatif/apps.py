from django.apps import AppConfig


class WhatifConfig(AppConfig):
    name = "portal.whatif"
