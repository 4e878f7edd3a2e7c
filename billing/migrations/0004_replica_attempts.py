"""Requests whose replica was lost: how many had them, why, and what was computed again."""

from django.db import migrations, models
from django.db.models import Q

LOST_CAUSES = (
    "",
    "crashed",
    "disconnected",
    "unreachable",
    "silent",
    "shut_down",
    "upstream_failed",
    "misplaced",
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_price_notice")]

    operations = [
        migrations.AddField("usageevent", "replica_attempts", models.PositiveIntegerField(db_default=1)),
        migrations.AddField(
            "usageevent", "lost_cause", models.CharField(blank=True, db_default="", max_length=16)
        ),
        migrations.AddField("usageevent", "recomputed_tokens", models.PositiveIntegerField(db_default=0)),
        migrations.AddField("workerusage", "moves", models.PositiveIntegerField(db_default=0)),
        migrations.AddConstraint(
            "usageevent",
            models.CheckConstraint(condition=Q(replica_attempts__gte=1), name="usage_replicas_from_one"),
        ),
        migrations.AddConstraint(
            "usageevent",
            models.CheckConstraint(condition=Q(lost_cause__in=LOST_CAUSES), name="usage_lost_cause_known"),
        ),
    ]
