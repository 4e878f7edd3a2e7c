"""Slows down password guessing: a few attempts per user name and address, then a pause. Success forgets them.

Counted in Valkey, so that every web process knows. While Valkey is away nobody is counted and nobody locked
out: operators need the console most when something is broken, and passwords are hashed slowly all the same.
"""

import hashlib
import logging

import redis

from config.environment import MissingSetting, redis_url

ATTEMPTS_ALLOWED = 5
PAUSE_S = 300
TIMEOUT_S = 1.0

UNREACHABLE = (redis.RedisError, OSError, MissingSetting)

logger = logging.getLogger(__name__)


def login_admitted(username: str, address: str) -> bool:
    """Counts the attempt before its password is looked at, so that many at once get no more than one by one.

    The pause runs from the first attempt.
    """
    key = _key(username, address)
    try:
        with _valkey() as client, client.pipeline() as pipeline:
            pipeline.incr(key)
            pipeline.expire(key, PAUSE_S, nx=True)
            attempts, _ = pipeline.execute()
    except UNREACHABLE:
        logger.exception("a log-in attempt cannot be counted: not throttled")
        return True
    return bool(attempts <= ATTEMPTS_ALLOWED)


def login_succeeded(username: str, address: str) -> None:
    try:
        with _valkey() as client:
            client.delete(_key(username, address))
    except UNREACHABLE:
        logger.exception("log-in attempts cannot be forgotten")


def _valkey() -> redis.Redis:
    return redis.Redis.from_url(redis_url(), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)


def _key(username: str, address: str) -> str:
    # Hashed: what people type into the user name field by mistake is sometimes a password.
    text = f"{username.strip().casefold()}\n{address}"
    return "sluice:login:" + hashlib.sha256(text.encode()).hexdigest()
