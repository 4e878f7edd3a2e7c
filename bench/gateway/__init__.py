"""What the gateway adds to a request and what a token costs it, beside the bare server on the same core."""
