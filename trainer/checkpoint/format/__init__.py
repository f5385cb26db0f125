"""A checkpoint on disk: its folder and manifest, shards, whole files, the lock of `out`. One process."""
