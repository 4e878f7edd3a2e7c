"""Pure decisions: only the standard library; time and randomness are arguments."""
