"""The controller's pieces: fleet subscription, publication, levels, usage collection, reaping."""
