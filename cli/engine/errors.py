"""Errors of a profile, or of the folder that it is rendered to."""

from jobs.errors import LongbatchError


class ProfileError(LongbatchError):
    """The profile cannot be used."""

    code = "bad_profile"


class RenderError(LongbatchError):
    """The folder cannot hold rendered files."""

    code = "bad_render_folder"
