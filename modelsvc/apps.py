"""Django app: which models exist, in which versions, and which version requests run on."""

from django.apps import AppConfig


class ModelsvcConfig(AppConfig):
    name = "modelsvc"
    verbose_name = "Models"
