"""Synthesis: a search for a fast schedule on a network."""

from ringsim.synthesis.search import SearchOptions, SearchState, Synthesis, synthesize
