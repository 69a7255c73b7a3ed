"""`python -m firesteel` is `firesteel`."""

from firesteel.cli import main

if __name__ == "__main__":
    main()
