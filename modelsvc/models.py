"""The model registry: models, their versions, and the version each model's requests run on.

Fields and constraints; writes live in `services`. Nothing here belongs to a tenant, and nothing is deleted:
usage rows name models and digests for as long as there are bills.
"""

from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F

from tenants.ids import uuid7_now
from tenants.scoping import Tenancy

SLUG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*\Z"  # \Z, not $: Python's $ lets a newline follow
SLUG_MESSAGE = "A model's slug consists of letters, digits and . _ / : - and begins with a letter or a digit."
UPSTREAM_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}\Z"  # part of a process's name, and of a socket's
UPSTREAM_MESSAGE = "An upstream's name consists of at most 32 small letters, digits and -."
DIGEST_PATTERN = r"^[0-9a-f]{64}\Z"
MAX_REPLICAS = 10_000


class Model(models.Model):
    """What a request names. Its slug never changes meaning: a different model gets another slug."""

    tenancy: ClassVar[Tenancy] = "global"

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    slug = models.CharField(
        max_length=200, unique=True, validators=[RegexValidator(SLUG_PATTERN, SLUG_MESSAGE)]
    )
    name = models.CharField(max_length=200)
    owned_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("slug",)
        constraints = (
            models.CheckConstraint(name="model_slug_plain", condition=models.Q(slug__regex=SLUG_PATTERN)),
        )

    def __str__(self) -> str:
        return self.slug


class ModelVersion(models.Model):
    """Weights of a model, named by the digest of their manifest."""

    tenancy: ClassVar[Tenancy] = "global"

    class State(models.TextChoices):
        READY = "ready"
        RETIRED = "retired"  # takes no route any more

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    digest = models.CharField(max_length=64, unique=True)
    max_context_tokens = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=State, default=State.READY)
    manifest = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = (
            models.CheckConstraint(
                name="version_digest_sha256", condition=models.Q(digest__regex=DIGEST_PATTERN)
            ),
            models.CheckConstraint(
                name="version_context_positive", condition=models.Q(max_context_tokens__gt=0)
            ),
            models.CheckConstraint(
                name="version_state_known", condition=models.Q(state__in=("ready", "retired"))
            ),
            # Target of the route's second foreign key, which keeps a route on versions of its own model.
            models.UniqueConstraint(fields=("id", "model"), name="version_of_model"),
        )

    def __str__(self) -> str:
        return f"{self.model} {self.digest[:12]}"


class Upstream(models.Model):
    """A server of somebody else's that answers for a version, through a worker of ours.

    Its key is sealed by a master key (`upstream_keys`), and is in no page and no message.
    """

    tenancy: ClassVar[Tenancy] = "global"

    class Kind(models.TextChoices):
        OPENAI = "openai"
        TGI = "tgi"

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    name = models.CharField(
        max_length=32, unique=True, validators=[RegexValidator(UPSTREAM_PATTERN, UPSTREAM_MESSAGE)]
    )
    kind = models.CharField(max_length=16, choices=Kind)
    flavour = models.CharField(max_length=16, blank=True, default="generic")
    url = models.CharField(max_length=500)
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="upstreams")
    model_name = models.CharField(max_length=200, help_text="What the server calls the model.")
    revision = models.CharField(max_length=100, blank=True)
    max_rows = models.PositiveIntegerField(default=64, validators=[MinValueValidator(1)])
    options = models.JSONField(default=dict, blank=True, help_text="Seconds of patience, by name.")
    is_enabled = models.BooleanField(default=True)
    master_key_id = models.CharField(max_length=16, blank=True)
    sealed_key = models.BinaryField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                name="upstream_name_plain", condition=models.Q(name__regex=UPSTREAM_PATTERN)
            ),
            models.CheckConstraint(
                name="upstream_kind_known", condition=models.Q(kind__in=("openai", "tgi"))
            ),
            models.CheckConstraint(name="upstream_rows_positive", condition=models.Q(max_rows__gt=0)),
        )

    def __str__(self) -> str:
        return self.name


class ModelRoute(models.Model):
    """The version a model's requests run on now, how much they may generate, and what may stand in for it.

    `revision` counts the changes, so an old copy shows.
    """

    tenancy: ClassVar[Tenancy] = "global"

    model = models.OneToOneField(Model, on_delete=models.PROTECT, primary_key=True, related_name="route")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="routes")
    max_output_tokens = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Of one request. Empty: no bound."
    )
    smaller = models.ForeignKey(
        Model,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="What tenants who accept it get under pressure. Empty: nothing instead.",
    )
    revision = models.PositiveBigIntegerField()
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("model__slug",)
        constraints = (
            models.CheckConstraint(name="route_revision_positive", condition=models.Q(revision__gt=0)),
            models.CheckConstraint(name="route_output_positive", condition=models.Q(max_output_tokens__gt=0)),
            models.CheckConstraint(name="route_smaller_is_another", condition=~models.Q(smaller=F("model"))),
        )

    def __str__(self) -> str:
        return f"{self.model} → {self.version.digest[:12]}"


class Deployment(models.Model):
    """How many replicas of a version are to run, in which role. Whoever starts workers reads it; the
    controller tells where the fleet falls short of it."""

    tenancy: ClassVar[Tenancy] = "global"

    class Role(models.TextChoices):
        BOTH = "both"
        PREFILL = "prefill"
        DECODE = "decode"

    id = models.UUIDField(primary_key=True, default=uuid7_now, editable=False)
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="deployments")
    role = models.CharField(max_length=16, choices=Role, default=Role.BOTH)
    replicas = models.PositiveIntegerField(validators=[MaxValueValidator(MAX_REPLICAS)])
    revision = models.PositiveBigIntegerField()
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("version__model__slug", "version", "role")
        constraints = (
            models.UniqueConstraint(fields=("version", "role"), name="deployment_once"),
            models.CheckConstraint(
                name="deployment_role_known", condition=models.Q(role__in=("both", "prefill", "decode"))
            ),
            models.CheckConstraint(
                name="deployment_replicas_bounded", condition=models.Q(replicas__lte=MAX_REPLICAS)
            ),
            models.CheckConstraint(name="deployment_revision_positive", condition=models.Q(revision__gt=0)),
        )

    def __str__(self) -> str:
        return f"{self.replicas} of {self.version} ({self.role})"
