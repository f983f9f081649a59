"""Probe, predict, train and compare: `trainers compare-strategies` from a checkout that is not installed."""

from trainers.cli.compare_strategies import main

if __name__ == "__main__":
    main()
