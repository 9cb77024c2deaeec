"""An audit of private training by canaries: rows that are in by the toss of a coin, and an adversary who guesses which."""
