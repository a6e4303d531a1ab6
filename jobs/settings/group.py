"""What groups of settings have in common."""

from pydantic import BaseModel, ConfigDict

ENV_PREFIX = "LONGBATCH_"


class Group(BaseModel):
    """A frozen group of settings that rejects unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")
