"""The services of docker-compose.yml as containers, whose processes are killed under load."""
