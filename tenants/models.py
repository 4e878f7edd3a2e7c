"""Users, tenants, memberships, API keys and the audit log. Writes live in `services`."""

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator
from django.db import models

from tenants.ids import uuid7_now
from tenants.scoping import Tenancy, TenantModel


class User(AbstractUser):
    """A person who signs in. Staff are operators; what others may see, their memberships say."""

    tenancy: ClassVar[Tenancy] = "global"

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)


class Tenant(TenantModel):
    """A customer: the root of every quota, bill and cache key.

    `zero_retention`: no text of theirs is kept, not even for a replay. `max_output_tokens` bounds a request.
    """

    tenant_field: ClassVar[str] = "id"

    class Status(models.TextChoices):
        ACTIVE = "active"
        SUSPENDED = "suspended"
        CLOSED = "closed"  # for good: the data key is destroyed

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    zero_retention = models.BooleanField(default=False, help_text="Keep no answer, not even for a replay.")
    max_output_tokens = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Of one request. Empty: no bound."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("slug",)
        constraints = (
            models.CheckConstraint(
                name="tenant_status_known", condition=models.Q(status__in=("active", "suspended", "closed"))
            ),
            models.CheckConstraint(
                name="tenant_output_positive", condition=models.Q(max_output_tokens__gt=0)
            ),
        )

    def __str__(self) -> str:
        return self.name


class TenantDataKey(TenantModel):
    """A tenant's data key, wrapped by a master key (see `data_keys`). A closed tenant has none any more."""

    tenant = models.OneToOneField(Tenant, on_delete=models.PROTECT, primary_key=True, related_name="data_key")
    master_key_id = models.CharField(max_length=16)
    wrapped = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("tenant",)

    def __str__(self) -> str:
        return f"data key of {self.tenant_id}"


class Member(TenantModel):
    """What a user may do for a tenant."""

    class Role(models.TextChoices):
        OWNER = "owner"
        DEVELOPER = "developer"
        BILLING = "billing"
        VIEWER = "viewer"

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="members", db_index=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at",)
        constraints = (
            models.UniqueConstraint(fields=("tenant", "user"), name="member_once_per_tenant"),
            models.CheckConstraint(
                name="member_role_known",
                condition=models.Q(role__in=("owner", "developer", "billing", "viewer")),
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} ({self.role})"


class ApiKey(TenantModel):
    """An issued key, of which only a keyed digest is kept. `allowed_models` null: every model.

    `max_open_requests` bounds how many of its requests are served at a time; null: the gateway's own bound.
    """

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=200)
    public_id = models.CharField(max_length=8, unique=True)
    digest = models.BinaryField(unique=True)
    pepper_version = models.PositiveSmallIntegerField(default=1)
    last4 = models.CharField(max_length=4)
    scopes = ArrayField(models.CharField(max_length=40))
    allowed_models = ArrayField(models.CharField(max_length=200), null=True, blank=True)
    max_open_requests = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: no bound of its own."
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)
        verbose_name = "API key"
        constraints = (
            models.CheckConstraint(name="key_requests_positive", condition=models.Q(max_open_requests__gt=0)),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id}…{self.last4})"


class AuditEntry(TenantModel):
    """Who did what to whom, append-only and hash-chained per tenant. No tenant: the platform's own chain."""

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, null=True, related_name="audit_entries", db_index=False
    )
    sequence = models.PositiveBigIntegerField()
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=80)
    target = models.CharField(max_length=255)
    diff = models.TextField(default="{}")  # canonical JSON: the very text that is hashed
    request_id = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField()
    prev_hash = models.BinaryField(max_length=32)
    entry_hash = models.BinaryField(max_length=32)

    class Meta:
        ordering = ("-created_at", "-sequence")
        verbose_name_plural = "audit entries"
        # For operators, who read all chains, newest first; a tenant's own are found by the constraint's.
        indexes = (models.Index(fields=("created_at",), name="audit_created"),)
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "sequence"), name="audit_sequence_once", nulls_distinct=False
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} {self.target}"
