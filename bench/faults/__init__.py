"""Faults around real processes for as long as one likes; the short versions run with the tests."""
