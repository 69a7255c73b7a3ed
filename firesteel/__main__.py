"""Makes `python -m firesteel` the same as `firesteel`."""

from firesteel.client.cli import main

if __name__ == "__main__":
    main()
