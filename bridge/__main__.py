"""`python -m bridge` is `turnbridge`."""

from bridge.cli import main

if __name__ == "__main__":
    main()
