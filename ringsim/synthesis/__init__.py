"""Synthesis: a search for a fast schedule on a network, compared with the bound of the network."""

from ringsim.synthesis.search import DEFAULT_SECONDS, SearchOptions, SearchState, Synthesis, synthesize
