"""What numbers and names on a command line may be: types for argparse, whose errors say it."""

from __future__ import annotations

import argparse
import math


def number(text: str, kind: type, accept: object, meaning: str) -> float | int:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and accept(value)):
        raise argparse.ArgumentTypeError(f"it is {text}; it must be {meaning}")
    return value


def run_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a run, or nothing for the latest")
    return text


def count(text: str) -> int:
    return number(text, int, lambda value: 1 <= value < 2**31, "a whole number, at least 1 and less than 2^31")


def count_or_zero(text: str) -> int:
    return number(text, int, lambda value: 0 <= value < 2**31, "a whole number, at least 0 and less than 2^31")


def batch(text: str) -> int:
    return number(text, int, lambda value: value >= 2, "a whole number, at least 2 (BatchNorm needs two images)")


def seed(text: str) -> int:
    return number(text, int, lambda value: 0 <= value < 2**63, "a whole number from 0 to 2^63 - 1")


def positive(text: str) -> float:
    return number(text, float, lambda value: value > 0, "a number above 0")


def not_negative(text: str) -> float:
    return number(text, float, lambda value: value >= 0, "a number, at least 0")


def fraction(text: str) -> float:
    return number(text, float, lambda value: 0 <= value < 1, "a number from 0 to below 1")


def probability(text: str) -> float:
    return number(text, float, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def percent(text: str) -> int:
    return number(text, int, lambda value: 0 <= value < 100, "a whole number of percent, from 0 to below 100")
