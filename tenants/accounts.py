"""Writes of accounts that commands make; the admin's are Django's own forms. Operators only.

One transaction each, with an audit entry in it.
"""

from django.db import transaction

from tenants.audit import audit_write
from tenants.models import User
from tenants.scoping import alias_current


def superuser_create(*, username: str, password: str, actor: str) -> User:
    with transaction.atomic(using=alias_current()):
        user = User.objects.create_superuser(username, password=password)
        audit_write(
            tenant_id=None, actor=actor, action="user.create", target=username, diff={"is_superuser": True}
        )
    return user


def password_set(*, user: User, password: str, actor: str) -> None:
    """Ends every session of the user, too."""
    with transaction.atomic(using=alias_current()):
        user.set_password(password)
        user.save(update_fields=["password"])
        audit_write(
            tenant_id=None,
            actor=actor,
            action="user.change",
            target=user.get_username(),
            diff={"changed": ["password"]},
        )
