"""SkyRL and vLLM on a machine with no GPU, and the small policy of the demo."""
