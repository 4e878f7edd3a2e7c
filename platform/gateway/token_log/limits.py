"""Every bound of the token logs: sizes, counts, waits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLimits:
    max_log_bytes: int = 512 * 1024  # encoded entries of one log: a longer one is given up
    max_unconfirmed_log_bytes: int = 256 * 1024  # not yet confirmed by Valkey
    max_unconfirmed_bytes: int = 64 * 1024 * 1024  # of all logs of a process
    give_up_s: float = 2.0  # an entry that Valkey has not confirmed by then: its stream goes on without a log
    answer_timeout_s: float = 1.0  # of Valkey, for anything
    keep_s: float = 600.0  # after the end, or after the deadline of what never ended
    heartbeat_s: float = 1.0
    owner_ttl_s: float = 3.0  # without a heartbeat
    poll_s: float = 0.025  # between two reads for all followers
    owner_check_s: float = 0.5
    follow_check_s: float = 1.0  # whether the logs still exist; renews the listener marks
    listener_ttl_s: float = 4.0
    opening_s: float = 5.0  # how long a follower waits for the first entry
    patience_s: float = 5.0  # how long followers wait for Valkey
    overtime_s: float = 30.0  # after its deadline an answer without an end is incomplete
