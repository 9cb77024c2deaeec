"""Answers of models that a coordinator sends, so that no row of a private run has a part in another row's answer."""
