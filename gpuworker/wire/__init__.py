"""Versioned messages between gateways, dispatcher, workers and controller, and how they travel."""
