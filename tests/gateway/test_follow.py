"""One reader of a token log, without the log: how it ends."""

from uuid import uuid4

import pytest

from gateway.answer_parts import Finished, Row, Usage
from gateway.token_log.commands import EntryId, LogName
from gateway.token_log.entries import Entry, block, encode, is_end
from gateway.token_log.follow import Follow
from tenants.data_keys import data_key_generate

ROW, END = Row(0, 1, "x"), Finished([], Usage(1, 0, 1))


@pytest.mark.parametrize("broken", [ROW, END])
def test_a_callback_that_fails_ends_it_and_says_so(broken: Entry) -> None:
    """Also at the last entry: whoever waits for the end would wait for ever."""
    name, data_key = LogName(uuid4(), uuid4()), data_key_generate()
    told: list[Entry] = []
    lost: list[str] = []

    def on_entry(entry: Entry) -> None:
        if is_end(entry) == is_end(broken):
            raise RuntimeError("a defect")
        told.append(entry)

    follow = Follow(name, uuid4(), 1, data_key, on_entry, lost.append, lambda: None)
    at = EntryId(1, 1)
    follow.put(at, name.seal(data_key, at, block([encode(ROW), encode(END)])))
    follow.deliver(10)
    assert (lost, follow.is_closed) == (["failed"], True)
    assert told == ([] if broken is ROW else [ROW])
