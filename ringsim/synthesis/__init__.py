"""Synthesis: a search for a fast schedule on a network."""

from ringsim.synthesis.search import DEFAULT_SECONDS, SearchOptions, SearchState, Synthesis, synthesize
