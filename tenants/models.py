"""Users, tenants, memberships, API keys, quotas and the audit log. Writes live in `services` and `quotas`."""

from decimal import Decimal
from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from tenants.contracts import QUOTA_NAMES, QUOTA_SCOPES, QUOTAS_WITH_BURST
from tenants.ids import uuid7_now
from tenants.scoping import Tenancy, TenantModel

MIN_WEIGHT = Decimal("0.01")
MAX_WEIGHT = Decimal(100)
MAX_QUOTA = 2**53 - 1  # the counters' scripts keep numbers as doubles, exact up to here


class User(AbstractUser):
    """A person who signs in. Staff are operators; what others may see, their memberships say."""

    tenancy: ClassVar[Tenancy] = "global"

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)


class Tenant(TenantModel):
    """A customer: the root of every quota, bill and cache key.

    `zero_retention`: no text of theirs is kept, not even for a replay. `max_output_tokens` bounds a request.
    `weight` is its share against other tenants while there is not enough for all.
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
    weight = models.DecimalField(
        max_digits=5,
        decimal_places=2,
        default=Decimal(1),
        validators=[MinValueValidator(MIN_WEIGHT), MaxValueValidator(MAX_WEIGHT)],
        help_text="Share against other tenants while there is not enough for all: 0.01 to 100.",
    )
    accepts_smaller_model = models.BooleanField(
        default=False, help_text="Under pressure, answered by the model's smaller one instead of refused."
    )
    accepts_batch = models.BooleanField(
        default=False, help_text="Under pressure, turned into a batch job instead of refused."
    )
    continues_streams = models.BooleanField(
        default=False,
        help_text="Where a replica is lost, another one goes on with its streams instead of an error.",
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
            models.CheckConstraint(
                name="tenant_weight_in_range", condition=models.Q(weight__range=(MIN_WEIGHT, MAX_WEIGHT))
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


class Quota(TenantModel):
    """One bound on what a tenant may use: in all, with one of its keys, or of one model.

    `limit` counts tokens, requests, requests at a time or micro-dollars, by `name`. `burst` is what a full
    bucket holds, where that is not one minute's `limit`. `model` is a slug, "" where all models count.
    """

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quotas", db_index=False)
    scope = models.CharField(max_length=8, choices=[(scope, scope) for scope in QUOTA_SCOPES])
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, null=True, blank=True, related_name="quotas")
    model = models.CharField(max_length=200, blank=True, default="")
    name = models.CharField(max_length=24, choices=[(name, name.replace("_", " ")) for name in QUOTA_NAMES])
    limit = models.PositiveBigIntegerField()
    burst = models.PositiveBigIntegerField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("tenant", "scope", "key", "model", "name")
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "scope", "key", "model", "name"), name="quota_once", nulls_distinct=False
            ),
            models.CheckConstraint(name="quota_name_known", condition=models.Q(name__in=QUOTA_NAMES)),
            models.CheckConstraint(
                name="quota_scope_fits",
                condition=models.Q(scope="tenant", key=None, model="")
                | models.Q(scope="key", key__isnull=False, model="")
                | (models.Q(scope="model", key=None) & ~models.Q(model="")),
                violation_error_message="A quota is of one key, of one model, or of the tenant in all.",
            ),
            models.CheckConstraint(
                name="quota_limit_in_range",
                condition=models.Q(limit__range=(1, MAX_QUOTA)),
                violation_error_message=f"A quota is at least 1 and at most {MAX_QUOTA}.",
            ),
            models.CheckConstraint(
                name="quota_burst_of_a_rate",
                condition=models.Q(burst=None)
                | models.Q(burst__range=(1, MAX_QUOTA), name__in=QUOTAS_WITH_BURST),
                violation_error_message=f"Only a quota per minute has a burst, of 1 to {MAX_QUOTA}.",
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant}: {self.subject or 'in all'}, {self.name} {self.limit}"

    @property
    def subject(self) -> str:
        """The key's public id or the model's slug; "" of the tenant in all."""
        return self.key.public_id if self.key else self.model


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
