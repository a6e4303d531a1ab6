"""What lies on the pages of PDFs besides their own text: filled fields, typed notes, remarks, XFA forms."""
