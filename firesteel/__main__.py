"""`python -m firesteel` is `firesteel`."""

from firesteel.client.cli import main

if __name__ == "__main__":
    main()
