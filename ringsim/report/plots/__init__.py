"""The pictures: they draw what a `RunView` or a `Sweep` holds, and work out nothing. Only here is matplotlib used."""
