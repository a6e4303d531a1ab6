"""Postgres on a disk that fills up under load and gets room again, judged by what callers see."""
