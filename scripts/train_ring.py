"""Probe, predict, train and compare: `trainers ring` from a checkout that is not installed."""

from trainers.cli.main_job import main

if __name__ == "__main__":
    main()
