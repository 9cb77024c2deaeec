"""Planning a private run and auditing one, before people's rows are trained on."""
