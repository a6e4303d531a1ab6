"""OCR of drawn pages: word errors, time and memory."""
