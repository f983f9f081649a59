"""Train a task on several ranks: `python -m trainers --task lm --ranks 4`, or under torchrun."""

from trainers.cli.group import main

if __name__ == "__main__":
    main(prog_name="trainers")
