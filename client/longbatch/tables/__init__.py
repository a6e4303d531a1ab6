"""Results as rows of tables, as callers open them in spreadsheets. Pure."""
