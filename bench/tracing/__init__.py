"""One summary from its submission to its webhook, its trace drawn as a picture."""
