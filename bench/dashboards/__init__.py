"""The dashboard's panels as a picture, from a Prometheus that scraped a stack under load."""
