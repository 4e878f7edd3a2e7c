"""Dispatcher and replicas as this gateway sees them: links, and the streams that run on them."""
