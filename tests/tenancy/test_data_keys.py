"""Data keys and seals: what is sealed opens under the same key and context alone; rotation; settings."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.environment import MissingSetting, master_keys
from tenants.data_keys import (
    DataKeyUnreadable,
    SealBroken,
    WrappedKey,
    data_key_generate,
    data_key_unwrap,
    data_key_wrap,
    open_,
    seal,
)

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
OLD, NEW = b"o" * 32, b"n" * 32
TENANT = UUID(int=7)


@given(st.binary(max_size=2000), st.binary(max_size=40))
def test_what_is_sealed_opens_again(plaintext: bytes, context: bytes) -> None:
    sealed = seal(KEY, plaintext, context)
    assert open_(KEY, sealed, context) == plaintext
    assert len(sealed) == len(plaintext) + 29
    assert seal(KEY, plaintext, context) != sealed  # a nonce of its own


@given(st.binary(min_size=1, max_size=60), st.data())
def test_another_key_or_context_and_any_changed_byte_are_refused(
    plaintext: bytes, data: st.DataObject
) -> None:
    sealed = seal(KEY, plaintext, b"request 1")
    index, change = data.draw(st.integers(0, len(sealed) - 1)), data.draw(st.integers(1, 255))
    altered = sealed[:index] + bytes([sealed[index] ^ change]) + sealed[index + 1 :]
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    for key, message, context in (
        (OTHER_KEY, sealed, b"request 1"),
        (KEY, sealed, b"request 2"),
        (KEY, altered, b"request 1"),
        (KEY, cut, b"request 1"),
    ):
        with pytest.raises(SealBroken):
            open_(key, message, context)


def test_a_data_key_is_wrapped_by_the_first_master_key_and_unwrapped_by_any() -> None:
    data_key = data_key_generate()
    before = data_key_wrap([OLD], TENANT, data_key)
    after = data_key_wrap([NEW, OLD], TENANT, data_key)
    assert before.master_key_id != after.master_key_id
    assert data_key_unwrap([NEW, OLD], TENANT, before) == data_key
    assert data_key_unwrap([NEW], TENANT, after) == data_key
    assert data_key not in before.wrapped


def test_a_wrapped_key_is_one_tenants_and_its_failure_names_no_secret() -> None:
    wrapped = data_key_wrap([OLD], TENANT, KEY)
    for keys, tenant, stored in (
        ([NEW], TENANT, wrapped),
        ([OLD], uuid4(), wrapped),
        ([OLD], TENANT, WrappedKey(wrapped.master_key_id, wrapped.wrapped[:-1])),
        ([OLD], TENANT, WrappedKey(wrapped.master_key_id, b"")),
    ):
        with pytest.raises(DataKeyUnreadable) as refusal:
            data_key_unwrap(keys, tenant, stored)
        assert OLD.hex() not in str(refusal.value)
        assert NEW.hex() not in str(refusal.value)


def test_master_keys_come_from_the_environment_the_current_one_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_MASTER_KEY", f"{NEW.hex()},{OLD.hex()}")
    assert master_keys() == (NEW, OLD)
    monkeypatch.delenv("SLUICE_MASTER_KEY")
    with pytest.raises(MissingSetting):
        master_keys()


@pytest.mark.parametrize("wrong", ["aa" * 31, "aa" * 33, "xy" * 32, f"{OLD.hex()},", f"{OLD.hex()},aa"])
def test_a_wrong_master_key_is_refused_and_not_quoted(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_MASTER_KEY", wrong)
    with pytest.raises(ValueError, match="64 hex digits") as refusal:
        master_keys()
    assert wrong[:8] not in str(refusal.value)
