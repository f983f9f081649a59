"""Probe, predict, train and compare: `trainers compare` from a checkout that is not installed."""

from trainers.cli.compare import main

if __name__ == "__main__":
    main()
