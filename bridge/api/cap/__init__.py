"""The Coreason Agent Protocol (seed 004): its models, a request as a Turn, a turn as packets. See docs/cap.md."""
