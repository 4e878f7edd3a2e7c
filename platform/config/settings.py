"""Django settings."""

SECRET_KEY = "replaced"
INSTALLED_APPS: list[str] = []
