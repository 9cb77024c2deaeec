"""A Flower app as Flower's documentation writes it (quickstart-pytorch), with training and evaluation that do nothing."""
