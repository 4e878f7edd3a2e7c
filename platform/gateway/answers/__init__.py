"""From the parts of an answer to bytes that a client gets, now or later."""
