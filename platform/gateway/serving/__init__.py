"""From a call to an answer: what is checked, claimed, computed, attached to or replayed."""
