"""From cells as a site wrote them to a schema's values, a column at a time; what does not fit is told and never put right."""
