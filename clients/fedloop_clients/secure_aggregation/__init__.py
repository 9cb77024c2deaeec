"""A site's side of secure aggregation: its floors, what it has bound itself to, and the machine that answers."""
