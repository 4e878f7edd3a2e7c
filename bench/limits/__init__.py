"""What a quota decision takes: in process with a warm lease, and at ten times what a tenant may have."""
