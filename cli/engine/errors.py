"""What can be wrong with a profile or with the folder that it is rendered to."""

from jobs.errors import LongbatchError


class ProfileError(LongbatchError):
    """The profile cannot be used."""

    code = "bad_profile"


class RenderError(LongbatchError):
    """The folder is no place for rendered files."""

    code = "bad_render_folder"
