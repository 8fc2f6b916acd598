"""Reports of a run: one module per format, all of them from the same counts (`summary`)."""
