"""Pages that are pictures, read by OCR."""
