"""Software-engineering rollouts: tasks, agent, policy client, generator, experiment."""
