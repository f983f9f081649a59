"""The pictures: they draw what an `Overview` or a `Sweep` holds, and work out nothing. Only here is matplotlib used."""
