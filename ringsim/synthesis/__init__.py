"""Synthesis: the fastest schedule that can be found for a network, and how far it is from what the network allows."""

from ringsim.synthesis.search import DEFAULT_SECONDS, SearchOptions, SearchState, Synthesis, synthesize
