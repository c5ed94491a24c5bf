"""The local trainer: configuration, batches, updates, the loop."""
