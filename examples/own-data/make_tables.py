# ruff: noqa: INP001  an example to run, not a module
"""Writes three CSV files of invented patients, one for each clinic: ``python make_tables.py FOLDER``.

No row is of a person. The outcome follows from glucose, blood pressure and smoking, with some chance;
the other columns tell nothing about it.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

CLINICS = ("north", "south", "west")
COLUMNS = (
    "patient",
    "age",
    "glucose",
    "blood_pressure",
    "heart_rate",
    "temperature",
    "haemoglobin",
    "smoker",
    "complication",
)
ROWS = 360


def rows_of(number: int) -> list[tuple[str | int | float, ...]]:
    """The rows of one clinic; clinics differ a little in age. Some cells are empty, as in real tables."""
    generator = np.random.default_rng([7, number])
    age = generator.normal(52 + 5 * number, 13, ROWS).clip(18, 95)
    glucose = generator.normal(6.5, 2.0, ROWS).clip(3, 20)
    pressure = generator.normal(128, 17, ROWS).clip(80, 210)
    heart_rate = generator.normal(74, 10, ROWS).clip(40, 160)
    temperature = generator.normal(36.7, 0.4, ROWS).clip(35, 41)
    haemoglobin = generator.normal(13.8, 1.3, ROWS).clip(7, 19)
    smoker = generator.random(ROWS) < 0.3
    score = glucose - 6.5 + 0.12 * (pressure - 128) + 0.5 * (smoker - 0.3) + generator.normal(0, 0.5, ROWS)
    absent = generator.random(ROWS) < 0.03
    return [
        (
            f"{CLINICS[number]}-{row // 2 if row < 40 else row}",  # the first twenty patients came twice
            int(age[row]),
            round(float(glucose[row]), 1),
            "" if absent[row] else int(pressure[row]),
            int(heart_rate[row]),
            round(float(temperature[row]), 1),
            round(float(haemoglobin[row]), 1),
            "yes" if smoker[row] else "no",
            "yes" if score[row] > 0 else "no",
        )
        for row in range(ROWS)
    ]


def main() -> None:
    """Writes the files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, clinic in enumerate(CLINICS):
        with (folder / f"{clinic}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows_of(number)])


if __name__ == "__main__":
    main()
