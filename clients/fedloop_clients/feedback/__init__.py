"""What a site does with what its devices send: keeps labelled examples, watches sketches, and tells verdicts."""
