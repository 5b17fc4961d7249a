"""What a rollout is, how SkyRL trains on it, and what people read of a run."""
