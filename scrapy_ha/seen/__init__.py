"""What was seen: a Bloom filter in memory in front of an exact store on disk."""
