"""The `sluice` command: chat, complete, models, usage. Everything it does goes through the client."""
