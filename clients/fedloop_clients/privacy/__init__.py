"""What a release costs, what has been spent, and how much noise a budget asks for."""
