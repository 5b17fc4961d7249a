"""The files that run inside the sandbox, copied there as they are. Nothing outside imports them."""
