"""The pictures: they draw what an `Overview` holds and work out nothing. Only here is matplotlib imported."""
