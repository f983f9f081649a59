"""The commands of `ringsim`, one file each: parse, call one function, print."""
