"""Django settings. Every value from outside comes through `config.environment`.

Without any SLUICE_ variable set, management commands such as `check` and `makemigrations` still work;
`config.asgi` and the Celery worker refuse to start (`environment.serving_require`).
"""

import os
import secrets
from pathlib import Path
from typing import Any

from celery.schedules import crontab

from config import environment
from config.databases import database_settings
from console import branding

ROOT = Path(__file__).resolve().parents[2]

# A random key per process signs nothing that another process accepts: harmless where the real one is absent.
SECRET_KEY = os.environ.get("SLUICE_SECRET_KEY") or secrets.token_urlsafe(64)
DEBUG = environment.debug()
ALLOWED_HOSTS = environment.allowed_hosts()

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "tenants",
    "billing",
    "modelsvc",
    "console",
    "devservices",
    "config",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.middleware.StaticFilesMiddleware",
    "config.middleware.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "config.middleware.OperatorScopeMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "frontend" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# Services own their transactions; ATOMIC_REQUESTS stays off (it refuses async views).
DATABASES: dict[str, dict[str, Any]] = {
    "default": database_settings(os.environ.get("SLUICE_DB_APP"), variable="SLUICE_DB_APP"),
    "operator": database_settings(os.environ.get("SLUICE_DB_OPERATOR"), variable="SLUICE_DB_OPERATOR"),
}
if owner_url := environment.owner_database_url():
    DATABASES["owner"] = database_settings(owner_url, variable="SLUICE_DB_OWNER", pooled=False)
DATABASE_ROUTERS = ["config.db_router.RoleRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("REDIS_URL") or "redis://redis-url-is-not-set.invalid:6379/0"
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "sluice-channels", "capacity": 100, "expiry": 10},
    }
}

AUTH_USER_MODEL = "tenants.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "/console/login/"
LOGIN_REDIRECT_URL = "/console/"

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Strict"
SESSION_COOKIE_AGE = 12 * 3600
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Strict"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SECURE_HTTPS = environment.https()
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = SECURE_HTTPS
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if SECURE_HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE_HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if environment.behind_tls_proxy() else None

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

# Served by whitenoise straight from the source folders: no collect step, on a laptop as in production.
STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "frontend" / "static"]
WHITENOISE_USE_FINDERS = True

UNFOLD = branding.UNFOLD

CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True  # tasks are idempotent: one that died with its worker runs again
CELERY_TASK_TIME_LIMIT = 600
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(environment.state_dir() / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "sessions-clear": {"task": "tenants.tasks.sessions_clear", "schedule": crontab(minute="17", hour="3")},
    "ledger-verify": {"task": "billing.tasks.ledger_verify", "schedule": crontab(minute="23")},
    "idempotency-expire": {"task": "billing.tasks.idempotency_expire", "schedule": crontab(minute="*/10")},
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "config.log_format.OneLineFormatter",
            "fmt": "%(asctime)s %(levelname)s %(process)d %(name)s %(message)s",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {"django": {"handlers": [], "level": "INFO", "propagate": True}},
}
