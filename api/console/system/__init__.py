"""The page of the system: checks, versions, schema and settings, for operators."""

from api.console.system.system import router

__all__ = ["router"]
