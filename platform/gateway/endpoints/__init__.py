"""One handler for each kind of HTTP request."""
