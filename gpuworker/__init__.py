"""GPU worker: the continuously batched engine and the process around it. Installs without Django."""
