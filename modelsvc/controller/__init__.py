"""The controller's pieces: fleet subscription, publication, usage collection, reaping."""
