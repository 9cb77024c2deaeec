"""How questions and answers ride in Flower messages; the only part of core that imports flwr."""
