"""Row security, grants, append-only tables, and the check that every ledger transaction balances."""

from django.db import migrations

from tenants.rls import append_only, enable_rls, grant_global

READ = ("SELECT",)
ADD = ("SELECT", "INSERT")
READ_WRITE = ("SELECT", "INSERT", "UPDATE")
# What a record is of (tenant, key, fingerprint, request id) and when it ends stay as they were written.
IDEMPOTENCY_PROGRESS = (
    "state, attempt, owner, owner_epoch, lease_until, status, answer, "
    "prompt_tokens, cached_tokens, output_tokens"
)

# Deferred to the commit, when `app.tenant_id` may already name another tenant, or none: row security would then
# hide the legs and the sum of nothing is zero. So the function looks through the eyes of the entry's own tenant;
# and into the named schema, because a temporary table of the same name would be found before it.
BALANCED = """
CREATE FUNCTION billing_ledger_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.tenant_id', true), '');
    legs bigint;
    total numeric;
BEGIN
    PERFORM set_config('app.tenant_id', NEW.tenant_id::text, true);
    SELECT count(*), sum(amount_micro_usd) INTO legs, total
    FROM public.billing_ledgerentry WHERE txn_id = NEW.txn_id AND tenant_id = NEW.tenant_id;
    PERFORM set_config('app.tenant_id', before, true);
    IF legs = 0 OR total <> 0 THEN
        RAISE EXCEPTION 'unbalanced ledger transaction %', NEW.txn_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END$$
"""
BALANCED_TRIGGER = (
    "CREATE CONSTRAINT TRIGGER balanced AFTER INSERT ON billing_ledgerentry "
    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_ledger_balanced()"
)
# Row security looks at `tenant_id` alone: an entry of one tenant must not move another's account.
ACCOUNT_OF_TENANT = (
    "ALTER TABLE billing_ledgerentry ADD CONSTRAINT ledger_account_of_tenant "
    "CHECK (account NOT LIKE 'tenant:%' OR starts_with(account, 'tenant:' || tenant_id || ':'))"
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial"), ("tenants", "0002_row_security")]

    operations = [
        grant_global("billing_price", app=READ, operator=ADD, gateway=READ),
        append_only("billing_price"),
        # The gateway reads back rows of the tenant it records for: a second record must be seen to differ.
        enable_rls("billing_usageevent", app=READ, operator=ADD, gateway=ADD),
        append_only("billing_usageevent"),
        enable_rls("billing_ledgerentry", app=READ, operator=ADD, gateway=ADD),
        append_only("billing_ledgerentry"),
        migrations.RunSQL(
            [BALANCED, BALANCED_TRIGGER, ACCOUNT_OF_TENANT],
            [
                "ALTER TABLE billing_ledgerentry DROP CONSTRAINT ledger_account_of_tenant",
                "DROP TRIGGER balanced ON billing_ledgerentry",
                "DROP FUNCTION billing_ledger_balanced()",
            ],
        ),
        enable_rls("billing_usageconflict", app=READ, operator=ADD, gateway=ADD),
        append_only("billing_usageconflict"),
        # A record is deleted once its day is over: by the gateway that meets it, or by the clean-up.
        enable_rls(
            "billing_idempotencyrecord",
            app=READ,
            operator=("SELECT", "DELETE"),
            gateway=(*ADD, f"UPDATE ({IDEMPOTENCY_PROGRESS})", "DELETE"),
        ),
        # Answers arrive compressed and encrypted: trying to compress them again is in vain.
        migrations.RunSQL(
            "ALTER TABLE billing_idempotencyrecord ALTER COLUMN answer SET STORAGE EXTERNAL",
            "ALTER TABLE billing_idempotencyrecord ALTER COLUMN answer SET STORAGE EXTENDED",
        ),
        enable_rls("billing_workerusage", app=READ, operator=READ_WRITE),
        grant_global("billing_collectcursor", operator=READ_WRITE),
    ]
