"""`python -m paritygate` is the command line."""

from paritygate.cli import main

if __name__ == "__main__":
    main()
