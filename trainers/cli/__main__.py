"""`python -m trainers.cli` is `python -m trainers`: without this it would end without a word."""

from trainers.cli.group import main

if __name__ == "__main__":
    main(prog_name="trainers")
