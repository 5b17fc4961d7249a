"""The demo's policy: a tiny language model made on two cores from scripted demonstrations."""
