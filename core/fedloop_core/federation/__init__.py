"""What coordinator and site must agree on: names, generations of the protocol, Flower records (the only part that imports flwr)."""
