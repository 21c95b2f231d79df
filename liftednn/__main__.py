"""`python -m liftednn`: the command line, where its own name is not found."""

from liftednn.cli import main

if __name__ == "__main__":
    main()
