"""`python -m ringsim`: the command line `ringsim`."""

from ringsim.cli import main

if __name__ == "__main__":
    main(prog_name="ringsim")
