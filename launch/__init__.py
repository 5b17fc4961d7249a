"""Command-line entry points; thin: what they start lives in recipes, sandbox and rewards."""
