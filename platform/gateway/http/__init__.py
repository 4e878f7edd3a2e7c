"""HTTP itself: bounds of the server's protocol, one exchange, and its body."""
