"""Dispatcher: decides which waiting request runs next and on which replica. No Django, no disk."""
