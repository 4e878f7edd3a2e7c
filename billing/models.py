"""Prices, usage events, the ledger, and what workers counted. Fields and constraints only.

Usage and ledger rows are written by `billing.ledger` alone, and all but WorkerUsage and CollectCursor are
append-only. A request may be attempted again under its id: (request_id, attempt) is the key everywhere.
A tenant's key has no index of its own where another one begins with it: each costs every insert.
"""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.contracts import LOST_CAUSES, OUTCOMES
from tenants.scoping import Tenancy, TenantModel


class Price(models.Model):
    """One version of a model's price, effective until the next one. Micro-dollars per million tokens."""

    tenancy: ClassVar[Tenancy] = "global"

    model = models.CharField(max_length=200)
    version = models.PositiveIntegerField()
    prompt_micro_usd_per_mtok = models.PositiveBigIntegerField()
    cached_micro_usd_per_mtok = models.PositiveBigIntegerField()
    output_micro_usd_per_mtok = models.PositiveBigIntegerField()
    effective_from = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("model", "-version")
        constraints = (
            models.UniqueConstraint(fields=("model", "version"), name="price_version_once"),
            models.UniqueConstraint(fields=("model", "effective_from"), name="price_moment_once"),
        )

    def __str__(self) -> str:
        return f"{self.model} v{self.version}"


class UsageEvent(TenantModel):
    """What one attempt of one request used, what of it bills, and what that costs."""

    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.PROTECT, related_name="usage_events", db_index=False
    )
    request_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    klass = models.CharField("class", max_length=16)
    worker = models.CharField(max_length=200)
    worker_incarnation = models.CharField(max_length=64)
    gateway = models.CharField(max_length=200)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    output_tokens = models.PositiveIntegerField()
    billable_prompt_tokens = models.PositiveIntegerField()
    billable_cached_tokens = models.PositiveIntegerField()
    billable_output_tokens = models.PositiveIntegerField()
    outcome = models.CharField(max_length=16, choices=[(outcome, outcome) for outcome in OUTCOMES])
    price_version = models.PositiveIntegerField()
    cost_micro_usd = models.PositiveBigIntegerField()
    occurred_at = models.DateTimeField()
    recorded_at = models.DateTimeField(db_default=Now())
    replica_attempts = models.PositiveIntegerField(db_default=1)
    lost_cause = models.CharField(max_length=16, blank=True, db_default="")
    recomputed_tokens = models.PositiveIntegerField(db_default=0)

    class Meta:
        ordering = ("-occurred_at",)
        indexes = (
            models.Index(fields=("tenant", "occurred_at"), name="usage_tenant_time"),
            models.Index(fields=("recorded_at",), name="usage_recorded"),
        )
        constraints = (
            models.UniqueConstraint(fields=("request_id", "attempt"), name="usage_once"),
            models.UniqueConstraint(
                fields=("request_id",),
                condition=Q(billable_prompt_tokens__gt=0) | Q(billable_cached_tokens__gt=0),
                name="usage_prompt_billed_once",
            ),
            models.CheckConstraint(condition=Q(attempt__gte=1), name="usage_attempt_from_one"),
            models.CheckConstraint(condition=Q(outcome__in=OUTCOMES), name="usage_outcome_known"),
            models.CheckConstraint(condition=Q(replica_attempts__gte=1), name="usage_replicas_from_one"),
            models.CheckConstraint(
                condition=Q(lost_cause__in=("", *LOST_CAUSES)), name="usage_lost_cause_known"
            ),
            models.CheckConstraint(
                condition=Q(prompt_tokens__gte=F("billable_prompt_tokens") + F("billable_cached_tokens"))
                & Q(output_tokens__gte=F("billable_output_tokens")),
                name="usage_bills_no_more_than_counted",
            ),
        )

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"


class IdempotencyRecord(TenantModel):
    """What became of the request that came with an idempotency key; see `billing.idempotency`.

    `answer` is sealed with the tenant's data key. Null where nothing is kept.
    """

    class State(models.TextChoices):
        IN_FLIGHT = "in_flight"
        DONE = "done"
        FAILED = "failed"

    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.PROTECT, related_name="idempotency_records", db_index=False
    )
    key = models.CharField(max_length=255)
    fingerprint = models.BinaryField(max_length=32)
    request_id = models.UUIDField(unique=True)
    state = models.CharField(max_length=16, choices=State, db_default=State.IN_FLIGHT)
    attempt = models.PositiveIntegerField(db_default=1)
    owner = models.CharField(max_length=200)
    owner_epoch = models.PositiveIntegerField(db_default=1)
    lease_until = models.DateTimeField()
    status = models.PositiveSmallIntegerField(null=True)
    answer = models.BinaryField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ("-created_at",)
        indexes = (models.Index(fields=("expires_at",), name="idempotency_expires"),)
        constraints = (
            models.UniqueConstraint(fields=("tenant", "key"), name="idempotency_key_once"),
            models.CheckConstraint(condition=~Q(key=""), name="idempotency_key_not_empty"),
            models.CheckConstraint(
                condition=Q(state__in=("in_flight", "done", "failed")), name="idempotency_state_known"
            ),
        )

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"


class LedgerEntry(TenantModel):
    """One leg of a balanced transaction: the legs of a `txn_id` sum to zero, checked at commit."""

    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.PROTECT, related_name="ledger_entries", db_index=False
    )
    txn_id = models.UUIDField()
    request_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    account = models.CharField(max_length=100)
    amount_micro_usd = models.BigIntegerField()
    currency = models.CharField(max_length=3, db_default="USD")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-created_at", "txn_id")
        verbose_name_plural = "ledger entries"
        indexes = (
            models.Index(fields=("request_id", "attempt"), name="ledger_request"),
            models.Index(fields=("tenant", "created_at"), name="ledger_tenant_time"),
            models.Index(fields=("created_at",), name="ledger_created"),
        )
        constraints = (
            models.UniqueConstraint(fields=("txn_id", "account"), name="ledger_account_once_per_txn"),
            models.CheckConstraint(condition=~Q(amount_micro_usd=0), name="ledger_amount_not_zero"),
        )

    def __str__(self) -> str:
        return f"{self.account} {self.amount_micro_usd:+d}"


class UsageConflict(TenantModel):
    """A record that contradicts the usage event of the same key. Kept for a person to judge."""

    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.PROTECT, related_name="usage_conflicts", db_index=False
    )
    request_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    record = models.JSONField()
    fingerprint = models.BinaryField(max_length=32)
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-recorded_at",)
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "request_id", "attempt", "fingerprint"), name="usage_conflict_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"


class WorkerUsage(TenantModel):
    """Latest checkpoint of an attempt as its worker counted it. `settled` once a usage event exists."""

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="worker_usage")
    request_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    gateway = models.CharField(max_length=200)
    worker = models.CharField(max_length=200)
    worker_incarnation = models.CharField(max_length=64)
    model = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    klass = models.CharField("class", max_length=16)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    output_tokens = models.PositiveIntegerField()
    reason = models.CharField(max_length=32, blank=True)
    at_ms = models.PositiveBigIntegerField()
    moves = models.PositiveIntegerField(db_default=0)
    settled = models.BooleanField(db_default=False)
    collected_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-collected_at",)
        verbose_name_plural = "worker usage"
        indexes = (
            models.Index(fields=("gateway",), condition=Q(settled=False), name="worker_usage_unsettled"),
            models.Index(fields=("collected_at",), name="worker_usage_collected"),
        )
        constraints = (models.UniqueConstraint(fields=("request_id", "attempt"), name="worker_usage_once"),)

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"


class CollectCursor(models.Model):
    """How far a worker's usage journal was collected; moves in the transaction that stores the records."""

    tenancy: ClassVar[Tenancy] = "global"

    worker = models.CharField(max_length=200, primary_key=True)
    journal = models.CharField(max_length=64)
    position = models.PositiveBigIntegerField()
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("worker",)

    def __str__(self) -> str:
        return f"{self.worker} at {self.position}"
