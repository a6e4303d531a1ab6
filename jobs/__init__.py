"""The domain: what a job is and how it may change. No web, no broker, no GPU.

Its words are in docs/glossary.md; the order to read it in is in CONTRIBUTING.md.
"""
