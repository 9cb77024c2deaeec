"""Runs in a queue: submitted, scheduled, started as attempts at Flower, stopped and resumed."""
