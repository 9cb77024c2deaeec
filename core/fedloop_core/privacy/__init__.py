"""What releases cost in privacy, and filters that bound it for life: the mathematics that sites and coordinators share."""
