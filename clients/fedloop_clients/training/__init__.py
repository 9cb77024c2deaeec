"""Training at a site: plain and private gradient descent, and exact sums for Newton-Raphson."""
