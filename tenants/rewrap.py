"""Wraps data keys anew after a new master key was put first: the end of its rotation. Operators only."""

from config.environment import master_keys
from tenants.audit import audit_write
from tenants.data_keys import WrappedKey, data_key_unwrap, data_key_wrap, master_key_id
from tenants.models import TenantDataKey
from tenants.scoping import tenant_scope


def data_keys_rewrap(*, actor: str) -> int:
    """Number of tenants whose data key was still wrapped by another than the first master key.

    One transaction each: safe to repeat, and to run while tenants come and go. Raises DataKeyUnreadable.
    """
    keys = master_keys()
    primary_id = master_key_id(keys[0])
    outdated = TenantDataKey.unscoped.exclude(master_key_id=primary_id).values_list("tenant_id", flat=True)
    count = 0
    for tenant_id in list(outdated):
        with tenant_scope(tenant_id):
            stored = TenantDataKey.objects.select_for_update().select_related("tenant").first()
            if stored is None or stored.master_key_id == primary_id:
                continue
            before = WrappedKey(stored.master_key_id, bytes(stored.wrapped))
            data_key = data_key_unwrap(keys, tenant_id, before)
            stored.master_key_id, stored.wrapped = data_key_wrap(keys, tenant_id, data_key)
            stored.save(update_fields=["master_key_id", "wrapped"])
            audit_write(
                tenant_id=tenant_id,
                actor=actor,
                action="data_key.rewrap",
                target=stored.tenant.slug,
                diff={"before": before.master_key_id, "after": stored.master_key_id},
            )
            count += 1
    return count
