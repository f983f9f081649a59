"""What a run keeps on disk: checkpoints, its log and the lock of its directory; and how it goes on from there."""
