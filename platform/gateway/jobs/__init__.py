"""What runs for a request until its usage is recorded, with or without its client."""
