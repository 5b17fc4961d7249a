"""From a task's own tests to a verdict and a reward. Knows nothing of RL or of how a sandbox is made."""
