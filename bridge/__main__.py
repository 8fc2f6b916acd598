"""`python -m bridge` is `codex-bridge`."""

from bridge.cli import main

if __name__ == "__main__":
    main()
